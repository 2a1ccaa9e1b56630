"""The event log: its shape, what it survives, and what a crash cannot take from it."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lake import HandFlow, Lake, rows
from stores import At

from headrace.model.event_forms import Event
from headrace.model.events import (
    BatchCommitted,
    BatchStarted,
    FlowFailed,
    FlowFinished,
    FlowRetrying,
    FlowStarted,
    UpdateFinished,
    UpdateStarted,
    ViewRefreshed,
)
from headrace.model.names import TableName
from headrace.observe import event_log as event_log_module
from headrace.observe.event_log import EventLog, find_missing
from headrace.observe.event_rows import Origin, RowBuilder
from headrace.observe.event_table import (
    FOLD_FILES,
    EventFilter,
    EventTable,
    LoggedEvent,
    event_schema,
    follow_events,
    read_events,
)
from headrace.storage.layout import Storage
from headrace.storage.table_log import commit_file, newest_version
from waiting import until

ORDERS = TableName("default", "orders")
GOLD = TableName("default", "gold")
COUNTS: list[dict[str, Any]] = [
    {"name": "an id", "dataset": "default.orders", "action": "drop", "passed": 8, "failed": 2}
]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.at(tmp_path / "lake")


def started(update: str = "u1") -> UpdateStarted:
    return UpdateStarted(update=update, pipeline="shop", mode="triggered", flows=("orders",), views=(GOLD,))


def batch(number: int = 0, flow: str = "orders", **more: Any) -> BatchCommitted:
    facts: dict[str, Any] = {
        "version": number + 1,
        "rows": 8,
        "duration_s": 0.5,
        "ranges": (),
        "dropped": 2,
        "lag": 7,
    }
    facts["checkpoint"] = f"of {flow}"
    return BatchCommitted(update="u1", flow=flow, dataset=ORDERS, batch=number, **{**facts, **more})


def write(storage: Storage, *events: Event, update: str = "u1") -> None:
    with EventLog(storage, "shop", update) as log:
        for event in events:
            log(event)


def read(storage: Storage, **chosen: Any) -> list[LoggedEvent]:
    return list(read_events(storage, EventFilter(pipeline="shop", schema="default", **chosen)))


ONE_UPDATE: list[Event] = [
    started(),
    FlowStarted(update="u1", flow="orders", dataset=ORDERS, checkpoint="c"),
    BatchStarted(update="u1", flow="orders", dataset=ORDERS, batch=0),
    batch(0, expectations=tuple(COUNTS), latency_s=(3.0, 0.25)),
    BatchStarted(update="u1", flow="orders", dataset=ORDERS, batch=1),
    batch(1, lag=0),
    FlowFinished(update="u1", flow="orders", dataset=ORDERS, outcome="up to date", rows=16, batches=2),
    ViewRefreshed(update="u1", dataset=GOLD, version=1, rows=3, duration_s=0.1),
    UpdateFinished(update="u1", outcome="completed", duration_s=1.5),
]


def test_a_flow_goes_through_its_statuses(storage: Storage) -> None:
    write(storage, *ONE_UPDATE)
    statuses = [event.details["status"] for event in read(storage, flow="orders")]
    assert statuses == ["QUEUED", "STARTING", "RUNNING", "RUNNING", "RUNNING", "COMPLETED"]
    assert read(storage, flow="orders")[-1].message == "Flow 'orders' is up to date: 16 rows in 2 batches."
    gold = read(storage, flow="gold")
    assert [event.details.get("status") for event in gold] == ["QUEUED", None, "COMPLETED"]
    chosen = {"maintenance_type": "MAINTENANCE_TYPE_COMPLETE_RECOMPUTE", "is_chosen": True}
    assert gold[1].details == {"technique_information": [chosen]}
    others = [(event.type, event.details.get("state")) for event in read(storage) if event.flow is None]
    assert others == [
        ("create_update", None),
        ("update_progress", "RUNNING"),
        ("update_progress", "COMPLETED"),
    ]


def test_the_reason_why_a_view_was_computed_as_a_whole_is_that_of_databricks(storage: Storage) -> None:
    reason = {"code": "OPERATOR_NOT_INCREMENTALIZABLE", "reason": "it uses LIMIT"}
    whole = ViewRefreshed(update="u1", dataset=GOLD, version=1, rows=3, duration_s=0.1, **reason)
    merged = replace(whole, version=2, strategy="merge", code=None, reason=None)
    write(storage, started(), whole, merged)
    first, second = (one for one in read(storage, flow="gold") if one.type == "planning_information")
    (chosen,) = first.details["technique_information"]
    assert chosen["incrementalization_issues"] == [{"issue_type": reason["code"]}]
    assert first.message == "Flow 'default.gold' was planned as COMPLETE_RECOMPUTE: it uses LIMIT."
    (chosen,) = second.details["technique_information"]
    assert chosen == {"maintenance_type": "MAINTENANCE_TYPE_GROUP_AGGREGATE", "is_chosen": True}


def test_the_reason_why_a_flow_did_not_use_the_index_of_the_keys_is_logged_once(storage: Storage) -> None:
    write(storage, started(), batch(0, without_index="too large"), batch(1, without_index="too large"))
    (event,) = (event for event in read(storage, flow="orders") if event.type == "planning_information")
    assert event.message == "Flow 'orders' applies changes without the index of the keys: too large."


def test_a_batch_has_metrics_and_data_quality(storage: Storage) -> None:
    write(storage, *ONE_UPDATE)
    first, second = (event for event in read(storage, flow="orders") if event.level == "METRICS")
    assert first.details["metrics"]["num_output_rows"] == 8
    assert (first.details["metrics"]["backlog_records"], first.details["metrics"]["backlog_seconds"]) == (
        7,
        0.25,
    )
    assert first.details["data_quality"] == {
        "dropped_records": 2,
        "quarantined_records": 0,
        "expectations": [
            {
                "name": "an id",
                "dataset": "default.orders",
                "passed_records": 8,
                "failed_records": 2,
                "action": "drop",
            }
        ],
    }
    assert second.details["metrics"]["backlog_seconds"] == 0
    assert "expectations" not in second.details["data_quality"]


def test_the_columns_are_those_of_lakeflow(storage: Storage) -> None:
    error = {"code": "TOPIC_RECREATED", "summary": "another topic", "transient": False}
    write(storage, started(), FlowFailed(update="u1", flow="orders", dataset=ORDERS, error=error))
    assert event_schema().names == [
        "id", "sequence", "origin", "timestamp", "message", "level", "maturity_level", "error", "details",
        "event_type",
    ]  # fmt: skip
    (failed,) = EventTable(storage.events).query("SELECT * FROM t WHERE details LIKE '%FAILED%'")
    assert (failed["level"], failed["maturity_level"]) == ("ERROR", "STABLE")
    assert failed["error"]["fatal"] is True
    assert failed["error"]["exceptions"][0]["message"] == "another topic"
    assert (failed["origin"]["pipeline_name"], failed["origin"]["update_id"]) == ("shop", "u1")
    assert json.loads(failed["details"])["flow_progress"]["error"] == error
    assert [event.type for event in read(storage, level="error")] == ["flow_progress", "refusal"]


def test_events_are_chosen_by_flow_level_and_time(storage: Storage) -> None:
    retried = FlowRetrying(
        update="u1", flow="orders", dataset=ORDERS, error={"code": "X"}, attempt=1, wait_s=1
    )
    write(storage, *ONE_UPDATE, retried)
    assert [event.type for event in read(storage, level="warn")] == ["retry"]
    assert read(storage, since=retried.at)[0].type == "retry"
    assert read(storage, flow="default.gold") == read(storage, flow="gold")
    newest = read_events(storage, EventFilter(pipeline="shop", schema="default"), limit=1)
    assert [event.type for event in newest] == ["retry"]
    assert read_events(storage, EventFilter(pipeline="other", schema="default")) == ()


def test_a_reader_sees_an_event_about_a_second_later(storage: Storage) -> None:
    with EventLog(storage, "shop", "u1") as log:
        log(started())
        until(lambda: bool(read(storage)), "the first event is written at once")
        began = time.monotonic()
        log(batch())
        until(lambda: bool(read(storage, flow="orders")[1:]), "the next one follows")
        assert time.monotonic() - began < 30


def test_an_error_is_written_at_once(at: At, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_APPEND_S", "_REMOTE_APPEND_S"):
        monkeypatch.setattr(event_log_module, name, 300.0)
    storage, written = Storage(at(tmp_path)), list[dict[str, Any]]()
    monkeypatch.setattr(EventTable, "append", lambda _, rows: written.extend(rows))
    with EventLog(storage, "shop", "u1") as log:
        log(started())
        until(lambda: bool(written), "the first event is written at once")
        first = len(written)
        log(batch())
        log(FlowFailed(update="u1", flow="orders", dataset=ORDERS, error={"summary": "it is gone"}))
        until(lambda: len(written) > first, "an error waits for nothing", limit_s=30.0)
        assert "ERROR" in [row["level"] for row in written[first:]]


def test_several_runs_append_at_the_same_time(storage: Storage) -> None:
    def run(update: str) -> None:
        with EventLog(storage, "shop", update) as log:
            for number in range(20):
                log(batch(number, flow=update))

    threads = [threading.Thread(target=run, args=(f"u{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    committed = [event.flow for event in read(storage) if event.level == "METRICS"]
    assert {flow: committed.count(flow) for flow in committed} == {"u0": 20, "u1": 20, "u2": 20}


def test_a_storage_that_cannot_be_written_delays_the_log_and_nothing_else(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_log_module, "_APPEND_S", 0.01)
    in_the_way = storage.events.local_path
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("a file in the way")
    with EventLog(storage, "shop", "u1") as log:
        for event in ONE_UPDATE:
            log(event)
        until(lambda: "cannot be written" in caplog.text, "one warning")
        in_the_way.unlink()
        until(lambda: len(read(storage)) > 8, "the events are written in the end")
    assert caplog.text.count("cannot be written") == 1


def test_a_full_disk_is_named_once_with_its_free_bytes(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_log_module, "_APPEND_S", 0.01)
    full = SimpleNamespace(f_bavail=7, f_frsize=1, f_blocks=100)
    with monkeypatch.context() as patch, EventLog(storage, "shop", "u1") as log:
        patch.setattr(os, "statvfs", lambda _: full)
        for event in ONE_UPDATE:
            log(event)
        until(lambda: "cannot be written" in caplog.text, "a warning")
        patch.undo()
        until(lambda: len(read(storage)) > 8, "the events are written in the end")
    assert caplog.text.count(f"no space is left on the disk of {storage.events}, free: 7 bytes") == 1


def test_counts_that_memory_cannot_hold_come_from_the_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_log_module, "_APPEND_S", 0.01)
    monkeypatch.setattr(event_log_module, "_MOST_WAITING", 3)
    lake = Lake(tmp_path / "lake")
    flow: HandFlow = lake.table().flow()
    storage, name = lake.settings.storage, TableName("default", "bronze")
    storage.events.local_path.write_text("a file in the way")
    with EventLog(storage, "shop", "u1") as log:
        log(started())
        until(lambda: "cannot be written" in caplog.text, "the log is not writable")
        for number in range(6):
            version = flow.append({0: (number, number + 1)}, timestamp_ms=int(time.time() * 1000))
            event = batch(number, "bronze", version=version, rows=1, checkpoint=flow.checkpoint)
            log(replace(event, dataset=name))
            log(FlowStarted(update="u1", flow="bronze", dataset=name, checkpoint="c"))
        storage.events.local_path.unlink()
        until(lambda: len(committed(storage)) == 6, "the log is written again")
    assert sorted(committed(storage)) == [0, 1, 2, 3, 4, 5]
    assert [event.type for event in read(storage) if event.type == "maintenance"] == ["maintenance"]


@pytest.mark.parametrize("is_soon", [True, False], ids=["while it runs", "at its end"])
def test_a_table_whose_log_is_damaged_is_compared_when_it_is_whole_again(
    is_soon: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_log_module, "_APPEND_S", 0.01)
    monkeypatch.setattr(event_log_module, "_IDLE_S", 0.05)
    lake = Lake(tmp_path / "lake")
    flow: HandFlow = lake.table().flow()
    storage, name = lake.settings.storage, TableName("default", "bronze")
    flow.append({0: (0, 1)}, timestamp_ms=int(time.time() * 1000))
    file = commit_file(storage.table(name), newest_version(storage.table(name))).local_path
    whole = file.read_text()
    file.write_text(whole[:60])
    looks: list[str] = []
    newest = event_log_module.newest_commits
    monkeypatch.setattr(
        event_log_module, "newest_commits", lambda *given: looks.append("read") or newest(*given)
    )
    with EventLog(storage, "shop", "u1") as log:
        error = {"code": "LOG_UNREADABLE", "summary": "damaged", "transient": False}
        log._unchecked = {name: None}  # as at the start of a run over this table
        log(FlowFailed(update="u1", flow="bronze", dataset=name, error=error))
        log(replace(batch(1, "bronze", rows=7, checkpoint=flow.checkpoint), dataset=name))
        log(batch(0))
        until(lambda: bool(read(storage, flow="orders", level="metrics")), "rows of all tables are written")
        assert [event.type for event in read(storage, flow="bronze", level="error")] == ["flow_progress"]
        assert committed(storage) == [1]
        for number in range(3):
            log(batch(number, flow="others"))
            until(lambda n=number: len(read(storage, flow="others")) > n, "it is appended")
        assert looks == ["read"], "the damaged log is not read at each append"
        if is_soon:
            log._next_look = 0.0
            file.write_text(whole)
            until(lambda: len(committed(storage)) == 2, "the batch follows that the log lacked")
        file.write_text(whole)
    assert sorted(committed(storage)) == [0, 1]
    assert caplog.text.count("the event log may lack batches of bronze") == 1
    assert "cannot be written" not in caplog.text


def committed(storage: Storage) -> list[int | None]:
    return [event.batch for event in read(storage, flow="bronze") if event.level == "METRICS"]


def test_the_end_of_a_run_does_not_wait_for_a_storage_that_cannot_be_written(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_log_module, "_RETRIES_S", 0.5)
    storage.events.local_path.parent.mkdir(parents=True)
    storage.events.local_path.write_text("a file in the way")
    began = time.monotonic()
    write(storage, *ONE_UPDATE)
    assert time.monotonic() - began < 60
    assert "are not in the event log" in caplog.text


def test_small_files_are_folded(storage: Storage) -> None:
    table, builder = EventTable(storage.events), RowBuilder(Origin("shop", "s", "u1"))
    for number in range(FOLD_FILES - 1):
        table.append(builder.rows(batch(number)))
    assert table.fold() == 0
    table.append(builder.rows(batch(FOLD_FILES)))
    before = read(storage)
    assert table.fold() == FOLD_FILES
    assert table.fold() == 0
    assert read(storage) == before


def test_events_are_kept_for_90_days(storage: Storage) -> None:
    table, builder = EventTable(storage.events), RowBuilder(Origin("shop", "s", "u1"))
    now = datetime.now(UTC)
    for number, days in enumerate([91, 89, *[0] * (FOLD_FILES - 2)]):
        table.append(builder.rows(batch(number, at=now - timedelta(days=days))))
    table.fold()
    assert [event.batch for event in read(storage)] == list(range(1, FOLD_FILES))


def test_a_flow_that_waits_for_records_is_idle(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log_module, "_IDLE_S", 0.05)
    monkeypatch.setattr(event_log_module, "_APPEND_S", 0.05)

    def newest_status() -> str:
        found = read(storage, flow="orders")
        return str(found[-1].details["status"]) if found else ""

    with EventLog(storage, "shop", "u1") as log:
        log(BatchStarted(update="u1", flow="orders", dataset=ORDERS, batch=0))
        log(batch(0))
        until(lambda: newest_status() == "IDLE", "the flow is idle")
        log(BatchStarted(update="u1", flow="orders", dataset=ORDERS, batch=1))
        until(lambda: newest_status() == "RUNNING", "the flow runs again")


class TestCompletion:
    def missing(self, lake: Lake, name: str = "bronze") -> list[Any]:
        storage = lake.settings.storage
        builder = RowBuilder(Origin("shop", str(storage.root), "u2"))
        table = EventTable(storage.events)
        found, _ = find_missing(storage, table, builder, {TableName("default", name): None})
        if found:
            table.append(found)
        return found

    def test_batches_that_the_log_lacks_come_from_the_commits(self, tmp_path: Path) -> None:
        lake = Lake(tmp_path / "lake")
        flow: HandFlow = lake.table().flow()
        flow.append({0: (0, 10)})
        flow.append({0: (10, 15)})
        details = [json.loads(row["details"])["flow_progress"] for row in self.missing(lake)]
        assert [one["metrics"]["num_output_rows"] for one in details] == [10, 5]
        assert self.missing(lake) == []
        flow.append({0: (15, 16)})
        assert len(self.missing(lake)) == 1

    def test_the_commit_of_a_replay_is_no_batch(self, tmp_path: Path) -> None:
        lake = Lake(tmp_path / "lake")
        flow: HandFlow = lake.table().flow()
        words = {"headrace": 1, "pipeline": "shop", "flow": flow.name, "replay": "r1", "rows": 1}
        counts = {"input": 1, "accepted": 1, "quarantined": 0, "dropped": 0}
        number = {"txn": {"appId": "r1", "version": 0}}
        flow.table.commit([number, flow.table.write(rows([10]))], metadata=words | counts)
        assert self.missing(lake) == []

    def test_an_event_and_its_commit_give_the_same_row(self, tmp_path: Path) -> None:
        lake = Lake(tmp_path / "lake")
        flow: HandFlow = lake.table().flow()
        flow.append({0: (0, 10)})
        (row,) = self.missing(lake)
        commit = json.loads(row["details"])["flow_progress"]["commit"]["version"]
        event = BatchCommitted(
            update="u1", flow="bronze", dataset=TableName("default", "bronze"), batch=0, version=commit,
            rows=10, duration_s=0.5, ranges=(), checkpoint=flow.checkpoint,
        )  # fmt: skip
        rows = RowBuilder(Origin("shop", "s", "u1")).rows(event)
        assert rows[-1]["id"] == row["id"]


def test_events_that_another_process_writes_late_are_followed_too(storage: Storage) -> None:
    """An event of another update is written after newer ones: it comes once, and so do all others."""
    now = datetime.now(UTC)
    early, other = replace(batch(0, flow="early"), at=now - timedelta(seconds=90)), replace(batch(1), at=now)
    write(storage, other)
    following = follow_events(storage, EventFilter(pipeline="shop", schema="default"))
    shown = [next(following) for _ in read(storage)]
    write(storage, early, update="u0")
    write(storage, replace(batch(2), at=now + timedelta(seconds=1)))
    late = len(read(storage)) - len(shown)
    thread = threading.Thread(target=lambda: shown.extend(next(following) for _ in range(late)), daemon=True)
    thread.start()
    thread.join(20)
    assert sorted(event.id for event in shown) == sorted(event.id for event in read(storage))
    assert {"early", "orders"} == {event.flow for event in shown}
