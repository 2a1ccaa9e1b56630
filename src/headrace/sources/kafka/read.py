"""Kafka topics as streaming DataFrames, with every record's place beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import ArgumentInvalidError
from headrace.model.connections import KafkaConnection
from headrace.model.project import OnDataLoss
from headrace.sources.kafka.clusters import other_cluster
from headrace.sources.kafka.subscription import EARLIEST, LATEST, whole
from headrace.sources.records import parse_json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

Format = Literal["raw", "json"]
OnNull = Literal["refuse", "drop", "keep"]
End = Literal["earliest", "latest"]
StartingOffsets = End | Mapping[str, Mapping[int, int | End]]

CLIENT = {
    # How long a broker may take to answer before the flow is tried again, where a user sees it; by
    # themselves the clients wait for three minutes without a word.
    "kafka.request.timeout.ms": "15000",
    "kafka.default.api.timeout.ms": "20000",
    # Spark asks for offsets behind the poll that is under way, once per partition: with Kafka's own
    # 500 ms a batch of a quiet topic waits that long for each.
    "kafka.fetch.max.wait.ms": "5",
    "fetchOffset.numRetries": "1",
}
"""Settings of Spark's Kafka clients; the spec's and a query's own win."""

ALLOW_NO_TOPICS = "headrace.allowNoTopics"
"""An option of ours: a pattern that matches no topic yet is no error."""

LOSS_POLICY = "headrace.onDataLoss"
"""A mark of ours: what happens when this source no longer holds what its flow has to read."""

_PROTOCOL = {
    "includeHeaders": "true",
    "kafka.isolation.level": "read_committed",
    "failOnDataLoss": "true",
}
"""What the exactly-once protocol needs of each reader."""

COORDINATES = ("topic", "partition", "offset", "timestamp", "key", "headers")


def read(
    spark: SparkSession,
    connection: KafkaConnection,
    topic: str | None = None,
    *,
    pattern: str | None = None,
    allow_no_match: bool = False,
    format: Format = "raw",
    schema: StructType | None = None,
    starting_offsets: StartingOffsets = "earliest",
    starting_timestamp: datetime | str | None = None,
    max_offsets_per_trigger: int | None = None,
    on_null: OnNull = "refuse",
    on_data_loss: OnDataLoss | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Topics as one streaming DataFrame.

    Args:
        spark: The session to read with.
        connection: The profile's Kafka cluster.
        topic: One topic, or several separated by commas.
        pattern: In place of topics, a regular expression of their whole names.
        allow_no_match: Whether the pattern may match nothing yet.
        format: ``raw`` gives the columns ``key`` and ``value`` as bytes; ``json`` gives the fields
            of ``schema``.
        schema: The JSON records' fields; needed for ``json``, refused for ``raw``.
        starting_offsets: Where a flow without a checkpoint starts.
        starting_timestamp: In place of offsets, a moment; one without a zone is in UTC. A partition
            without a record since starts at its end.
        max_offsets_per_trigger: The most records that one batch takes.
        on_null: What a ``json`` record without a value becomes: ``refuse`` stops the flow,
            ``drop`` leaves it out, ``keep`` makes it a row whose fields are null.
        on_data_loss: What happens when the topics no longer hold what the flow has to read; ``None``
            does what the pipeline does.
        options: Further options of Spark's Kafka source. With ``kafka.bootstrap.servers`` of another cluster
            they are the whole connection.

    Returns:
        The columns above and ``_source``: topic, partition, offset, timestamp, key, headers and,
        for ``json``, the original bytes as ``value``.

    Raises:
        ArgumentInvalidError: An argument has a value that it cannot have.
    """
    _check(format, schema, on_null)
    given = {
        "subscribe": topic,
        "subscribePattern": None if topic is not None else whole(pattern or ""),
        ALLOW_NO_TOPICS: "true" if allow_no_match else None,
        LOSS_POLICY: on_data_loss,
        "maxOffsetsPerTrigger": max_offsets_per_trigger,
    }
    chosen = {name: str(value) for name, value in given.items() if value is not None}
    chosen |= _starting(starting_offsets, starting_timestamp)
    cluster, further = _connection(options or {}, connection)
    records = (
        spark.readStream.format("kafka")
        .options(**CLIENT)
        .options(**cluster.for_spark())
        .options(**chosen)
        .options(**_PROTOCOL)
        .options(**further)
        .load()
    )
    return _with_places(records, schema, on_null)


def _connection(
    options: Mapping[str, str], profile: KafkaConnection
) -> tuple[KafkaConnection, Mapping[str, str]]:
    """The cluster that a reader reads, and its own options beside that connection."""
    other = other_cluster(options, profile)
    if other is None:
        return profile, options
    return other, {name: value for name, value in options.items() if not name.lower().startswith("kafka.")}


def _with_places(records: DataFrame, schema: StructType | None, on_null: OnNull) -> DataFrame:
    """Records as they are, or parsed where there is a schema, each with its place."""
    from pyspark.sql import functions as F

    if schema is None:
        return records.select("key", "value", F.struct(*COORDINATES).alias("_source"))
    if on_null == "drop":
        records = records.where(F.col("value").isNotNull())
    place: list[Column] = [F.col(name) for name in COORDINATES]
    source = F.struct(*place, F.col("value")).alias("_source")
    parsed = parse_json("value", schema, at=place[:3], on_null="keep" if on_null == "keep" else "refuse")
    return records.select(parsed.alias("_record"), source).select("_record.*", "_source")


def _check(format: str, schema: Any, on_null: str) -> None:
    choices: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("format", format, ("raw", "json")),
        ("on_null", on_null, ("refuse", "drop", "keep")),
    )
    for name, value, allowed in choices:
        if value not in allowed:
            raise ArgumentInvalidError(
                f"read_kafka: {name}={value!r} is not one of {', '.join(allowed)}",
                params={"argument": name, "value": value},
            )
    if format == "json" and schema is None:
        raise ArgumentInvalidError(
            'read_kafka: format="json" needs a schema',
            remedies=('give one, such as schema="id LONG, name STRING"',),
            params={"argument": "schema"},
        )
    if format == "raw" and schema is not None:
        raise ArgumentInvalidError(
            'read_kafka: format="raw" takes no schema',
            remedies=('give format="json", or leave the schema out',),
            params={"argument": "schema"},
        )


def _starting(offsets: StartingOffsets, timestamp: datetime | str | None) -> dict[str, str]:
    if timestamp is not None:
        if offsets != "earliest":
            raise ArgumentInvalidError(
                "read_kafka: starting_timestamp and starting_offsets cannot both be set",
                remedies=("remove one of them",),
                params={"argument": "starting_timestamp"},
            )
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
        raise ArgumentInvalidError(
            f"read_kafka: starting_timestamp={moment!r} is not a time",
            remedies=('use a datetime, or text such as "2026-11-20T08:00:00+01:00"',),
            params={"argument": "starting_timestamp", "value": str(moment)},
        ) from error


def _not_offsets(value: Any) -> ArgumentInvalidError:
    return ArgumentInvalidError(
        f"read_kafka: starting_offsets={value!r} is not one of earliest, latest",
        remedies=('or give offsets, such as starting_offsets={"sales": {0: 17, 1: "earliest"}}',),
        params={"argument": "starting_offsets", "value": value},
    )
