"""What a Kafka sink is declared with: its topics, its connection, and the messages that its rows become."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headrace import errors
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.names import quoted_column
from headrace.runtime.lazy_pyspark import Column, DataFrame, F
from headrace.sinks.outside.by_key import (
    IS_DELETE,
    JSON_OPTIONS,
    KEEP_OUT,
    KEEP_OUT_OF_FEED,
    NULL_KEY,
    PROBLEM,
    REASONS,
    RECORDS,
    RowsByKey,
    invalid,
    refused,
    unavailable,
    unknown_option,
)
from headrace.sinks.outside.kafka import avro
from headrace.sinks.target import SinkSpec

OPTIONS = ("topic", "state_topic", "format", "keys", "guarantee", *avro.OPTIONS)
"""The options of a sink; all others are settings of Kafka's client, and begin with `kafka.`."""

LARGEST = 1_048_576
"""The most bytes of a message, if the cluster does not tell the limit of the topic."""

_PREFIX = "kafka."
_JAVA = {"max.request.size": "message.max.bytes"}
_PRODUCER = (
    *("compression.type", "linger.ms", "batch.size", "request.timeout.ms", "delivery.timeout.ms"),
    *("transaction.timeout.ms", "message.max.bytes"),
)
"""The settings of Java's producer that librdkafka has, too."""
_TEXT, _NAMES = ("string", "binary"), re.compile(r"[^A-Za-z0-9._-]")
_HEADER = {"key": "string", "value": "binary"}
_WHOLE = ("byte", "short", "integer", "long")


