"""How a pipeline stands, from what is on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lake import HandFlow, Lake, LakeTable, rows

from headrace.errors import BrokerUnreachableError
from headrace.model.event_forms import Event
from headrace.model.events import (
    BatchCommitted,
    FlowFailed,
    FlowFinished,
    FlowReconnected,
    FlowReconnecting,
    FlowRetrying,
    FlowStarted,
    UpdateStarted,
    ViewFailed,
)
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.names import TableName
from headrace.observe.event_log import EventLog
from headrace.observe.snapshot import Snapshot, take_snapshot
from headrace.observe.status import DatasetStatus, FlowStatus
from headrace.sources.kafka import clusters
from headrace.state.lease import EXPIRES_VARIABLE, HEARTBEATS, Heart

BRONZE = TableName("default", "bronze")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    # Its event log is a Delta table, which `deltalake` writes by its path.
    return Lake(tmp_path / "lake")


@pytest.fixture
def flow(lake: Lake) -> HandFlow:
    return lake.table().flow()


def look(lake: Lake) -> Snapshot:
    return take_snapshot(replace(lake.settings, kafka=lake.nowhere), lake.nowhere.bootstrap_servers)


def dataset(lake: Lake, name: str = "bronze") -> DatasetStatus:
    return next(one for one in look(lake).datasets if one.dataset.name == name)


def status(lake: Lake, name: str = "bronze") -> FlowStatus:
    (found,) = dataset(lake, name).flows
    return found


def fail(lake: Lake, update: str, *events: Event) -> None:
    with EventLog(lake.settings.storage, "shop", update) as log:
        began = min(event.at for event in events)
        log(UpdateStarted(update=update, at=began, pipeline="shop", mode="triggered", flows=(), views=()))
        for event in events:
            log(event)


def write_lease(lake: Lake, flow: str = "bronze", beaten_s: float = 0.0, **changes: Any) -> None:
    """A lease of this process, whose last heartbeat is so old."""
    path = lake.settings.storage.lease(BRONZE, flow)
    heart = Heart()
    heart.acquire(path, flow)
    heart._stop.set()
    path.replace_json(path.read_json() | changes)
    beat = path.parent / HEARTBEATS / f"{path.read_json()['process']}.json"
    beat.replace_json({"beat": 7, "monotonic": time.monotonic() - beaten_s})


class HandCluster:
    """Stands for the broker: the ends of its topics."""

    def __init__(self, ends: Mapping[str, Mapping[int, int]] | None) -> None:
        self.ends = ends

    def close(self) -> None:
        """Nothing is open."""

    def __call__(self, connection: KafkaConnection, timeout_s: float, **_: bool) -> HandCluster:
        return self

    def latest(self, topics: Any) -> Any:
        if self.ends is None:
            raise BrokerUnreachableError("no Kafka broker answers")
        return {topic: self.ends[topic] for topic in topics}


def holds(monkeypatch: pytest.MonkeyPatch, ends: Mapping[str, Mapping[int, int]] | None) -> None:
    monkeypatch.setattr(clusters, "KafkaCluster", HandCluster(ends))


def test_what_a_dataset_holds(lake: Lake, flow: HandFlow) -> None:
    flow.append({0: (0, 10)})
    flow.append({0: (10, 20)})
    found = dataset(lake)
    assert (found.version, found.rows, found.files) == (3, 20, 2)
    freshness = found.freshness_s(look(lake).at)
    assert freshness is not None
    assert 0 <= freshness < 60
    (one,) = found.flows
    assert (one.flow, one.batch, one.version, one.state) == ("bronze", 1, 3, "unknown")


def test_rows_are_those_that_deletion_vectors_leave(lake: Lake, flow: HandFlow) -> None:
    flow.append({0: (0, 10)})
    flow.table.delete([1, 2, 3], flow.table.active()[0])
    assert dataset(lake).rows == 7


def test_a_flow_before_its_first_batch_is_new(lake: Lake, flow: HandFlow) -> None:
    assert (status(lake).state, status(lake).batch) == ("new", None)


def test_an_empty_storage(lake: Lake) -> None:
    assert look(lake).datasets == ()


class TestLag:
    def test_is_what_the_topic_holds_beyond_the_last_batch(
        self, lake: Lake, flow: HandFlow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flow.append({0: (0, 10), 1: (0, 5)})
        holds(monkeypatch, {"sales": {0: 12, 1: 5, 2: 7}})
        assert status(lake).lag == 9

    def test_is_unknown_without_a_broker(
        self, lake: Lake, flow: HandFlow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flow.append({0: (0, 10)})
        holds(monkeypatch, None)
        assert status(lake).lag is None
        assert look(lake).silence == "no Kafka broker answers"

    def test_costs_nothing_when_nobody_listens(self, lake: Lake, flow: HandFlow) -> None:
        flow.append({0: (0, 10)})
        began = time.monotonic()
        assert look(lake).silence == "no Kafka broker answers at 127.0.0.1:9"
        assert time.monotonic() - began < 5.0

    def test_behind_a_table_is_counted_in_its_rows(self, lake: Lake, flow: HandFlow) -> None:
        flow.append({0: (0, 10)})
        silver = lake.table("silver").flow()
        silver.append_from([delta_source(flow.table, 3)], rows(range(10)))
        assert status(lake, "silver").lag == 0
        flow.append({0: (10, 22)})
        assert status(lake, "silver").lag == 12

    def test_is_known_from_the_ledger_when_the_log_is_gone(
        self, lake: Lake, flow: HandFlow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flow.append({0: (0, 10)})
        table = flow.table
        table.commit([table.write([(1, None, None, None)])], operation="WRITE")
        table.fold("bronze", 0, 2, flow.said)
        table.forget_log(2)
        holds(monkeypatch, {"sales": {0: 14}})
        assert (status(lake).batch, status(lake).lag) == (0, 4)


class TestState:
    def test_a_live_lease_is_a_running_flow(self, lake: Lake, flow: HandFlow) -> None:
        flow.append({0: (0, 10)})
        flow.append({0: (10, 40)})
        write_lease(lake)
        found = status(lake)
        assert found.state == "running"
        assert found.driver is not None
        assert found.driver.pid == os.getpid()
        assert found.rate is not None
        assert found.rate > 0

    @pytest.mark.parametrize(
        "changes",
        [{"beaten_s": 20.0}, {"started": 1}, {"pid": 2**22 + 1}],
        ids=["silent", "pid used again", "no such process"],
    )
    def test_a_flow_with_a_dead_lease_does_not_run(
        self, lake: Lake, flow: HandFlow, changes: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flow.append({0: (0, 10)})
        write_lease(lake, **changes)
        holds(monkeypatch, {"sales": {0: 12}})
        assert status(lake).state == "behind"
        assert status(lake).rate is None

    @pytest.mark.parametrize("changes", [{"pid": "none"}, {"boot": "another"}], ids=["unreadable", "silent"])
    def test_a_flow_whose_process_may_run_is_not_called_stopped(
        self, lake: Lake, flow: HandFlow, changes: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flow.append({0: (0, 10)})
        monkeypatch.setenv(EXPIRES_VARIABLE, "3")
        write_lease(lake, **changes)
        assert status(lake).state == "unknown"

    def test_a_flow_that_does_not_run_is_up_to_date_or_behind(
        self, lake: Lake, flow: HandFlow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flow.append({0: (0, 10)})
        for ends, state in (({0: 10}, "up to date"), ({0: 12}, "behind")):
            holds(monkeypatch, {"sales": ends})
            assert status(lake).state == state
        holds(monkeypatch, None)
        assert (status(lake).state, status(lake).lag) == ("unknown", None)

    def test_only_a_signal_makes_a_flow_stopped(
        self, lake: Lake, flow: HandFlow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def ended(outcome: Any) -> FlowFinished:
            return FlowFinished(
                update="a", flow="bronze", dataset=BRONZE, outcome=outcome, rows=10, batches=1
            )

        flow.append({0: (0, 10)})
        fail(lake, "a", ended("stopped"))
        holds(monkeypatch, {"sales": {0: 10}})
        assert (status(lake).state, status(lake).error) == ("stopped", None)
        fail(lake, "b", ended("up to date"))
        assert status(lake).state == "up to date"

    def test_a_failed_flow_says_why(self, lake: Lake, flow: HandFlow) -> None:
        flow.append({0: (0, 10)})
        error = {"code": "TOPIC_RECREATED", "summary": "another topic"}
        started = FlowStarted(update="a", flow="bronze", dataset=BRONZE, checkpoint="c")
        fail(lake, "a", started, FlowFailed(update="a", flow="bronze", dataset=BRONZE, error=error))
        assert (status(lake).state, status(lake).error) == ("failed", error)
        fail(lake, "b", FlowStarted(update="b", flow="bronze", dataset=BRONZE, checkpoint="c"))
        assert (status(lake).state, status(lake).error) == ("unknown", None)

    def test_a_flow_that_failed_before_it_had_a_checkpoint_says_why(self, lake: Lake) -> None:
        """A first run makes the table, and fails before it reads."""
        lake.table()
        gone = TableName("default", "never_made")
        fail(
            lake, "20260101T000000-a", FlowFailed(update="u", flow="old", dataset=gone, error={"code": "OLD"})
        )
        newest = [
            FlowFailed(update="u", flow="bronze", dataset=BRONZE, error={"code": "TOPIC_NOT_FOUND"}),
            FlowFailed(update="u", flow="read", dataset=gone, error={"code": "TABLE_FOLDER_TAKEN"}),
            ViewFailed(update="u", dataset=TableName("default", "gold"), error={"code": "FLOW_FAILED"}),
        ]
        fail(lake, "20260101T000001-b", *newest)
        found = {
            flow.flow: (flow.state, flow.checkpoint, (flow.error or {}).get("code"))
            for one in look(lake).datasets
            for flow in one.flows
        }
        assert found == {
            "bronze": ("failed", None, "TOPIC_NOT_FOUND"),
            "read": ("failed", None, "TABLE_FOLDER_TAKEN"),
        }
        view = dataset(lake, "gold").view
        assert view is not None and view.state == "failed"

    def test_a_flow_that_is_retried_says_why(self, lake: Lake, flow: HandFlow) -> None:
        write_lease(lake)
        error = {"code": "BROKER_UNREACHABLE", "summary": "away"}
        retried = FlowRetrying(update="a", flow="bronze", dataset=BRONZE, error=error, attempt=1, wait_s=1)
        fail(lake, "a", retried)
        assert (status(lake).state, status(lake).error) == ("retrying", error)
        batch = {"batch": 0, "version": 2, "rows": 1, "duration_s": 1, "ranges": ()}
        fail(lake, "a", BatchCommitted(update="a", flow="bronze", dataset=BRONZE, **batch))
        assert status(lake).state == "running"

    def test_a_run_that_was_refused_says_nothing_about_the_flow(self, lake: Lake, flow: HandFlow) -> None:
        write_lease(lake)
        gone = TableName("default", "never_made")
        refused = {"code": "SECOND_DRIVER", "summary": "another process runs it"}
        fail(
            lake,
            "a",
            FlowStarted(update="a", flow="bronze", dataset=BRONZE, checkpoint="c"),
            FlowFailed(update="a", flow="read", dataset=gone, error={"code": "TABLE_FOLDER_TAKEN"}),
        )
        fail(
            lake,
            "b",
            FlowFailed(update="b", flow="bronze", dataset=BRONZE, error=refused),
            ViewFailed(update="b", dataset=TableName("default", "gold"), error=refused),
        )
        assert (status(lake).state, status(lake).error) == ("running", None)
        assert [one.dataset.name for one in look(lake).datasets] == ["bronze", "never_made"]
        lake.storage.lease(BRONZE, "bronze").unlink()
        assert (status(lake).state, status(lake).error) == ("new", None)

    def test_a_flow_without_a_broker_reconnects(self, lake: Lake, flow: HandFlow) -> None:
        write_lease(lake)
        error = {"code": "BROKER_UNREACHABLE", "summary": "away"}
        fail(lake, "a", FlowReconnecting(update="a", flow="bronze", dataset=BRONZE, error=error))
        assert (status(lake).state, status(lake).error) == ("reconnecting", error)
        fail(lake, "a", FlowReconnected(update="a", flow="bronze", dataset=BRONZE))
        assert (status(lake).state, status(lake).error) == ("running", None)

    def test_a_planned_batch_is_pending(self, lake: Lake, flow: HandFlow) -> None:
        flow.append({0: (0, 10)})
        flow.write_spark_log(0, {"sales": {"0": 10}})
        assert status(lake).pending is None
        flow.write_spark_log(1, {"sales": {"0": 20}}, finished=False)
        assert status(lake).pending == 1


class TestViews:
    def test_up_to_date_until_an_input_changes(self, lake: Lake, flow: HandFlow) -> None:
        flow.append({0: (0, 10)})
        gold = lake.table("gold", kind="materialized_view", coordinates=False)
        inputs = {"default.bronze": {"table_id": flow.table.id, "version": 2}}
        words = {"headrace": 1, "pipeline": "shop", "view": "default.gold", "inputs": inputs}
        gold.commit([gold.write(rows(range(3)))], operation="WRITE", metadata=words)
        found = dataset(lake, "gold")
        assert found.view is not None
        assert (found.view.state, found.view.version, found.rows) == ("up to date", 1, 3)
        flow.append({0: (10, 20)})
        found = dataset(lake, "gold")
        assert found.view is not None
        assert (found.view.state, found.view.late) == ("behind", ("default.bronze",))


def test_a_damaged_table_is_told_beside_the_others(lake: Lake, flow: HandFlow) -> None:
    flow.append({0: (0, 10)})
    bad = lake.table("bad")
    (bad.log / f"{0:020d}.json").write_text("{ not json")
    assert dataset(lake, "bad").problem is not None
    assert dataset(lake).rows == 10


def test_the_snapshot_is_json(lake: Lake, flow: HandFlow) -> None:
    flow.append({0: (0, 10)})
    data = json.loads(json.dumps(look(lake).to_json()))
    assert data["datasets"][0]["flows"][0]["batch"] == 0
    assert data["broker"]["problem"] is not None


def test_a_snapshot_loads_no_spark() -> None:
    code = "import sys, headrace.observe.snapshot; assert not {'pyspark', 'py4j'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def delta_source(table: LakeTable, version: int) -> dict[str, Any]:
    until = {"reservoirId": table.id, "reservoirVersion": version, "index": -1, "isStartingVersion": False}
    identity = {"table_id": table.id, "path": str(table.path)}
    return {"index": 0, "kind": "delta", "identity": identity, "from": None, "until": until}


def test_what_is_no_longer_declared_is_orphaned(lake: Lake, flow: HandFlow) -> None:
    flow.append({0: (0, 10)})
    assert not dataset(lake).orphaned, "no run has recorded what is declared"
    record = {"pipeline": lake.settings.name, "flows": [], "views": []}
    storage = lake.settings.storage

    def orphaned(*flows: str) -> tuple[bool, bool]:
        declared = [{"flow": name, "dataset": ["default", "bronze"]} for name in flows]
        (storage.plans / "last.json").replace_json({**record, "flows": declared})
        return dataset(lake).orphaned, status(lake).orphaned

    assert orphaned("bronze") == (False, False)
    assert orphaned("other") == (False, True)
    assert orphaned() == (True, True)
    kept = storage.root / "ingest" / "bronze.json"
    kept.replace_json({"topic": "sales", "table": "bronze"})
    assert orphaned() == (False, False), "headrace ingest has made the table from a topic"
    kept.replace("{")
    assert orphaned() == (False, False), "its record cannot be read"
    kept.delete()
    for name in ("table.default.bronze", "stream.bronze"):
        (storage.streams / "statements" / f"{name}.sql").replace("CREATE ..")
    assert orphaned() == (False, False), "headrace sql has defined them"
