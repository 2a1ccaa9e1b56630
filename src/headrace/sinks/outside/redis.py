"""Rows as values of Redis or Valkey: a key never goes back."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.model.names import quoted_column
from headrace.runtime.lazy_pyspark import Column, F
from headrace.sinks.outside.by_key import JSON_OPTIONS, invalid, load_package, number_of
from headrace.sinks.outside.stateful import SinkState
from headrace.sinks.outside.versioned import KEPT, TOMBSTONE_S, Document, SendError, Stored, VersionedSink
from headrace.sinks.target import SinkSpec

if TYPE_CHECKING:
    import redis

FORMS = ("json", "hash", "column")
_OWN = "__headrace"
_APPLY = """
-- KEYS: the document of the sink. ARGV: the epoch, the prefix of values and that of versions, the form of a
-- value; the seconds for which a value ('0': for ever), its version and that of a deleted key are kept; then
-- for each row its key, its version, 'set' or 'delete', and its value.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return redis.error_reply('HEADRACE fenced') end
for i = 8, #ARGV, 4 do
  local key, mark = ARGV[2] .. ARGV[i], ARGV[3] .. ARGV[i]
  local epoch, version = string.match(redis.call('GET', mark) or '0.0', '^(%d+)%.(%d+)$')
  if tonumber(epoch) < tonumber(ARGV[1]) or tonumber(version) <= tonumber(ARGV[i + 1]) then
    redis.call('DEL', key)
    redis.call('SET', mark, ARGV[1] .. '.' .. ARGV[i + 1])
    if ARGV[i + 2] == 'delete' then
      redis.call('EXPIRE', mark, ARGV[7])
    else
      if ARGV[4] == 'hash' then
        for name, value in pairs(cjson.decode(ARGV[i + 3])) do redis.call('HSET', key, name, value) end
      else
        redis.call('SET', key, ARGV[i + 3])
      end
      if ARGV[5] ~= '0' then
        redis.call('EXPIRE', key, ARGV[5])
        redis.call('EXPIRE', mark, ARGV[6])
      end
    end
  end
end
"""
_REPLACE = """
if (redis.call('HGET', KEYS[1], 'mark') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'mark', ARGV[2], 'state', ARGV[3], 'epoch', ARGV[4], 'cleared', ARGV[5],
  'kept_from', ARGV[6], 'owner', ARGV[7])
if ARGV[9] ~= '' then redis.call('ZADD', KEYS[2], ARGV[8], ARGV[9]) end
return 1
"""
_REMOVE = """
local epoch = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+)')
if epoch and tonumber(epoch) < tonumber(ARGV[1]) then redis.call('DEL', KEYS[1], KEYS[2]) end
"""


@dataclass(frozen=True, kw_only=True)
class RedisClient:
    """The connection of a sink. `kept_s`: seconds that a value is kept; 0 for ever."""

    url: str
    prefix: str
    form: str = "json"
    kept_s: int = 0
    tombstone_s: int = TOMBSTONE_S

    @property
    def own(self) -> str:
        """What Headrace's own keys of the sink begin with; another sink can have a longer prefix."""
        return f"{_OWN}:{len(self.prefix)}:{self.prefix}:"

    @property
    def names(self) -> tuple[str, str]:
        """The keys of the sink's document, and of the metadata of its commits."""
        return f"{self.own}sink", f"{self.own}commits"

    @property
    def versions(self) -> str:
        """What the keys with the versions of values begin with."""
        return f"{self.own}version:"

    @contextmanager
    def connect(self) -> Iterator[redis.Redis]:
        import redis

        try:
            with redis.Redis.from_url(
                self.url, socket_connect_timeout=10, socket_timeout=60, decode_responses=True
            ) as connection:
                yield connection
        except redis.ResponseError as error:
            raise SendError(str(error), is_fenced="HEADRACE" in str(error)) from error
        except redis.RedisError as error:
            raise SendError(str(error).splitlines()[0] if str(error) else type(error).__name__) from error

    def send(self, documents: Iterable[Sequence[Document]], epoch: int, kept_from: int) -> None:
        seconds = (self.kept_s, max(self.kept_s, self.tombstone_s), self.tombstone_s)
        first = (epoch, self.prefix, self.versions, self.form, *seconds)
        with self.connect() as connection:
            apply = connection.register_script(_APPLY)
            for some in documents:
                rows = ((one.id, one.version, *_change(one)) for one in some)
                apply(keys=[self.names[0]], args=[*first, *(each for row in rows for each in row)])

    def try_out(self, documents: Iterable[Sequence[Document]]) -> None:
        for _ in documents:
            """Redis takes all values."""


def _change(row: Document) -> tuple[str, str]:
    return ("delete", "") if row.body is None else ("set", row.body)


