"""Reads the batches that a Redis sink has recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.model.names import TableName
from headrace.verify.delta_log import TableLog
from headrace.verify.reader import SinkUnreadError
from headrace.verify.sink_log import build_log, keys_of
from headrace.verify.stored import StoredPath


def load_sink_log(
    name: TableName, options: Mapping[str, str], path: StoredPath, access: Mapping[str, Any]
) -> TableLog:
    """The commits of a sink that its server still has; raises `SinkUnreadError`. `path`: where the storage
    would have its table."""
    try:
        import redis
    except ImportError:
        raise SinkUnreadError("it needs the package redis: pip install 'headrace[redis]'") from None
    prefix = options["prefix"]
    own = f"__headrace:{len(prefix)}:{prefix}:"
    try:
        with redis.Redis.from_url(
            options.get("url", "redis://localhost:6379/0"), socket_timeout=10, decode_responses=True
        ) as connection:
            text = connection.hget(f"{own}sink", "state")
            found = [json.loads(str(one)) for one in connection.zrange(f"{own}commits", 0, -1)]
    except (redis.RedisError, ValueError) as error:
        raise SinkUnreadError(f"Redis: {type(error).__name__}") from error
    if text is None:
        raise SinkUnreadError(f"Redis has no state of the keys {prefix}*")
    state = json.loads(str(text))
    form = (keys_of(options), options.get("value", "json"), options.get("value_column", ""))
    table_id = f"{state['table_id']}/{' '.join(form)}"
    return build_log(name, state, table_id, {one["version"]: one for one in found}, path)
