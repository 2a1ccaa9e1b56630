"""A refresh replaces the files of a view through Delta's own transaction where that is enough."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.model.counts import BatchCounts
from headrace.sinks.delta.replace import ReplaceTarget
from headrace.sinks.target import Committed, RefreshStamp, SplitRows
from headrace.storage.layout import locate
from headrace.storage.table_log import load_commit, newest_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STAMP = RefreshStamp(pipeline="shop", view="default.gold", update="u", definition="d", inputs={})


class View:
    """A view in a folder, with partitions."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.path = folder / "gold"
        self.target = ReplaceTarget(
            path=locate(self.path), quarantine=locate(folder / "rejected"), partition_cols=("part",)
        )

    def rows(self, first: int, end: int) -> DataFrame:
        return self.spark.range(first, end, 1, 2).selectExpr("id", "id % 2 AS part")

    def refresh(self, first: int, end: int, *, between: str = "") -> Committed:
        writer = self.target.begin(self.spark, STAMP)
        assert writer is not None
        rows = SplitRows(
            accepted=self.rows(first, end),
            counts=lambda accepted: BatchCounts(input=accepted, accepted=accepted),
            settle=lambda: None,
            release=lambda: None,
        )
        with writer:
            writer.write(rows)
            if between:
                self.spark.sql(between)
            return writer.commit()

    def stored(self) -> list[int]:
        return sorted(row.id for row in self.spark.read.format("delta").load(str(self.path)).collect())

    def newest(self) -> list[str]:
        """The actions of the newest commit, and what it states of itself."""
        version = newest_version(locate(self.path))
        lines = (self.path / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
        return [next(iter(json.loads(line))) for line in lines]


def test_every_refresh_leaves_exactly_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    view = View(spark, tmp_path)
    table = f"delta.`{view.path}`"
    view.refresh(0, 4)
    assert view.refresh(10, 16).counts.accepted == 6
    assert view.stored() == list(range(10, 16))
    commit = load_commit(locate(view.path), 1)
    assert (commit.operation, commit.metadata and commit.metadata["view"]) == ("WRITE", "default.gold")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('a' = 'b')")
    assert view.refresh(20, 23).counts.accepted == 3
    assert view.stored() == [20, 21, 22]
    # Other writers: rows, deleted rows, and files that were put together.
    spark.sql(f"INSERT INTO {table} VALUES (99, 1)")
    view.refresh(30, 33)
    assert view.stored() == [30, 31, 32]
    spark.sql(f"DELETE FROM {table} WHERE id = 31")
    spark.sql(f"OPTIMIZE {table}")
    view.refresh(40, 42)
    assert view.stored() == [40, 41]
    assert view.refresh(0, 0).counts.accepted == 0
    assert view.stored() == []
    view.refresh(50, 51)
    assert view.stored() == [50]
    assert newest_version(locate(view.path)) == 10, "one commit for each refresh"


def test_rows_that_another_writer_adds_meanwhile_are_a_conflict(spark: SparkSession, tmp_path: Path) -> None:
    view = View(spark, tmp_path)
    view.refresh(0, 4)
    with pytest.raises(Exception, match=r"DELTA_CONCURRENT_APPEND|ConcurrentAppend"):
        view.refresh(10, 14, between=f"INSERT INTO delta.`{view.path}` VALUES (99, 1)")
    assert view.stored() == [0, 1, 2, 3, 99]