class RedisSink(VersionedSink):
    """The keys of a Redis database that begin with a prefix."""

    option_names = ("prefix", "value", "value_column", "ttl", "tombstones")
    forms = (("value", "json"), ("value_column", ""))

    def __init__(self, spec: SinkSpec) -> None:
        if "ttl" in spec.options and spec.follows is not None:
            # Keys will be missing, also if a later query has no `ttl`.
            spec = replace(spec, follows=replace(spec.follows, is_whole=False))
        super().__init__(spec)
        form, column = spec.options.get("value", "json"), spec.options.get("value_column")
        if form not in FORMS:
            raise invalid(spec, f"its value is {form}", f"it can be: {', '.join(FORMS)}", "correct value")
        if (form == "column") != (column is not None) or column not in (None, *self.rows.columns):
            what = f"its value is {form}, and its value_column is {column or 'not given'}"
            fact = f"its columns: {', '.join(self.rows.columns)}"
            raise invalid(spec, what, fact, 'write "value": "column", and in value_column one of its columns')
        if not self.client.prefix or self.client.prefix.startswith(_OWN):
            raise invalid(
                spec, f"its prefix cannot be '{self.client.prefix}'", None, 'write "prefix": "orders:"'
            )
        try:
            load_package(spec, "redis", "redis").Redis.from_url(self.client.url)
        except ValueError:
            # The text of the error could have the password.
            what, fact = "its url is not an address of Redis", "in a password, / is written %2F, and # %23"
            remedy = 'write "url": "redis://user:password@host:6379/0"'
            raise invalid(spec, what, fact, remedy) from None

    @cached_property
    def client(self) -> RedisClient:
        options = self.spec.options
        return RedisClient(
            url=options.get("url", "redis://localhost:6379/0"),
            prefix=options["prefix"],
            form=options.get("value", "json"),
            kept_s=number_of(self.spec, "ttl", 0),
            tombstone_s=number_of(self.spec, "tombstones", TOMBSTONE_S),
        )

    @property
    def location(self) -> str:
        return f"Redis at {urlsplit(self.client.url).hostname or 'a socket'}, keys {self.client.prefix}*"

    def body(self) -> Column:
        if (name := self.spec.options.get("value_column")) is not None:
            return self._text(name)
        if self.client.form == "json":
            return super().body()
        return F.to_json(F.struct(*(self._text(name).alias(name) for name in self.rows.columns)))

    def _text(self, name: str) -> Column:
        kind, value = self.types[name], F.col(quoted_column(name))
        if kind in ("timestamp", "timestamp_ntz"):
            return F.date_format(value, JSON_OPTIONS[f"{kind}Format".replace("_ntz", "NTZ")])
        if kind == "binary":
            return F.base64(value)
        is_nested = not isinstance(kind, str) or kind == "variant"
        return F.to_json(value, JSON_OPTIONS) if is_nested else value.cast("string")

    def check(self) -> None:
        self.read_document()
        with self.connected() as connection:
            facts = connection.info()
            if int(facts.get("cluster_enabled", 0)):
                what = "its server is a cluster, on which the version of a key cannot be compared in one step"
                raise invalid(self.spec, what, None, "use a server that is no cluster")
            if str(facts.get("maxmemory_policy", "")).startswith("allkeys"):
                what = f"its server removes keys without a time to live ({facts['maxmemory_policy']})"
                raise invalid(
                    self.spec,
                    what,
                    "the state of the sink could be lost",
                    "set maxmemory-policy to noeviction",
                )

    def create(self) -> None:
        if self.read_document() is None:
            self.replace_document(self.new_document(cleared=1), None)
        self.finish_clearing()

    def find_document(self) -> Stored | None:
        with self.connected() as connection:
            found = connection.hgetall(self.client.names[0])
        if not found:
            return None
        state = SinkState.of_json(json.loads(found["state"]))
        numbers = {name: int(found[name]) for name in ("epoch", "kept_from", "cleared")}
        state = replace(state, table_id=f"{state.table_id}/{self.form}")
        return Stored(state=state, owner=str(found["owner"]), mark=found["mark"], **numbers)

    def replace_document(self, stored: Stored, commit: Mapping[str, Any] | None) -> None:
        state = stored.state
        text = "" if commit is None else json.dumps(commit)
        marks = [stored.mark or "", uuid.uuid4().hex, json.dumps(stored.state.kept())]
        numbers = [stored.epoch, stored.cleared, stored.kept_from]
        with self.connected() as connection:
            swap = connection.register_script(_REPLACE)
            if not swap(keys=self.client.names, args=[*marks, *numbers, stored.owner, state.version, text]):
                self.taken()
            if commit is not None and state.version % 1000 == 0:
                self._forget(connection, int(commit["timestamp"]))

    def _forget(self, connection: redis.Redis, now_ms: int) -> None:
        """Remove the metadata of old commits."""
        name, oldest = self.client.names[1], now_ms - KEPT.total_seconds() * 1000
        while (found := connection.zrange(name, 0, 0)) and json.loads(str(found[0]))["timestamp"] < oldest:
            connection.zremrangebyrank(name, 0, 0)

    def remove_older(self, epoch: int) -> None:
        versions = self.client.versions
        pattern = "".join(f"\\{one}" if one in "*?[]\\" else one for one in versions) + "*"
        with self.connected() as connection:
            remove = connection.register_script(_REMOVE)
            for mark in connection.scan_iter(match=pattern, count=1000):
                remove(keys=[mark, self.client.prefix + mark.removeprefix(versions)], args=[epoch])

    @property
    def span(self) -> range:
        with self.connected() as connection:
            ends = [one for at in (0, -1) for one in connection.zrange(self.client.names[1], at, at)]
        first, last = (int(json.loads(str(one))["version"]) for one in ends) if ends else (0, -1)
        return range(first, last + 1)

    def documents(self, first: int, last: int) -> list[Mapping[str, Any]]:
        with self.connected() as connection:
            found = connection.zrangebyscore(self.client.names[1], first, last)
        return [json.loads(str(one)) for one in found]

    @contextmanager
    def connected(self) -> Iterator[redis.Redis]:
        try:
            with self.client.connect() as connection:
                yield connection
        except SendError as error:
            raise self.unavailable(str(error)) from error
