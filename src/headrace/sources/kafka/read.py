"""Kafka topics as streaming DataFrames, with the coordinates of each record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from headrace.errors import ArgumentInvalidError
from headrace.model.declarations import Drift
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.project import OnDataLoss
from headrace.model.texts import find_option
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession, StructType
from headrace.sources.bad_records import (
    MAX_VALUE_BYTES,
    SCHEMA_NUMBER,
    VALUE_LIMIT,
    BadRecordRule,
    BadRecords,
    Evolving,
    RecordRules,
    TombstoneRule,
)
from headrace.sources.decoders import (
    Decoder,
    InvalidUtf8,
    build_csv_decoder,
    check_choice,
    choose_decoder,
    invalid_argument,
)
from headrace.sources.kafka.avro_decoder import AvroDecoder
from headrace.sources.kafka.clusters import other_cluster
from headrace.sources.kafka.debezium import build_debezium_decoder
from headrace.sources.kafka.subscription import EARLIEST, LATEST, whole

Format = Literal["raw", "json", "text", "csv", "avro", "debezium"]
End = Literal["earliest", "latest"]
StartingOffsets = End | Mapping[str, Mapping[int, int | End]]

CLIENT = {
    # After this time without an answer of the broker the flow is retried, and the user sees it. By default
    # the clients wait for three minutes and report nothing.
    "kafka.request.timeout.ms": "15000",
    "kafka.default.api.timeout.ms": "20000",
    # Spark asks for the offsets of each partition after the poll that is running. With Kafka's default of
    # 500 ms, a batch of a topic without new records waits that long for each partition.
    "kafka.fetch.max.wait.ms": "5",
    "fetchOffset.numRetries": "1",
}
"""Settings of Spark's Kafka clients; the settings of the spec and of a query override them."""

_REQUEST, _WHOLE = "kafka.request.timeout.ms", "kafka.default.api.timeout.ms"


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """The settings of Spark's Kafka clients: they refuse a request that may take longer than the whole
    call."""
    given = find_option(options, _REQUEST) or ""
    longest = max(int(CLIENT[_WHOLE]), int(given) if given.isdigit() else 0)
    return {**CLIENT, _WHOLE: str(longest)}


ALLOW_NO_TOPICS = "headrace.allowNoTopics"
"""An option of Headrace: a pattern may match no topic."""

LOSS_POLICY = "headrace.onDataLoss"
"""An option of Headrace: what to do if the topics no longer have records that the flow must read."""

_PROTOCOL = {"includeHeaders": "true", "kafka.isolation.level": "read_committed", "failOnDataLoss": "true"}
"""Options that the exactly-once protocol needs."""

COORDINATES = ("topic", "partition", "offset", "timestamp", "key", "headers")


@dataclass(frozen=True, kw_only=True)
class KafkaRead:
    topics: str | None = None  # the names of topics, separated by commas; None with a pattern
    pattern: str | None = None  # A regular expression of whole topic names
    allow_no_match: bool = False  # whether the pattern may match no topic
    format: Format = "raw"  # the format of the records: ``raw`` gives bytes
    schema: StructType | None = None  # the fields of JSON, CSV or Debezium records
    format_options: Mapping[str, str] = field(default_factory=dict)
    avro: AvroDecoder | None = None
    invalid_utf8: InvalidUtf8 = "reject"
    starting_offsets: StartingOffsets = "earliest"
    # In place of offsets; without a zone it is in UTC. A partition without a later record starts at its
    # end.
    starting_timestamp: datetime | str | None = None
    max_offsets_per_trigger: int | None = None  # the maximum number of records in a batch
    bad_records: BadRecordRule = "quarantine"
    tombstones: TombstoneRule = "quarantine"
    max_value_bytes: int = MAX_VALUE_BYTES  # A record with a longer value is a bad record
    # What to do if the topics no longer have records that the flow must read; None takes the setting of the
    # pipeline
    on_data_loss: OnDataLoss | None = None
    # Further options of Spark's Kafka source. With ``kafka.bootstrap.servers`` of another cluster they are
    # the whole connection
    options: Mapping[str, str] = field(default_factory=dict)
    drift: Drift = field(default_factory=Drift)  # what to do with records that differ from the schema
    evolving: Evolving | None = None  # the schema, if it takes up new fields
    notes_unknown: bool = True  # whether fields that have no column are counted

    def decoder(self) -> Decoder | None:
        check_choice("read_kafka", "format", self.format, get_args(Format))
        check_choice("read_kafka", "bad_records", self.bad_records, get_args(BadRecordRule))
        check_choice("read_kafka", "tombstones", self.tombstones, get_args(TombstoneRule))
        if self.format == "csv":
            return build_csv_decoder("read_kafka", self.schema, self.invalid_utf8, self.format_options)
        if self.format == "debezium":
            return build_debezium_decoder("read_kafka", self.schema, self.invalid_utf8, **self.format_options)
        if self.format_options:
            problem = f"format_options work with csv and debezium, not with {self.format}"
            raise invalid_argument("read_kafka", "format_options", problem, "remove format_options")
        if self.avro is not None:
            return self.avro
        return choose_decoder("read_kafka", self.format, self.schema, self.invalid_utf8, drift=self.drift)

    def spark_options(self) -> dict[str, str]:
        """The options of Spark's Kafka source, without those of the user."""
        given = {
            "subscribe": self.topics,
            "subscribePattern": None if self.topics is not None else whole(self.pattern or ""),
            ALLOW_NO_TOPICS: "true" if self.allow_no_match else None,
            LOSS_POLICY: self.on_data_loss,
            "maxOffsetsPerTrigger": self.max_offsets_per_trigger,
            VALUE_LIMIT: None if self.max_value_bytes == MAX_VALUE_BYTES else self.max_value_bytes,
            SCHEMA_NUMBER: None if self.evolving is None else self.evolving.number,
        }
        chosen = {name: str(value) for name, value in given.items() if value is not None}
        return chosen | _starting(self.starting_offsets, self.starting_timestamp)


