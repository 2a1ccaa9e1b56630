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
from headrace.model.names import ChosenColumns
from headrace.sinks.delta.history import HistoryTarget
from headrace.sinks.delta.merge import MergeTarget
from headrace.sinks.delta.tombstones import HiddenEvents, Tombstones
from headrace.sinks.target import BatchStamp, Committed, FlowTarget, SplitRows
from headrace.storage.layout import locate

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


def merge_target(
    spark: SparkSession, path: Path, index_memory: int = 1 << 30, *, is_partial: bool = False
) -> MergeTarget:
    """The target for a table with the current row of each `id`."""
    dead = Tombstones(path=locate(path.with_name(f"{path.name}-dead")), keys=("id",))
    return MergeTarget(
        spark=spark,
        path=locate(path),
        keys=("id",),
        tombstones=dead,
        is_partial=is_partial,
        index_memory=index_memory,
    )


def history_target(
    spark: SparkSession, path: Path, tracked: ChosenColumns, index_memory: int = 1 << 30
) -> HistoryTarget:
    """The target for a table with the history of each `id`."""
    hidden = HiddenEvents(path=locate(path.with_name(f"{path.name}-hidden")), keys=("id",))
    return HistoryTarget(
        spark=spark,
        path=locate(path),
        keys=("id",),
        tombstones=hidden,
        tracked=tracked,
        index_memory=index_memory,
    )