@dataclass(frozen=True)
class Destination:
    """Where and how the rows of a sink are sent. Its options are checked by `check`."""

    spec: SinkSpec

    @property
    def topic(self) -> str | None:
        """The topic of all rows; ``None`` if each row names its topic."""
        return self.spec.options.get("topic")

    @property
    def location(self) -> str:
        return self.topic or f"the topics in the rows of {self.spec.name.short}"

    @property
    def key(self) -> str:
        """The key of its state: another pipeline can have a sink of the same name."""
        return f"{self.spec.name}/{self.topic or ''}"

    @cached_property
    def state_topic(self) -> str:
        own = hashlib.sha256(self.key.encode()).hexdigest()[:12]
        name = _NAMES.sub("_", self.topic or self.spec.name.short)[:200]
        return self.spec.options.get("state_topic") or f"{name}.headrace-{own}"

    @property
    def transactional_id(self) -> str:
        return f"headrace-{hashlib.sha256(f'{self.key} {self.state_topic}'.encode()).hexdigest()[:24]}"

    @cached_property
    def connection(self) -> KafkaConnection:
        given = {**self.spec.connection, **self.spec.options}
        named = {key.lower(): value for key, value in given.items()}
        return KafkaConnection(
            {key.removeprefix(_PREFIX): value for key, value in named.items() if key.startswith(_PREFIX)}
        )

    @property
    def producer_settings(self) -> dict[str, str]:
        """The settings of the producer beside those of the connection."""
        named = {_JAVA.get(key, key): value for key, value in self.connection.settings.items()}
        return {key: value for key, value in named.items() if key in _PRODUCER}

    @property
    def is_row(self) -> bool:
        """Whether the whole row is the value of its message."""
        return self.spec.options.get("format") in ("json", "avro")

    @cached_property
    def _avro(self) -> avro.AvroValues | None:
        """How rows become Avro, if they do."""
        is_avro = self.spec.options.get("format") == "avro"
        return avro.AvroValues(self.spec, self.topic or "", self.rows.columns) if is_avro else None

    @cached_property
    def rows(self) -> RowsByKey:
        """How the rows follow each other, if whole rows are sent."""
        return RowsByKey.of(self.spec)

    def check(self) -> None:
        """Check options and columns; raises `SinkInvalidError`."""
        spec, kinds = self.spec, {one["name"]: one["type"] for one in self.spec.schema["fields"]}
        clients = (name for name in spec.options if name.lower().startswith(_PREFIX))
        unknown_option(spec, {*OPTIONS, *clients})
        if spec.options.get("guarantee", "exactly_once") != "exactly_once":
            what = "its option guarantee must be exactly_once or at_least_once"
            raise invalid(spec, what, None, 'write "guarantee": "at_least_once"')
        if self.state_topic == self.topic:
            raise invalid(
                spec, "its state_topic is its topic", None, "name another topic, or remove the option"
            )
        if self.is_row:
            if self.topic is None:
                raise invalid(spec, "whole rows are sent, and it has no topic", None, "add the option topic")
            _ = self.rows, self._avro  # raise their errors
            if self._avro is not None:
                return
        for option in avro.OPTIONS if self.is_row else ("format", "keys", *avro.OPTIONS):
            if option in spec.options:
                what = f"it has the option {option}, which is not for its format"
                remedy = (
                    'write "format": "json" or "format": "avro", which send whole rows, or remove the option'
                )
                raise invalid(spec, what, None, remedy)
        if self.is_row:
            return
        wanted = {"key": _TEXT, "value": _TEXT, "topic": ("string",), "partition": ("integer",)}
        for name, takes in wanted.items():
            if name in kinds and kinds[name] not in takes:
                what = f"its column `{name}` is {_shown(kinds[name])}, and must be {' or '.join(takes)}"
                raise invalid(spec, what, None, f"cast it in the query:   CAST({name} AS {takes[0].upper()})")
        if "headers" in kinds and _header(kinds["headers"]) != _HEADER:
            what = "its column `headers` must be ARRAY<STRUCT<key: STRING, value: BINARY>>"
            raise invalid(spec, what, f"it is {_shown(kinds['headers'])}", "cast it in the query")

    def messages(self, rows: DataFrame) -> DataFrame:
        """The messages of rows: topic, partition, key, value, headers, `RECORDS` and `PROBLEM`."""
        if self.is_row:
            columns = self._of_row(rows)
            rows = self.rows.newest(rows) if self.rows.is_feed else rows
        else:
            none = {"topic": "string", "partition": "int", "key": "binary", "headers": None}
            columns = {
                name: F.col(name) if name in rows.columns else F.lit(None).cast(kind or "string")
                for name, kind in none.items()
            }
            columns |= {"value": F.col("value"), RECORDS: F.lit(1), PROBLEM: F.lit(None).cast("string")}
        if self.topic is not None:
            columns["topic"] = F.lit(self.topic)
        if not self.is_row and "topic" in columns:
            columns[PROBLEM] = F.when(columns["topic"].isNull(), "a row has no topic")
        columns |= {name: columns[name].cast("binary") for name in ("key", "value")}
        return rows.select(*(column.alias(name) for name, column in columns.items()))

    def _of_row(self, rows: DataFrame) -> dict[str, Column]:
        by_key, none = self.rows, F.lit(None)
        if self._avro is not None:
            value = self._avro.column(rows, by_key.columns)
        else:
            value = F.to_json(F.struct(*map(quoted_column, by_key.columns)), JSON_OPTIONS)
        keys = [F.col(quoted_column(name)) for name in by_key.keys]
        key: Column = none.cast("string")
        if keys:
            kind = rows.schema[by_key.keys[0]].dataType.jsonValue()
            is_plain = len(keys) == 1 and isinstance(kind, str) and kind in ("string", *_WHOLE)
            key = keys[0].cast("string") if is_plain else F.to_json(F.struct(*keys), JSON_OPTIONS)
        problem = F.col(PROBLEM) if by_key.is_feed else none.cast("string")
        if by_key.is_feed:
            value = F.when(~F.col(IS_DELETE), value)
        else:
            for one in keys:
                problem = F.when(one.isNull(), NULL_KEY).otherwise(problem)
        return {
            "topic": none.cast("string"),
            "partition": none.cast("int"),
            "key": key,
            "value": value,
            "headers": none.cast("string"),
            PROBLEM: problem,
            RECORDS: F.col(RECORDS) if by_key.is_feed else F.lit(1),
        }

    def refused(self, reason: str, key: bytes | None) -> errors.SinkRowRefusedError:
        """The error for a row that cannot be sent."""
        shown = None if key is None else key.decode(errors="replace")
        if reason not in REASONS:
            is_feed = self.is_row and self.rows.is_feed
            return refused(self.spec, reason, {"key": shown}, [KEEP_OUT_OF_FEED if is_feed else KEEP_OUT])
        keys = self.rows.keys
        row = json.loads(shown or "{}") if len(keys) > 1 else dict.fromkeys(keys, shown)
        return self.rows.refused(self.spec, reason, row)

    def unavailable(self, message: str) -> errors.SinkUnavailableError:
        return unavailable(
            self.spec,
            f"Kafka cannot be used now: {message}",
            f"topic {self.location}, brokers {self.connection.bootstrap_servers}",
            remedy="start the broker, or check the connection:   headrace doctor",
        )


def _header(kind: Any) -> Mapping[str, Any]:
    """The types of a header by the names of its parts, if the column is an array of structs."""
    element = kind["elementType"] if isinstance(kind, dict) and kind["type"] == "array" else None
    fields = element["fields"] if isinstance(element, dict) and element["type"] == "struct" else ()
    return {one["name"]: one["type"] for one in fields}


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)[:100]
