"""The event log: what is written is what is read back."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from headrace.errors import StorageUnwritableError
from headrace.model.events import (
    BatchCommitted,
    Event,
    FlowFailed,
    FlowFinished,
    ForeignCommitSeen,
    UpdateFinished,
    UpdateStarted,
    ViewRefreshed,
)
from headrace.model.names import TableName
from headrace.model.ranges import OpaquePosition, SourceRange
from headrace.observe import events as events_module
from headrace.observe.events import (
    EventLog,
    event_from_json,
    event_to_json,
    list_updates,
    prune_events,
    read_events,
)
from headrace.storage.layout import Storage
from headrace.storage.locate import locate
from headrace.storage.location import Location

NAME = TableName("sales", "orders")
RANGE = SourceRange(
    0, "kafka", {"topics": {"t": "id"}}, OpaquePosition({"t": {"0": 1}}), OpaquePosition({"t": {"0": 5}})
)
EVENTS: list[Event] = [
    UpdateStarted(update="u1", pipeline="shop", mode="triggered", flows=("a", "b"), views=(NAME,)),
    BatchCommitted(
        update="u1", flow="a", dataset=NAME, batch=1, version=2, rows=3, duration_s=0.5, ranges=(RANGE,),
        lag=7, latency_s=(1.0, 0.1),
    ),
    FlowFailed(update="u1", flow="b", dataset=NAME, error={"code": "X", "params": {"a": [1]}}),
    FlowFinished(update="u1", flow="a", dataset=NAME, outcome="drained", rows=3, batches=1),
    ViewRefreshed(update="u1", dataset=NAME, version=1, rows=2, duration_s=0.1),
    ForeignCommitSeen(update="u1", dataset=NAME, version=4, operation="OPTIMIZE", engine="x"),
    UpdateFinished(update="u1", outcome="failed", duration_s=2.5),
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_back_as_it_was(event: Event) -> None:
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event


def test_a_log_is_read_back_in_order(location: Location) -> None:
    storage = Storage(location)
    with EventLog.open(storage, "u1") as log:
        for event in EVENTS:
            log(event)
        # A reader sees each event at once, not when the log is closed.
        assert list(read_events(log.file)) == EVENTS
    assert list_updates(storage) == ["u1"]


def test_events_of_newer_versions_and_torn_lines_are_passed_over(tmp_path: Path) -> None:
    file = locate(tmp_path / "u.jsonl")
    known = json.dumps({**event_to_json(EVENTS[0]), "new_field": 1})
    file.replace('{"event": "NotYetKnown", "update": "u"}\n' + known + '\n{"event": "Upd')
    assert list(read_events(file)) == [EVENTS[0]]


def test_lines_of_several_threads_stay_whole(tmp_path: Path) -> None:
    def write() -> None:
        for _ in range(50):
            log(EVENTS[1])

    with EventLog.open(Storage.at(tmp_path), "u") as log:
        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(list(read_events(log.file))) == 200


def test_a_storage_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("a file in the way")
    with pytest.raises(StorageUnwritableError):
        EventLog.open(Storage.at(tmp_path), "u")


class FullDisk:
    """A file that takes nothing."""

    def write(self, text: str) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None: ...


def test_a_full_disk_does_not_stop_the_work(tmp_path: Path) -> None:
    log = EventLog(locate(tmp_path / "u.jsonl"), FullDisk())
    for event in EVENTS:
        log(event)
    assert log.failure is not None


def test_old_logs_are_removed_and_enough_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage.at(tmp_path)
    monkeypatch.setattr(events_module, "_LEAST_KEPT", 3)
    monkeypatch.setattr(events_module, "_MOST_KEPT", 6)
    events = tmp_path / "events"
    events.mkdir()
    month_ago = time.time() - 31 * 86_400
    for number in range(10):
        file = events / f"2026010{number}T000000-a.jsonl"
        file.touch()
        if number < 6:
            os.utime(file, (month_ago, month_ago))
    with EventLog.open(storage, "20260104T000000-a"):
        os.utime(events / "20260104T000000-a.jsonl", (month_ago, month_ago))
        prune_events(storage)
    # Too many: 0 to 3. A month old and not among the last three: 4 (an update that runs) and 5.
    assert list_updates(storage) == [f"2026010{number}T000000-a" for number in (4, 6, 7, 8, 9)]
