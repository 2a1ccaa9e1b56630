"""Kinesis streams as streaming DataFrames, with the coordinates of each record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from headrace.model.declarations import Drift
from headrace.model.project import OnDataLoss
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession, StructType
from headrace.sources.bad_records import (
    MAX_VALUE_BYTES,
    SCHEMA_NUMBER,
    VALUE_LIMIT,
    BadRecordRule,
    BadRecords,
    Evolving,
    RecordRules,
)
from headrace.sources.decoders import (
    Decoder,
    InvalidUtf8,
    build_csv_decoder,
    check_choice,
    choose_decoder,
    invalid_argument,
)
from headrace.sources.kinesis.connection import StreamConnection
from headrace.sources.kinesis.spans import FORMAT, LIMIT, STARTS

Format = Literal["raw", "json", "text", "csv"]

LOSS_POLICY: Final = "headrace.onDataLoss"

COORDINATES: Final = (
    *("stream", "shard", "record_number", "shard_id", "sequence_number", "sub_sequence_number"),
    *("partition_key", "approximate_arrival_timestamp"),
)


@dataclass(frozen=True, kw_only=True)
class KinesisRead:
    connection: StreamConnection
    format: Format = "raw"
    schema: StructType | None = None  # the fields of JSON or CSV records
    format_options: Mapping[str, str] = field(default_factory=dict)
    invalid_utf8: InvalidUtf8 = "reject"
    starts: str = "earliest"  # or ``latest``, or a time in milliseconds
    max_records_per_trigger: int | None = None
    bad_records: BadRecordRule = "quarantine"
    max_value_bytes: int = MAX_VALUE_BYTES
    on_data_loss: OnDataLoss | None = None
    drift: Drift = field(default_factory=Drift)
    evolving: Evolving | None = None
    notes_unknown: bool = True

    def decoder(self) -> Decoder | None:
        check_choice("read_kinesis", "format", self.format, get_args(Format))
        check_choice("read_kinesis", "bad_records", self.bad_records, get_args(BadRecordRule))
        if self.format == "csv":
            return build_csv_decoder("read_kinesis", self.schema, self.invalid_utf8, self.format_options)
        if self.format_options:
            problem = f"format_options work with csv, not with {self.format}"
            raise invalid_argument("read_kinesis", "format_options", problem, "remove format_options")
        return choose_decoder("read_kinesis", self.format, self.schema, self.invalid_utf8, drift=self.drift)

    def spark_options(self) -> dict[str, str]:
        given: dict[str, Any] = {
            STARTS: self.starts,
            LOSS_POLICY: self.on_data_loss,
            LIMIT: self.max_records_per_trigger,
            VALUE_LIMIT: None if self.max_value_bytes == MAX_VALUE_BYTES else self.max_value_bytes,
            SCHEMA_NUMBER: None if self.evolving is None else self.evolving.number,
        }
        chosen = {name: str(value) for name, value in given.items() if value is not None}
        return self.connection.to_options() | chosen


def format_name(session: SparkSession) -> str:
    """The format with which a session reads streams of Kinesis."""
    from pyspark.sql import SparkSession as Sessions

    from headrace.sources.kinesis.data_source import KinesisStreams

    # Spark looks for the format in the active session, which may be another one.
    active = Sessions.getActiveSession()
    for one in {id(found): found for found in (session, active) if found is not None}.values():
        if not one._jsparkSession.sessionState().dataSourceManager().dataSourceExists(FORMAT):
            one.dataSource.register(KinesisStreams)
    return FORMAT


def read(spark: SparkSession, kinesis: KinesisRead, found: list[BadRecords] | None = None) -> DataFrame:
    decoder = kinesis.decoder()
    records = spark.readStream.format(format_name(spark)).options(**kinesis.spark_options()).load()
    if decoder is None:
        return records.select(F.col("value").alias("data"), *COORDINATES)
    rules = RecordRules(
        decoder=decoder,
        bad_records=kinesis.bad_records,
        max_value_bytes=kinesis.max_value_bytes,
        notes_unknown=kinesis.notes_unknown,
        evolving=kinesis.evolving,
    )
    place = [F.col(name) for name in ("stream", "shard", "record_number")]
    if found is not None:
        found.append(rules.find_bad(records, place, [F.col(name) for name in (*COORDINATES, "value")]))
    # Text has the same bytes as the record, so they are not kept twice.
    kept = COORDINATES if kinesis.format == "text" else (*COORDINATES, "value")
    return rules.decode(records, place, {"_source": F.struct(*kept)})
