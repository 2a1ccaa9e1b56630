"""A full refresh, a reset or a rename that ends at any step counts no row twice, and hides none."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.errors import BatchFencedError, HeadraceError
from headrace.project.pipeline import Pipeline
from headrace.run.failpoints import FAIL_VARIABLE
from headrace.sinks.delta.commit import commit_quarantine
from headrace.sinks.delta.quarantine import QuarantineTable
from headrace.sinks.delta.transaction import start_transaction, write_files
from headrace.sinks.target import BatchStamp
from headrace.storage.layout import locate
from headrace.storage.table_log import newest_version
from proof.shop import Shop, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.usefixtures("spark")

CHANGES = """
import headrace as hr

@hr.temporary_view
def changes():
    return hr.read_kafka("{topic}", format="json", schema="id LONG, sequence LONG, op STRING")

hr.create_streaming_table("current")
hr.create_auto_cdc_flow(
    "current", "changes", ["id"], "sequence", apply_as_deletes="op = 'delete' AND id > KEPT"
)
"""
EVEN = """
import headrace as hr

hr.create_streaming_table("orders", expect_all_or_quarantine={"even": "id % 2 = 0"})

@hr.append_flow(target="orders", name="FLOW")
def read():
    return hr.read_kafka("{topic}", format="json", schema="id LONG")
"""


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv(FAIL_VARIABLE, raising=False)
    return monkeypatch


def produce(shop: Shop, *values: dict[str, object]) -> None:
    shop.ledger.produce_values(shop.topic, [(json.dumps(value).encode(), 0) for value in values])


def test_a_full_refresh_that_ends_at_any_step_leaves_no_tombstone_that_hides_a_row(
    shop: Shop, fail_at: pytest.MonkeyPatch
) -> None:
    """Each query deletes a key less than the one before, so old tombstones would hide the key."""
    points = ["generation-opened", "tombstones-dropped"]
    for id in range(1, 5):
        produce(shop, {"id": id, "sequence": 1, "op": "insert"}, {"id": id, "sequence": 5, "op": "delete"})
    shop.write(CHANGES.replace("KEPT", "0"))
    shop.run_well()
    assert rows(shop, f"tables/{shop.database}/current") == []
    for kept, point in enumerate(points, 1):
        shop.write(CHANGES.replace("KEPT", str(kept)))
        fail_at.setenv(FAIL_VARIABLE, f"current/{point}:0")
        with Pipeline.load(shop.root) as pipeline, pytest.raises(HeadraceError, match=point):
            pipeline.full_refresh(["current"])
        assert FAIL_VARIABLE not in os.environ, "the refresh has come to this step"
        shop.run_well()
        found = sorted(row["id"] for row in rows(shop, f"tables/{shop.database}/current"))
        assert found == list(range(1, kept + 1)), point
    shop.verify()
    # A table that somebody has removed leaves its tombstones behind, too.
    shutil.rmtree(shop.table("current"))
    shop.write(CHANGES.replace("KEPT", "3"))
    with Pipeline.load(shop.root) as pipeline:
        pipeline.full_refresh(["current"])
    assert sorted(row["id"] for row in rows(shop, f"tables/{shop.database}/current")) == [1, 2, 3]


def leave_pending(shop: Shop, fail_at: pytest.MonkeyPatch) -> None:
    """End a run between the commit of a batch's rejected rows and the commit of the batch."""
    produce(shop, *({"id": id} for id in range(6)))
    shop.run_well()
    produce(shop, *({"id": id} for id in range(6, 10)))
    fail_at.setenv(FAIL_VARIABLE, "before-commit:1")
    assert [error.code for error in shop.run().errors] == ["FLOW_FAILED"]
    assert rejected(shop) == [1, 3, 5, 7, 9], "the rejected rows of batch 1 are pending"


def rejected(shop: Shop) -> list[int]:
    held = rows(shop, f"quarantine/{shop.database}/orders")
    return sorted(json.loads(row["row"])["id"] for row in held)


def accepted(shop: Shop) -> list[int]:
    return sorted(row["id"] for row in rows(shop, f"tables/{shop.database}/orders"))


@pytest.mark.parametrize("point", ["generation-opened", "rows-fenced"])
def test_a_reset_that_ends_at_any_step_doubles_no_rejected_row(
    shop: Shop, fail_at: pytest.MonkeyPatch, point: str
) -> None:
    shop.write(EVEN.replace("FLOW", "orders"))
    leave_pending(shop, fail_at)
    fail_at.setenv(FAIL_VARIABLE, f"orders/{point}:0")
    assert [error.code for error in shop.run(reset="orders").errors] == ["FLOW_FAILED"]
    assert FAIL_VARIABLE not in os.environ
    shop.run_well()
    assert (accepted(shop), rejected(shop)) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])
    shop.verify()


@pytest.mark.parametrize("point", ["flow-renamed", "checkpoints-copied"])
def test_a_rename_that_ends_at_any_step_doubles_no_rejected_row(
    shop: Shop, fail_at: pytest.MonkeyPatch, point: str
) -> None:
    shop.write(EVEN.replace("FLOW", "old"))
    leave_pending(shop, fail_at)
    shop.write(EVEN.replace("FLOW", "new"))
    fail_at.setenv(FAIL_VARIABLE, f"new/{point}:0")
    assert [error.code for error in shop.run(rename_flow={"new": "old"}).errors] == ["FLOW_FAILED"]
    assert FAIL_VARIABLE not in os.environ
    shop.run_well(rename_flow={"new": "old"})
    assert (accepted(shop), rejected(shop)) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])
    shop.verify()


def test_a_replaced_checkpoint_adds_nothing_to_the_tables_beside_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = "id INT, flow STRING, checkpoint STRING, batch INT"
    side = QuarantineTable(path=locate(tmp_path / "side"), columns=columns)

    def stamp(batch: int) -> BatchStamp:
        return BatchStamp(pipeline="shop", flow="f", checkpoint="c", batch=batch, ranges=())

    def batch_rows(batch: int) -> DataFrame:
        return spark.createDataFrame([(batch, "f", "c", batch)], columns)

    def held() -> list[int]:
        return sorted(row["id"] for row in spark.read.format("delta").load(str(side.path)).collect())

    side.fence(spark, "c", 0)
    assert not side.exists(spark)
    for batch in (0, 1):
        side.write(spark, batch_rows(batch), stamp(batch), lambda: None)
    # A process stalls between its write and its commit, while another one takes its flow over.
    transaction = start_transaction(spark, side.path, "c")
    files = write_files(transaction, batch_rows(2))
    side.fence(spark, "c", 0)
    assert held() == [0]
    with pytest.raises(BatchFencedError):
        commit_quarantine(spark, transaction, files, stamp(2))
    with pytest.raises(BatchFencedError):
        side.write(spark, batch_rows(2), stamp(2), lambda: None)
    version = newest_version(side.path)
    side.fence(spark, "c", 0)
    assert (held(), newest_version(side.path)) == ([0], version), "it is fenced once"
