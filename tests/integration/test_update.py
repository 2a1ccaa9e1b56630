"""An update: which flows and views are started, skipped and stopped, and who holds the leases."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from headrace.cli.main import run as cli
from headrace.errors import BrokerUnreachableError
from headrace.model.events import (
    BatchCommitted,
    FlowFailed,
    FlowRetrying,
    FlowSkipped,
    FlowStarted,
    LookFailed,
    ViewRefreshed,
    ViewSkipped,
)
from headrace.model.remedies import Remedies
from headrace.project.pipeline import Pipeline
from headrace.run import attempts, batch, flow, flows
from headrace.run.flows import UpdateFlows
from headrace.run.opening import FlowOpener
from headrace.run.stop import PlanAgain, StopSignal
from headrace.state.lease import Lease
from headrace.storage.local import LocalEntry, LocalFiles
from proof.shop import BRONZE, SILVER, Shop
from waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

MISSING = """
import headrace as hr

hr.create_streaming_table("raw")

@hr.append_flow(target="raw")
def missing():
    return hr.read_kafka("{topic}-missing").select("value")

@hr.temporary_view
def behind():
    return spark.readStream.table("raw")

@hr.table
def copied():
    return spark.readStream.table("behind")

@hr.materialized_view
def counted():
    return spark.read.table("raw").groupBy().count()

@hr.materialized_view
def counted_again():
    return spark.read.table("counted")
"""

SECOND_FLOW = """
@hr.append_flow(target="raw")
def present():
    return hr.read_kafka("{topic}").select("value")
"""


def count(shop: Shop, table: str) -> int:
    if shop.versions().get(table, -1) < 0:
        return -1
    return int(deltalake.DeltaTable(shop.table(table)).to_pyarrow_table().num_rows)


def test_what_reads_a_table_that_its_failed_flow_never_wrote_is_skipped(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.write(MISSING)
    command = ["--project", str(shop.root)]
    assert cli(["run", *command, "--json"]) == 1
    *lines, last = capsys.readouterr().out.strip().splitlines()
    result = json.loads(last)["result"]
    assert [(f["flow"], f["outcome"]) for f in result["flows"]] == [
        ("missing", "failed"),
        ("copied", "skipped"),
    ]
    assert [v["outcome"] for v in result["views"]] == ["skipped", "skipped"]
    reason = f"it reads {shop.database}.raw, which has no data: flow missing failed"
    assert result["flows"][1]["reason"] == result["views"][0]["reason"] == reason
    assert "which was skipped: flow missing failed" in result["views"][1]["reason"]
    events = [json.loads(line)["event"] for line in lines]
    assert (events.count("FlowSkipped"), events.count("ViewSkipped")) == (1, 2)
    assert set(shop.versions()) == {"raw", "copied"}, "no view was made"

    assert cli(["status", *command]) == 0
    shown = capsys.readouterr().out
    assert f"copied: skipped: {reason}" in shown
    assert f"counted: skipped: {reason}" in shown

    shop.write(MISSING, SECOND_FLOW)
    shop.produce(30)
    outcomes = {f.flow: f.outcome for f in shop.run().flows}
    assert outcomes == {"missing": "failed", "present": "up to date", "copied": "up to date"}
    assert (count(shop, "copied"), count(shop, "counted_again")) == (30, 1)

    # The table was written: what reads it takes its rows as they are.
    shop.write(MISSING, SECOND_FLOW.replace("{topic}", "{topic}-missing"))
    assert [v.outcome for v in shop.run().views] == ["up to date", "up to date"]


def test_a_continuous_run_starts_a_reader_once_its_table_is_written(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    opened, failures = FlowOpener.open, iter(range(2))

    def open_flow(opener: FlowOpener, *arguments: Any) -> Any:
        if opener.surveyor.planned.flow.name == "bronze" and next(failures, None) is not None:
            raise BrokerUnreachableError("the broker does not answer")
        return opened(opener, *arguments)

    monkeypatch.setattr(FlowOpener, "open", open_flow)
    with shop.running():
        until(lambda: bool(shop.happened(ViewRefreshed)), "the view is refreshed")
    names = [
        f"{type(event).__name__} {getattr(event, 'flow', '')}"
        for event in shop.events
        if isinstance(event, FlowRetrying | FlowStarted | BatchCommitted)
    ]
    assert names[:3] == ["FlowRetrying bronze", "FlowRetrying bronze", "FlowStarted bronze"]
    assert names.index("BatchCommitted bronze") < names.index("FlowStarted silver")
    refreshed = shop.happened(ViewRefreshed)
    assert all(event.rows > 0 for event in refreshed if isinstance(event, ViewRefreshed))
    shop.run_well()
    shop.check(silver=True)


def test_a_ledger_that_cannot_be_read_for_a_while_ends_no_flow(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flow goes on with its query; the ledger is written when the storage answers again."""
    monkeypatch.setattr(flow, "_FOLD_S", 0.1)
    monkeypatch.setattr(attempts, "_FIRST_WAIT_S", 0.05)
    is_away, entries = threading.Event(), LocalFiles.entries

    def meet(files: LocalFiles, folder: str) -> list[LocalEntry]:
        if is_away.is_set() and "/ledger/" in folder:
            raise OSError("503 Slow Down")
        return entries(files, folder)

    monkeypatch.setattr(LocalFiles, "entries", meet)
    shop.write(BRONZE)
    shop.produce(30)
    with shop.running():
        until(lambda: count(shop, "bronze") == 30, "the first records are there")
        is_away.set()
        until(lambda: len(shop.happened(LookFailed)) >= 3, "the ledger is asked again and again")
        shop.produce(30)
        until(lambda: count(shop, "bronze") == 60, "the flow goes on")
        is_away.clear()
    assert not shop.happened(FlowFailed) and not shop.happened(FlowRetrying)
    assert len(shop.happened(FlowStarted)) == 1, "with the same query"
    assert not spark.streams.active
    shop.run_well()
    shop.check()


