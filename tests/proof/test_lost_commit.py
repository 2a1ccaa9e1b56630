"""A driver that stands still between its snapshot and its commit, while the table's log is cleaned."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from headrace.model.events import FlowRetrying
from headrace.run.failpoints import VARIABLE
from headrace.sinks.delta import commit
from headrace.storage.layout import locate
from headrace.storage.table_log import commit_file
from proof.shop import Shop
from waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")


def clean_log(table: Path) -> None:
    """Another process commits, writes a checkpoint and removes the commits before it."""
    for number in range(3):
        deltalake.DeltaTable(table).alter.set_table_properties(
            {"somebody": str(number)}, raise_if_not_exists=False
        )
    newest = deltalake.DeltaTable(table)
    newest.create_checkpoint()
    for file in (table / "_delta_log").glob("*"):
        if file.name.lstrip(".")[:20].isdigit() and int(file.name.lstrip(".")[:20]) < newest.version():
            file.unlink()


def run_beside_a_cleanup(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run, and clean the log before the commit of batch 1; returns the version that it has read."""
    marker = shop.root / "before-commit"
    monkeypatch.setenv(VARIABLE, f"before-commit:1:{shop.root}")
    thread = threading.Thread(target=shop.run_well)
    thread.start()
    until(marker.exists, "the driver holds still before its commit")
    read = shop.versions()["bronze"]
    clean_log(shop.table("bronze"))
    monkeypatch.delenv(VARIABLE)
    marker.unlink()
    thread.join()
    return read


@pytest.mark.guarantee
def test_a_commit_that_the_log_has_passed_is_made_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.produce(30)
    shop.run_well()
    shop.produce(30)
    read = run_beside_a_cleanup(shop, monkeypatch)
    (retried,) = shop.happened(FlowRetrying)
    assert isinstance(retried, FlowRetrying)
    assert retried.error["code"] == "COMMIT_LOST" and retried.error["params"]["version"] == read + 1
    assert shop.versions()["bronze"] == read + 4
    shop.check()
    shop.produce(10)
    shop.run_well()
    shop.check()


def test_a_reset_reads_a_batch_again_that_an_older_version_has_lost(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That version did not look whether the table holds its commit."""
    shop.produce(30)
    shop.run_well()
    shop.produce(30)
    with monkeypatch.context() as patch:
        patch.setattr(commit, "confirm_batch", lambda spark, table, known, version, stamp: version)
        lost = run_beside_a_cleanup(shop, monkeypatch) + 1
    assert commit_file(locate(shop.table("bronze")), lost).exists()
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    shop.produce(10)
    assert shop.refused().code == "TABLE_BEHIND_CHECKPOINT"
    shop.run_well(reset="bronze")
    shop.check()
