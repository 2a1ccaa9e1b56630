"""What every target promises when its checkpoint is replaced: the old one commits nothing any more."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.targets.conftest import HARNESSES, FlowHarness
from headrace.errors import BatchFencedError, CheckpointBehindTableError, TableBehindCheckpointError
from headrace.model.names import OPERATION, SEQUENCE
from headrace.sinks.delta.tombstones import HiddenEvents
from headrace.sinks.target import BatchStamp
from headrace.state.facts import FENCED, Open
from headrace.storage.layout import locate
from headrace.storage.table_log import is_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

ONE, TWO = [(1, "a"), (2, "b")], [(3, "c")]
NEW = "headrace-new"


def open_new(flow: FlowHarness, **more: Any) -> int:
    """Replace the checkpoint that feeds the target."""
    opening = Open(reason="reset", fences=flow.checkpoint)
    return flow.open(NEW, opening, replaces=flow.checkpoint, **more)


def test_a_new_generation_fences_the_old_one(flow: FlowHarness) -> None:
    flow.open(flow.checkpoint, Open(reason="first"))
    flow.write(0, *ONE)
    open_new(flow)
    assert flow.state.checkpoints == {"sales": NEW}
    assert flow.state.transactions == {flow.checkpoint: FENCED}
    for batch in range(3):
        with pytest.raises(CheckpointBehindTableError):
            flow.write(batch, (9, "z"))
    flow.checkpoint = NEW
    assert flow.write(0, *TWO) is not None
    assert flow.rows == flow.visible(ONE, TWO)


def test_a_new_generation_fences_a_batch_under_way(flow: FlowHarness) -> None:
    flow.open(flow.checkpoint, Open(reason="first"))
    writer = flow.begin(0)
    assert writer is not None
    with writer:
        writer.write(flow.split(*ONE))
        open_new(flow)
        # Delta may notice first that the table's metadata has changed.
        with pytest.raises(Exception, match=r"another driver|METADATA_CHANGED"):
            writer.commit()
    assert flow.rows == []


@pytest.mark.parametrize("name", ["merge", "merge, by an index"])
@pytest.mark.parametrize("new_deletes", [False, True])
def test_a_batch_that_stalls_before_its_first_tombstone_leaves_none_to_the_new_generation(
    spark: SparkSession, tmp_path: Path, name: str, new_deletes: bool
) -> None:
    flow = HARNESSES[name](spark, tmp_path / "table")
    assert isinstance(flow, FlowHarness)
    flow.open(flow.checkpoint, Open(reason="first"))
    flow.write(0, *ONE)
    writer = flow.begin(1)
    assert writer is not None
    with writer:
        writer.write(flow.split((9, "gone")))
        # There is no tombstone yet, so the new generation has no table to fence the old one in.
        open_new(flow)
        flow.checkpoint = NEW
        if new_deletes:
            flow.write(0, (8, "gone"))
        with pytest.raises(BatchFencedError):
            writer.commit()
    folder = tmp_path / "deleted"
    kept = spark.read.format("delta").load(str(folder)).collect() if is_table(locate(folder)) else []
    assert [(row["checkpoint"], row["key_1"]) for row in kept] == ([(NEW, 8)] if new_deletes else [])
    assert flow.write(int(new_deletes), (9, "late")) is not None
    assert (9, "late") in flow.rows


def test_a_replaced_checkpoint_does_not_change_the_columns_of_hidden_events(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = HiddenEvents(path=locate(tmp_path / "hidden"), keys=("id",))

    def write(checkpoint: str, column: str, check: Callable[[], object]) -> None:
        changes = spark.createDataFrame(
            [(1, "x", 5, "delete")], f"id INT, {column} STRING, {SEQUENCE} BIGINT, {OPERATION} STRING"
        )
        stamp = BatchStamp(pipeline="shop", flow="sales", checkpoint=checkpoint, batch=0, ranges=())
        events.write(spark, changes, stamp, 1, check)

    def refuse() -> None:
        raise BatchFencedError("the checkpoint was replaced")

    write(NEW, "name", lambda: None)
    with pytest.raises(BatchFencedError):
        write("headrace-ours", "old_name", refuse)
    (kept,) = spark.read.format("delta").load(str(tmp_path / "hidden")).collect()
    assert (kept["checkpoint"], kept["row"].asDict()) == (NEW, {"id": 1, "name": "x"})


def test_of_two_openings_only_one_succeeds(flow: FlowHarness) -> None:
    flow.open(flow.checkpoint, Open(reason="first"))
    open_new(flow)
    before = flow.commits
    with pytest.raises(BatchFencedError):
        open_new(flow)
    with pytest.raises(BatchFencedError):
        flow.open("headrace-other", Open(reason="first"))
    assert flow.commits == before


def test_an_opening_is_refused_if_the_old_checkpoint_has_committed_since(flow: FlowHarness) -> None:
    """A driver that stood still commits a batch between the survey and the opening."""
    flow.open(flow.checkpoint, Open(reason="first"))
    flow.write(0, *ONE)
    flow.write(1, *TWO)
    before = flow.commits
    with pytest.raises(BatchFencedError) as caught:
        open_new(flow, fenced_at=0)
    assert (caught.value.params["found"], flow.commits) == (1, before)
    open_new(flow, fenced_at=1)
    assert flow.state.transactions == {flow.checkpoint: FENCED}


def test_an_opening_passes_over_commits_of_others(table: FlowHarness) -> None:
    table.open(table.checkpoint, Open(reason="first"))
    table.write(0, *ONE)
    table.spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('foreign' = 'x')")
    open_new(table, fenced_at=0)
    assert table.state.transactions == {table.checkpoint: FENCED}


def test_a_full_refresh_removes_all_rows_in_the_commit_that_opens_it(flow: FlowHarness) -> None:
    flow.open(flow.checkpoint, Open(reason="first"))
    flow.write(0, *ONE)
    before = flow.commits
    opening = Open(reason="full-refresh", fences=flow.checkpoint)
    flow.open(NEW, opening, clear=True, replaces=flow.checkpoint)
    assert (flow.commits, flow.rows) == (before + 1, ONE if flow.keeps_rows else [])


def test_a_seeded_generation_holds_its_batch_0(flow: FlowHarness) -> None:
    flow.open(flow.checkpoint, Open(reason="first"))
    flow.write(0, *ONE)
    flow.checkpoint = NEW
    seeded = flow.stamp(0).ranges
    opening = Open(reason="reset", positions={0: seeded[0].until}, fences=type(flow).checkpoint)
    flow.open(NEW, opening, ranges=seeded, replaces=type(flow).checkpoint)
    assert flow.state.transactions[NEW] == 0
    assert flow.write(0, *TWO) is None
    assert flow.write(1, *TWO) is not None
    assert flow.rows == flow.visible(ONE, TWO)


def test_a_table_with_many_transaction_ids_is_not_computed_for_a_batch(table: FlowHarness) -> None:
    """Delta's checksums carry no transactions where a table has more than 100 ids."""
    table.open(table.checkpoint, Open(reason="first"))
    table.write(0, *ONE)
    log = table.path / "_delta_log"
    version = max(int(file.stem) for file in log.glob("*.json")) + 1
    ids = [json.dumps({"txn": {"appId": f"other-{number}", "version": 1}}) for number in range(150)]
    info = json.dumps({"commitInfo": {"timestamp": int(time.time() * 1000), "operation": "WRITE"}})
    (log / f"{version:020d}.json").write_text("\n".join([info, *ids]))
    table.write(1, *TWO)
    checksum = json.loads((log / f"{table.commits - 1:020d}.crc").read_text())
    assert "setTransactions" not in checksum
    context = table.spark.sparkContext
    context.setJobGroup("begins", "a batch begins")
    try:
        assert table.begin(1) is None, "the table holds it"
        writer = table.begin(2)
        assert writer is not None
        with pytest.raises(TableBehindCheckpointError):
            table.begin(3)
        assert list(context.statusTracker().getJobIdsForGroup("begins")) == []
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    open_new(table)
    with pytest.raises(CheckpointBehindTableError) as caught:
        table.begin(2)
    assert caught.value.params["held"] == FENCED
