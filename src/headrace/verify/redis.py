"""Reads the batches that a Redis sink has recorded, and some of its rows."""

from __future__ import annotations

import heapq
import json
import random
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.model.names import TableName
from headrace.verify.delta_log import TableLog
from headrace.verify.reader import SinkUnreadError
from headrace.verify.sink_log import build_log, keys_of
from headrace.verify.sink_rows import Key, SinkRow, SinkRows, Wanted, is_same, read_json
from headrace.verify.stored import StoredPath


def load_sink_log(
    name: TableName, options: Mapping[str, str], path: StoredPath, access: Mapping[str, Any]
) -> TableLog:
    """The commits of a sink that its server still has; raises `SinkUnreadError`. `path`: where the storage
    would have its table."""
    with _connected(options) as connection:
        state = _state(options, connection)
        found = [json.loads(str(one)) for one in connection.zrange(f"{_own(options)}commits", 0, -1)]
    form = (keys_of(options), options.get("value", "json"), options.get("value_column", ""))
    table_id = f"{state['table_id']}/{' '.join(form)}"
    return build_log(name, state, table_id, {one["version"]: one for one in found}, path)


def read_rows(name: TableName, options: Mapping[str, str], wanted: Wanted) -> SinkRows:
    """Rows of a sink, then its state; raises `SinkUnreadError`."""
    prefix, column = options["prefix"], options.get("value_column")
    found: dict[Key, SinkRow] = {}
    with _connected(options) as connection:
        pattern = "".join(f"\\{one}" if one in "*?[]\\" else one for one in prefix) + "*"
        salt = random.randbytes(8).hex()
        names = connection.scan_iter(match=pattern, count=1000)
        # A scan can give a key several times.
        chosen = heapq.nsmallest(2 * wanted.size, names, key=lambda one: zlib.crc32(f"{salt}{one}".encode()))
        random_ids = [one.removeprefix(prefix) for one in dict.fromkeys(chosen)]
        for some in wanted.parts(random_ids[: wanted.size])[0]:
            pipeline = connection.pipeline(transaction=True)
            for id, _ in some:
                pipeline.get(f"{_own(options)}version:{id}")
                (pipeline.hgetall if options.get("value") == "hash" else pipeline.get)(prefix + id)
            answers = pipeline.execute(raise_on_error=False)
            for (_, key), mark, given in zip(some, answers[::2], answers[1::2], strict=True):
                row = SinkRow(values=_values(given, options), version=_version(mark))
                # Another program's keys can begin with the prefix.
                if row.version is not None or key in wanted.asked or _is_row(row, key, wanted):
                    found[key] = row
        state = _state(options, connection)
    columns = {*wanted.columns} if column is None else {column}
    holder = f"Redis ({prefix}*)"
    return SinkRows(state=state, holder=holder, rows=found, columns=columns, needs=column)


def _values(given: Any, options: Mapping[str, str]) -> Mapping[str, Any] | None:
    """The columns of a row; ``None`` if there is no value."""
    if given is None or given == {}:
        return None
    if isinstance(given, Exception):
        if "WRONGTYPE" not in str(given):
            raise given
        return {}
    if options.get("value") == "hash":
        return dict(given)
    column = options.get("value_column")
    return read_json(given) if column is None else {column: given}


def _version(mark: Any) -> int | None:
    text = mark.partition(".")[2] if isinstance(mark, str) else ""
    return int(text) if text.isdecimal() else None


def _is_row(row: SinkRow, key: Key, wanted: Wanted) -> bool:
    """Whether a value without a version has the form of the rows, and its own key."""
    pairs = zip(wanted.keys.items(), key, strict=True)
    return row.values is not None and all(
        is_same(kind, one, row.values.get(name)) for (name, kind), one in pairs
    )


def _own(options: Mapping[str, str]) -> str:
    return f"__headrace:{len(options['prefix'])}:{options['prefix']}:"


def _state(options: Mapping[str, str], connection: Any) -> Mapping[str, Any]:
    text = connection.hget(f"{_own(options)}sink", "state")
    if text is None:
        raise SinkUnreadError(f"Redis has no state of the keys {options['prefix']}*")
    state: Mapping[str, Any] = json.loads(str(text))
    return state


@contextmanager
def _connected(options: Mapping[str, str]) -> Iterator[Any]:
    try:
        import redis
    except ImportError:
        raise SinkUnreadError("it needs the package redis: pip install 'headrace[redis]'") from None
    url = options.get("url", "redis://localhost:6379/0")
    try:
        with redis.Redis.from_url(
            url, socket_timeout=10, decode_responses=True, encoding_errors="replace"
        ) as connection:
            yield connection
    except (redis.RedisError, ValueError) as error:
        raise SinkUnreadError(f"Redis: {type(error).__name__}") from error