def read(
    spark: SparkSession, connection: KafkaConnection, kafka: KafkaRead, found: list[BadRecords] | None = None
) -> DataFrame:
    decoder, chosen = kafka.decoder(), kafka.spark_options()
    cluster, further = _connection(kafka.options, connection)
    records = (
        spark.readStream.format("kafka")
        .options(**client_options({**cluster.for_spark(), **further}))
        .options(**cluster.for_spark())
        .options(**chosen)
        .options(**_PROTOCOL)
        .options(**further)
        .load()
    )
    if decoder is None:
        return records.select("key", "value", F.struct(*COORDINATES).alias("_source"))
    rules = RecordRules(
        decoder=decoder,
        bad_records=kafka.bad_records,
        tombstones=kafka.tombstones,
        max_value_bytes=kafka.max_value_bytes,
        notes_unknown=kafka.notes_unknown,
        evolving=kafka.evolving,
    )
    place = [F.col(name) for name in COORDINATES[:3]]
    if found is not None:
        found.append(rules.find_bad(records, place, [F.col(name) for name in (*COORDINATES, "value")]))
    # Text has the same bytes as the record, so they are not kept twice.
    kept = COORDINATES if kafka.format == "text" else (*COORDINATES, "value")
    return rules.decode(records, place, {"_source": F.struct(*kept)})


def _connection(
    options: Mapping[str, str], profile: KafkaConnection
) -> tuple[KafkaConnection, Mapping[str, str]]:
    """The cluster of a reader, and the reader's options without those of the connection."""
    other = other_cluster(options, profile)
    if other is None:
        return profile, options
    return other, {name: value for name, value in options.items() if not name.lower().startswith("kafka.")}


def _starting(offsets: StartingOffsets, timestamp: datetime | str | None) -> dict[str, str]:
    if timestamp is not None:
        if offsets != "earliest":
            problem = "starting_timestamp and starting_offsets cannot both be set"
            raise invalid_argument("read_kafka", "starting_timestamp", problem, "remove one of them")
        return {
            "startingTimestamp": str(_milliseconds(timestamp)),
            "startingOffsetsByTimestampStrategy": "latest",
        }
    if isinstance(offsets, str):
        if offsets not in ("earliest", "latest"):
            raise _not_offsets(offsets)
        return {"startingOffsets": offsets}
    if not isinstance(offsets, Mapping) or not all(isinstance(parts, Mapping) for parts in offsets.values()):
        raise _not_offsets(offsets)
    named = {
        topic: {str(partition): _offset(offset) for partition, offset in parts.items()}
        for topic, parts in offsets.items()
    }
    return {"startingOffsets": json.dumps(named)}


def _offset(value: Any) -> int:
    match value:
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
        case int() if not isinstance(value, bool) and value >= EARLIEST:
            return value
    raise _not_offsets(value)


def _milliseconds(moment: datetime | str) -> int:
    try:
        found = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        zoned = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return int(zoned.timestamp() * 1000)
    except (ValueError, AttributeError, OverflowError) as error:
        problem = f"starting_timestamp={moment!r} is not a time"
        remedy = 'use a datetime, or text such as "2026-11-20T08:00:00+01:00"'
        value = str(moment)
        raise invalid_argument("read_kafka", "starting_timestamp", problem, remedy, value=value) from error


def _not_offsets(value: Any) -> ArgumentInvalidError:
    problem = f"starting_offsets={value!r} is not one of earliest, latest"
    remedy = 'or give offsets, such as starting_offsets={"sales": {0: 17, 1: "earliest"}}'
    return invalid_argument("read_kafka", "starting_offsets", problem, remedy, value=value)
