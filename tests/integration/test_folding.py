"""Tables with changes by key are compacted between two batches, by the conditions of their policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import deltalake
import pytest

from cdc_oracle import Change
from cdc_table import CdcTable, create_table, use_merge
from headrace.contracts.changes import ChangeColumns
from headrace.model.maintenance import TablePolicy
from headrace.sinks.delta import compaction, folding
from headrace.sinks.delta.compaction import Compaction, Maintenance
from headrace.sinks.delta.folding import SharedTable
from headrace.sinks.delta.merge import MergeTarget
from headrace.sinks.delta.tombstones import Tombstones
from headrace.storage.layout import locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ChangeColumns(keys=("id",), sequence_by="ts", deletes="op = 'delete'", excluded=("op", "note"))


@dataclass
class Reported:
    """Has one policy for all tables, and keeps what was reported."""

    rules: TablePolicy
    reports: list[Compaction | Exception] = field(default_factory=list)

    def policy(self, *_: Any) -> TablePolicy:
        return self.rules

    def compacted(self, _: Any, done: Compaction | Exception) -> None:
        self.reports.append(done)

    def offer(self, *_: Any, **__: Any) -> None: ...


def make(
    spark: SparkSession, path: Path, policy: TablePolicy, index_memory: int
) -> tuple[CdcTable, Reported]:
    maintenance = Reported(policy)
    target = MergeTarget(
        spark=spark,
        path=locate(create_table(spark, path, "id INT, ts INT, value STRING")),
        keys=("id",),
        tombstones=Tombstones(path=locate(path.with_name("dead")), keys=("id",)),
        maintenance=cast("Maintenance", maintenance),
        shared=SharedTable(),
        index_memory=index_memory,
    )
    return CdcTable(spark=spark, path=path, columns=COLUMNS, target=target), maintenance


def upserts(keys: Sequence[int], at: int) -> list[Change]:
    return [Change(at * 10_000 + key, key, at, "upsert", f"value {at} of {key}") for key in keys]


def files(table: CdcTable) -> list[str]:
    return sorted(deltalake.DeltaTable(table.path).file_uris())


@pytest.mark.parametrize("index_memory", [1 << 30, 0], ids=["index", "joins"])
def test_mostly_deleted_large_files_are_rewritten_and_no_others(
    spark: SparkSession, tmp_path: Path, index_memory: int
) -> None:
    # All files are larger than a small one.
    policy = TablePolicy(target_file_size=4, small_files=32)
    table, maintenance = make(spark, tmp_path / "t", policy, index_memory)
    for number in range(3):
        table.apply(upserts(range(number * 100, number * 100 + 100), 1))
    first = files(table)
    assert len(first) == 3
    # 90 of 100 rows of two files, and 10 of the third: 190 of 300, beside 190 new rows.
    changed = [*range(90), *range(100, 190), *range(200, 210)]
    table.apply([Change(20_000 + key, key, 2, "delete", "") for key in changed])
    (done,) = maintenance.reports
    assert isinstance(done, Compaction) and done.removed == 2
    left = files(table)
    assert len(set(first) & set(left)) == 1
    assert sorted(table.select("id")) == [(key,) for key in range(300) if key not in changed]
    # Nothing more is due.
    table.apply(upserts([500], 3))
    assert len(maintenance.reports) == 1


def test_a_compaction_between_two_batches_ends_after_its_time_and_continues_later(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "_LIMIT_S", 0.0)
    monkeypatch.setattr(compaction, "_LIMITED_BATCH_BYTES", 1)
    policy = TablePolicy(target_file_size=4, small_files=32, deleted_ratio=0.3)
    table, maintenance = make(spark, tmp_path / "t", policy, 1 << 30)
    for number in range(3):
        table.apply(upserts(range(number * 100, number * 100 + 100), 1))
    changed = [*range(90), *range(100, 190)]
    table.apply([Change(20_000 + key, key, 2, "delete", "") for key in changed])
    table.apply(upserts([500], 3))
    assert [one.removed for one in maintenance.reports if isinstance(one, Compaction)] == [1, 1]
    assert sorted(table.select("id")) == [(key,) for key in [*range(300), 500] if key not in changed]


def test_a_small_table_with_many_deleted_rows_waits_for_some_commits(
    spark: SparkSession, tmp_path: Path
) -> None:
    table, maintenance = make(spark, tmp_path / "t", TablePolicy(small_files=8), 1 << 30)
    table.apply(upserts(range(100), 1))
    for at in range(2, 6):
        # Each file keeps one row.
        table.apply(upserts(range(at, 100), at))
    # It is compacted after four commits; the fifth adds a file.
    assert len(maintenance.reports) == 1 and len(files(table)) == 2


@pytest.mark.parametrize("way", ["index", "joins", "merge"])
def test_a_table_is_compacted_after_so_many_commits(spark: SparkSession, tmp_path: Path, way: str) -> None:
    table, maintenance = make(spark, tmp_path / "t", TablePolicy(commits=3), (way == "index") << 30)
    if way == "merge":
        use_merge(table)
    for at in range(7):
        table.apply(upserts([at], at))
        assert len(files(table)) <= 3, at
    assert [one.removed for one in maintenance.reports if isinstance(one, Compaction)] == [3, 4]
    assert len(table.select("id")) == 7


def test_a_table_whose_changes_need_a_merge_is_folded(spark: SparkSession, tmp_path: Path) -> None:
    table, maintenance = make(spark, tmp_path / "t", TablePolicy(small_files=4), 0)
    use_merge(table)
    for at in range(12):
        table.apply(upserts([at], at))
        assert len(files(table)) <= 5
    assert len(maintenance.reports) >= 2 and not [
        one for one in maintenance.reports if isinstance(one, Exception)
    ]
    assert len(table.select("id")) == 12


def test_a_compaction_that_fails_between_two_commits_keeps_the_first(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_BATCH_BYTES", 1)
    policy = TablePolicy(target_file_size=4, auto=False)
    table, _ = make(spark, tmp_path / "t", policy, 1 << 30)
    for at in range(2):
        table.apply(upserts(range(at * 10, at * 10 + 10), 1))
    table.apply([Change(20_000 + key, key, 2, "delete", "") for key in (*range(9), *range(10, 19))])
    rewrite, before = compaction._rewrite, files(table)
    calls: list[str] = []

    def fail_at_second(*args: Any) -> Any:
        calls.append("call")
        if len(calls) == 2:
            raise RuntimeError("Spark has ended")
        return rewrite(*args)

    monkeypatch.setattr(compaction, "_rewrite", fail_at_second)
    with pytest.raises(RuntimeError, match="Spark has ended"):
        compaction.compact_files(spark, locate(table.path), policy)
    assert len(set(files(table)) & set(before)) == 1
    # The next compaction rewrites only what is left.
    done = compaction.compact_files(spark, locate(table.path), policy)
    assert (done.removed, done.added) == (1, 1)
    assert sorted(table.select("id")) == [(9,), (19,)]
    # Delta's own OPTIMIZE commits by batch, too: here each partition.
    path = locate(tmp_path / "by_day")
    for _ in range(2):
        spark.sql("SELECT id, id AS day FROM range(2)").write.format("delta").mode("append").partitionBy(
            "day"
        ).save(str(path))
    assert compaction.compact_files(spark, path, TablePolicy()).removed == 4
    history = deltalake.DeltaTable(str(path)).history()
    assert [one["operation"] for one in history].count("OPTIMIZE") == 2
