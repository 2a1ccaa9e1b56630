"""A writer that stands still while the log is cleaned: Delta accepts its commit, but the table lacks it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.targets.conftest import HARNESSES, FlowHarness, Harness
from headrace.errors import CommitLostError
from headrace.sinks.delta.table import delta_log
from headrace.storage.layout import locate
from headrace.storage.table_log import commit_file, versions
from waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ONE, TWO, THREE = [(1, "a")], [(2, "b")], [(3, "c")]
OLD_S = 90 * 24 * 3600


def clean_log(harness: Harness, commits: int = 3) -> int:
    """Let another process commit, write a checkpoint and clean the log; returns the version before."""
    read = max(versions(locate(harness.path)))
    # Delta keeps one handle for each path of a table, so this is another process's.
    alias = harness.path.with_name("alias")
    if not alias.exists():
        alias.symlink_to(harness.path)
    for number in range(commits):
        harness.spark.sql(f"ALTER TABLE delta.`{alias}` SET TBLPROPERTIES ('other' = '{read}-{number}')")
    log = delta_log(harness.spark, locate(alias))
    jvm: Any = harness.spark._jvm
    none = jvm.scala.Option.empty()
    newest = log.update(False, none, none)
    before = time.time() - OLD_S
    for file in (harness.path / "_delta_log").glob("*.*"):
        if file.name[:20].isdigit() and int(file.name[:20]) < read + commits:
            os.utime(file, (before, before))
    log.checkpointAndCleanUpDeltaLog(newest, none)
    assert not commit_file(locate(harness.path), read + 1).exists(), "the log was cleaned"
    return read


@pytest.mark.parametrize("name", ["append", "merge", "merge, by an index", "replace"])
def test_a_commit_that_the_log_has_passed_has_not_happened(name: str, spark: Any, tmp_path: Path) -> None:
    harness = HARNESSES[name](spark, tmp_path / "table")
    harness.write(0, *ONE)
    writer = harness.begin(1)
    assert writer is not None
    with writer, pytest.raises(CommitLostError) as caught:
        writer.write(harness.split(*TWO))
        read = clean_log(harness)
        writer.commit()
    assert caught.value.transient and caught.value.params["version"] == read + 1, "Delta has written it again"
    assert harness.rows == harness.visible(ONE)
    if isinstance(harness, FlowHarness):
        assert not commit_file(locate(harness.path), read + 1).exists()
        assert harness.state.transactions[harness.checkpoint] == 0
    committed = harness.write(1, *TWO)
    assert committed is not None and committed.version > read + 3
    assert harness.rows == harness.visible(ONE, TWO)
    assert harness.write(2, *THREE) is not None
    assert harness.rows == harness.visible(ONE, TWO, THREE)


@pytest.mark.parametrize("name", ["append, public writer", "replace"])
def test_a_statement_of_delta_that_the_log_has_passed_has_not_happened(
    name: str, spark: Any, tmp_path: Path
) -> None:
    harness = HARNESSES[name](spark, tmp_path / "table")
    if name == "append, public writer":
        harness.write(0, *ONE)
    else:
        spark.sql(f"CREATE TABLE delta.`{harness.path}` (id BIGINT, name STRING) USING delta")
    batch = 1 if isinstance(harness, FlowHarness) else 0
    writer = harness.begin(batch)
    assert writer is not None
    split = harness.split(*TWO)
    split.accepted = slow = waiting(split.accepted, tmp_path)
    with writer, pytest.raises(CommitLostError):
        writer.write(split)
        slow.unpersist()
        with cleaning(harness, tmp_path):
            writer.commit()
    assert harness.rows == (ONE if batch else [])
    assert harness.write(batch, *TWO) is not None
    assert harness.rows == (ONE + TWO if batch else TWO)


def waiting(rows: DataFrame, folder: Path) -> DataFrame:
    """Rows whose computation stands still while the folder has a file ``stop``."""

    def wait(name: str) -> str:
        if (folder / "stop").exists():
            (folder / "stopped").touch()
            # A worker of Spark has none of the tests' modules.
            while not (folder / "go").exists():
                time.sleep(0.05)
        return name

    from pyspark.sql import functions as F

    return rows.withColumn("name", F.udf(wait, "string", useArrow=False)("name"))


@contextmanager
def cleaning(harness: Harness, folder: Path) -> Iterator[None]:
    """Clean the log while the block computes rows, and check that it does."""
    (folder / "stop").touch()
    failed: list[BaseException] = []

    def clean() -> None:
        try:
            until((folder / "stopped").exists, "the rows are computed")
            clean_log(harness)
        except BaseException as error:
            failed.append(error)
        (folder / "stop").unlink()
        (folder / "go").touch()

    thread = threading.Thread(target=clean)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        assert not failed, failed
