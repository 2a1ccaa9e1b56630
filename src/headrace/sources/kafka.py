"""Kafka topics as streaming DataFrames, with every record's place beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import ArgumentInvalidError
from headrace.model.connections import KafkaConnection
from headrace.sources.records import parse_json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

Format = Literal["raw", "json"]
OnNull = Literal["refuse", "drop", "keep"]
StartingOffsets = Literal["earliest", "latest"] | Mapping[str, Mapping[int, int]]

_CLIENT = {
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

COORDINATES = ("topic", "partition", "offset", "timestamp", "key", "headers")


def read(
    spark: SparkSession,
    connection: KafkaConnection,
    topic: str,
    *,
    format: Format = "raw",
    schema: str | StructType | None = None,
    starting_offsets: StartingOffsets = "earliest",
    max_offsets_per_trigger: int | None = None,
    on_null: OnNull = "refuse",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """A topic as a streaming DataFrame.

    Args:
        spark: The session to read with.
        connection: The Kafka cluster.
        topic: One topic, or several separated by commas.
        format: ``raw`` gives the columns ``key`` and ``value`` as bytes; ``json`` gives the fields
            of ``schema``.
        schema: The JSON records' fields; needed for ``json``, refused for ``raw``.
        starting_offsets: Where a flow without a checkpoint starts.
        max_offsets_per_trigger: The most records that one batch takes.
        on_null: What a ``json`` record without a value becomes: ``refuse`` stops the flow,
            ``drop`` leaves it out, ``keep`` makes it a row whose fields are null.
        options: Further options of Spark's Kafka source.

    Returns:
        The columns above and ``_source``: topic, partition, offset, timestamp, key, headers and,
        for ``json``, the original bytes as ``value``.

    Raises:
        ArgumentInvalidError: An argument has a value that it cannot have.
    """
    from pyspark.sql import functions as F

    _check(format, schema, on_null)
    start = _starting(starting_offsets)
    limit = {} if max_offsets_per_trigger is None else {"maxOffsetsPerTrigger": max_offsets_per_trigger}
    records = (
        spark.readStream.format("kafka")
        .options(**_CLIENT)
        .options(**connection.for_spark())
        .option("subscribe", topic)
        .option("startingOffsets", start)
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", "read_committed")
        .option("failOnDataLoss", "true")
        .options(**limit)
        .options(**(options or {}))
        .load()
    )
    if format == "raw":
        return records.select("key", "value", F.struct(*COORDINATES).alias("_source"))
    if on_null == "drop":
        records = records.where(F.col("value").isNotNull())
    place: list[Column] = [F.col(name) for name in COORDINATES]
    source = F.struct(*place, F.col("value")).alias("_source")
    assert schema is not None
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


def _starting(offsets: StartingOffsets) -> str:
    if isinstance(offsets, str):
        if offsets not in ("earliest", "latest"):
            raise ArgumentInvalidError(
                f"read_kafka: starting_offsets={offsets!r} is not one of earliest, latest",
                remedies=('or give offsets, such as starting_offsets={"sales": {0: 17, 1: 20}}',),
                params={"argument": "starting_offsets", "value": offsets},
            )
        return offsets
    return json.dumps({topic: {str(p): o for p, o in parts.items()} for topic, parts in offsets.items()})
