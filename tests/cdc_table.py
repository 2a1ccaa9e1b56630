"""A table that change records are applied to, and read without Spark."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake

from cdc_oracle import Change
from headrace.contracts.changes import ChangeColumns, as_changes
from headrace.sinks.target import BatchStamp, Committed, FlowTarget, SplitRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE = (
    "id INT, ts INT, op STRING, value STRING, note STRING, "
    "_source STRUCT<topic: STRING, partition: INT, offset: BIGINT>"
)
SEQUENCE = "STRUCT<value: INT, partition: BIGINT, source: STRING, position: BIGINT>"


@dataclass
class CdcTable:
    """A table and its target.

    Args:
        columns: How records become change records.
        target: Applies them.
    """

    spark: SparkSession
    path: Path
    columns: ChangeColumns
    target: FlowTarget
    batches: Iterator[int] = field(default_factory=itertools.count)

    def select(self, columns: str) -> list[tuple[Any, ...]]:
        """Columns of its rows."""
        table = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(self.path))
        found = table.execute(f"SELECT {columns} FROM t").read_all()
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def changes(self, changes: Sequence[Change]) -> DataFrame:
        """The change records of a topic with one partition."""
        rows = [
            (one.key, one.sequence, one.operation, one.value, one.note, ("t", 0, one.offset))
            for one in changes
        ]
        return as_changes(self.spark.createDataFrame(rows, SOURCE), self.columns)

    def apply(self, changes: Sequence[Change], *, batch: int | None = None) -> Committed | None:
        """Apply a batch."""
        return self.apply_rows(self.changes(changes), batch=batch)

    def apply_rows(self, changes: DataFrame, *, batch: int | None = None) -> Committed | None:
        """Apply a batch of change records."""
        number = next(self.batches) if batch is None else batch
        stamp = BatchStamp(pipeline="p", flow="f", checkpoint="headrace-c", batch=number, ranges=())
        writer = self.target.begin(self.spark, stamp)
        if writer is None:
            return None
        with writer, SplitRows(accepted=changes) as rows:
            writer.write(rows)
            return writer.commit()


def use_merge(table: CdcTable) -> None:
    """Let changes by key need a MERGE: without deletion vectors, rows cannot change by position."""
    table.spark.sql(
        f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES (delta.enableDeletionVectors = false)"
    )


def create_table(
    spark: SparkSession, path: Path, columns: str, layout: str = "", vectors: str = "true"
) -> Path:
    """A Delta table, with the sequence that changes by key need."""
    spark.sql(
        f"CREATE TABLE delta.`{path}` ({columns}, _sequence {SEQUENCE}) "
        f"USING delta {layout} TBLPROPERTIES (delta.enableDeletionVectors = {vectors})"
    )
    return path