def test_a_lease_that_cannot_be_released_at_once_ends_no_update(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, failures = Lease.release, iter(range(1))

    def fail_once(lease: Lease) -> None:
        if next(failures, None) is not None:
            raise PermissionError("503 Slow Down")
        release(lease)

    monkeypatch.setattr(Lease, "release", fail_once)
    shop.write(BRONZE)
    shop.produce(30)
    assert shop.run().outcome == "completed"
    assert next(failures, None) is None, "one release has failed"
    assert shop.run().outcome == "completed", "the lease was released later"


def test_a_query_ends_with_its_flow(shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(flow.LateRows, "look", fail)
    shop.write(BRONZE)
    shop.produce(30)
    with shop.running():
        until(lambda: bool(shop.happened(FlowFailed)), "the flow fails")
        until(lambda: not spark.streams.active, "its query is stopped")


def test_a_continuous_run_skips_what_reads_a_table_that_is_never_written(shop: Shop) -> None:
    shop.write(
        MISSING, SECOND_FLOW.replace('target="raw"', 'target="fed"') + '\nhr.create_streaming_table("fed")\n'
    )
    with shop.running():
        until(lambda: len(shop.happened(ViewSkipped)) == 2, "both views are skipped")
        shop.produce(30)
        until(lambda: count(shop, "fed") == 30, "the other flow goes on")
    assert [event.flow for event in shop.happened(FlowSkipped) if isinstance(event, FlowSkipped)] == [
        "copied"
    ]
    assert len(shop.happened(ViewSkipped)) == 2
    assert set(shop.versions()) == {"raw", "copied", "fed"}


def test_a_continuous_run_starts_readers_of_a_table_whose_flow_finds_nothing(shop: Shop) -> None:
    shop.write(BRONZE, SILVER)
    with shop.running():
        until(lambda: bool(shop.happened(FlowStarted, flow="silver")), "silver waits for its rows")
        shop.produce(30)
        until(lambda: count(shop, "silver") == 30, "they arrive")


def test_of_two_first_runs_at_once_one_is_refused_before_a_table_is_made(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    opened, second = flows.open_table, []

    def open_table(*arguments: Any) -> None:
        if not second:
            second.append(None)
            second[0] = shop.run()
            assert shop.versions() == {}
        opened(*arguments)

    monkeypatch.setattr(flows, "open_table", open_table)
    shop.run_well()
    (result,) = second
    assert [(f.outcome, f.error.code) for f in result.flows] == [("failed", "SECOND_DRIVER")] * 2
    assert [view.outcome for view in result.views] == ["skipped"]
    shop.check(silver=True)


OTHER = """
@hr.table
def other():
    return hr.read_kafka("{topic}").select("value"){more}
"""


def test_one_flow_is_stopped_started_and_planned_again_while_another_goes_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(more: str = "") -> None:
        shop.write(BRONZE, OTHER.replace("{more}", more))

    write()
    shop.produce(30)
    checked, again = batch.check_gate, iter([PlanAgain()])

    def check_gate(flow: str, *arguments: Any) -> None:
        if flow == "other" and (error := next(again, None)):
            write('.selectExpr("value", "1 AS more")')
            raise error
        checked(flow, *arguments)

    stop = StopSignal()
    with Pipeline.load(shop.root) as pipeline:
        engine = pipeline._engine
        settings, plan = engine.reach()
        context = engine.context(
            settings, plan, "update", shop.events.append, stop, Remedies(), continuous=True
        )
        try:
            with UpdateFlows(plan, context) as update:
                assert not update.open()
                update.start("bronze", "other")
                until(lambda: (count(shop, "bronze"), count(shop, "other")) == (30, 30), "both read")
                update.stop("bronze")
                until(lambda: update.result("bronze") is not None, "one is stopped")
                shop.produce(30)
                until(lambda: count(shop, "other") == 60, "the other goes on")
                assert (count(shop, "bronze"), update.state("bronze")) == (30, "pending")
                update.start("bronze")
                until(lambda: count(shop, "bronze") == 60, "it goes on where it was stopped")

                monkeypatch.setattr(batch, "check_gate", check_gate)
                shop.produce(30)
                until(lambda: count(shop, "other") == 90, "the batch is replayed with the new plan")
                stop.request()
                update.wait()
        finally:
            context.close()
    assert not shop.happened(FlowFailed)
    rows = deltalake.DeltaTable(shop.table("other")).to_pyarrow_table().to_pylist()
    assert sorted(row["more"] or 0 for row in rows) == [0] * 60 + [1] * 30
    shop.check()
    shop.verify()
