"""A batch's transaction begins at the newest version of its table, whoever has written it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from headrace.sinks.delta import commit
from headrace.sinks.delta.arrow_files import merge_files
from headrace.sinks.delta.commit import commit_generation
from headrace.sinks.delta.data_files import find_files, table_bytes
from headrace.sinks.delta.table import delta_log, forget_snapshot, newest_snapshot
from headrace.sinks.delta.transaction import held_batch, iterate, start_transaction
from headrace.sinks.target import OpenedGeneration
from headrace.state.facts import Open
from headrace.storage.layout import locate
from headrace.storage.table_log import commit_file, newest_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT = "c"


class Lake:
    """A table that other processes write to. `known`: the version that Delta in this JVM has read last."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark, self.path, self.table = spark, path, locate(path)

    def append(self, column: str = "id", batch: int | None = None) -> None:
        """Commit a row as another process does, one with a transaction id if it has a batch."""
        ids = None if batch is None else [Transaction(CHECKPOINT, batch)]
        properties = CommitProperties(app_transactions=ids)
        write_deltalake(self.path, pa.table({column: [1]}), mode="append", commit_properties=properties)

    def begin(self) -> tuple[int, int]:
        """The version at which a transaction begins, and the last batch that it knows."""
        transaction = start_transaction(self.spark, self.table, CHECKPOINT)
        return int(transaction.readVersion()), held_batch(transaction, CHECKPOINT, self.table)

    @property
    def known(self) -> int:
        return int(delta_log(self.spark, self.table).unsafeVolatileSnapshot().version())

    @property
    def commits(self) -> list[int]:
        """The versions after the checkpoint of Delta's snapshot, which Delta reads one by one."""
        segment = delta_log(self.spark, self.table).unsafeVolatileSnapshot().logSegment()
        return [int(one.getPath().getName()[:20]) for one in iterate(segment.deltas())]

    @property
    def columns(self) -> str:
        return str(start_transaction(self.spark, self.table, CHECKPOINT).metadata().schemaString())


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    found = Lake(spark, tmp_path / "lake")
    found.append(batch=3)
    assert found.begin() == (0, 3)
    return found


def test_a_transaction_begins_at_the_commit_of_another_process(lake: Lake) -> None:
    lake.append()
    assert lake.known == 0
    assert lake.begin() == (1, 3)
    lake.append(batch=4)
    lake.append()
    assert lake.begin() == (3, 4)
    assert lake.begin() == (3, 4)


def test_a_transaction_begins_at_the_newest_version_of_a_log_that_was_cleaned(lake: Lake) -> None:
    for batch in (4, 5, 6):
        lake.append(batch=batch)
    DeltaTable(lake.path).create_checkpoint()
    for version in (0, 1, 2):
        commit_file(lake.table, version).delete()
    assert lake.known == 0
    assert lake.begin() == (3, 6)


def test_a_table_that_was_created_again_is_read_anew(lake: Lake) -> None:
    lake.append()
    assert lake.begin() == (1, 3)
    shutil.rmtree(lake.path)
    lake.append("other", batch=7)
    lake.append("other", batch=8)
    assert newest_version(lake.table) == lake.known == 1
    assert '"other"' in lake.columns
    assert lake.begin() == (1, 8)


def test_a_transaction_begins_at_the_newest_checkpoint(lake: Lake) -> None:
    """Else Delta keeps the commits before it, even after they were cleaned out of the log."""
    for batch in (4, 5, 6):
        lake.append(batch=batch)
    assert lake.begin() == (3, 6)
    assert lake.commits == [0, 1, 2, 3]
    DeltaTable(lake.path).create_checkpoint()
    assert lake.begin() == (3, 6)
    assert lake.commits == []


def test_a_transaction_lists_no_log_that_has_not_changed(lake: Lake) -> None:
    """Delta refuses a log with a gap when it lists it."""
    commit_file(lake.table, 9).add(commit_file(lake.table, 0).read_bytes())
    assert lake.begin() == (0, 3)
    with pytest.raises(Exception, match="DELTA_VERSIONS_NOT_CONTIGUOUS"):
        newest_snapshot(lake.spark, lake.table)


def in_new_thread(call: Callable[[], Any]) -> Any:
    """The result of a call in a thread without an active session of Spark, as those of flows."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def write_meanwhile(lake: Lake) -> None:
    """Commit as another process does that also writes Delta's checkpoint."""
    lake.append()
    DeltaTable(lake.path).create_checkpoint()
    lake.append()


def test_a_checkpoint_is_opened_beside_the_commits_of_another_process(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "check_opening", lambda *_: write_meanwhile(lake))
    opening = Open(reason="first")
    opened = OpenedGeneration(pipeline="shop", flow="sales", checkpoint="ours", generation=1, opening=opening)
    assert in_new_thread(lambda: commit_generation(lake.spark, lake.table, opened)) == 3


def test_files_are_merged_beside_the_commits_of_another_process(lake: Lake) -> None:
    lake.append()
    snapshot = newest_snapshot(lake.spark, lake.table)
    files = find_files(lake.spark, lake.table, snapshot)
    write_meanwhile(lake)
    assert in_new_thread(lambda: merge_files(lake.spark, lake.table, snapshot, files)) is not None
    assert newest_version(lake.table) == 4
    assert lake.spark.read.format("delta").load(str(lake.path)).count() == 4


@pytest.mark.parametrize("checksum", [None, "", "{", "{}"], ids=["missing", "empty", "damaged", "partial"])
def test_the_size_of_a_table_needs_no_job_of_spark(lake: Lake, checksum: str | None) -> None:
    lake.spark.range(5).write.format("delta").save(str(lake.path.with_name("sized")))
    sized = locate(lake.path.with_name("sized"))
    snapshot = newest_snapshot(lake.spark, sized)
    expected = int(snapshot.sizeInBytes())
    file = Path(str(sized)) / "_delta_log" / f"{0:020d}.crc"
    file.unlink()
    if checksum is not None:
        file.write_text(checksum)
    group, context = f"size-{checksum}", lake.spark.sparkContext
    context.setJobGroup(group, "the size of a table")
    try:
        assert table_bytes(lake.spark, sized, 0, lambda: snapshot) == expected > 0
        assert not context.statusTracker().getJobIdsForGroup(group)
        forget_snapshot(lake.spark, sized)
        assert int(newest_snapshot(lake.spark, sized).sizeInBytes()) == expected
        assert context.statusTracker().getJobIdsForGroup(group)
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
