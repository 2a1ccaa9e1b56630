"""The index of the event log holds each event once, whatever happens to the log's files."""

from __future__ import annotations

import json
import shutil
import sqlite3
import uuid
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

from headrace.dashboard.index import EventIndex
from headrace.dashboard.server import Address, Dashboard, serving
from headrace.declare.spec import load_project
from headrace.model.event_forms import Event, Row
from headrace.model.events import BatchCommitted, BatchTimed, UpdateFinished, UpdateStarted
from headrace.model.names import TableName
from headrace.observe.event_rows import Origin, RowBuilder
from headrace.observe.event_table import FOLD_FILES, EventTable
from headrace.storage.layout import Storage
from object_server import ObjectServer
from waiting import until

ORDERS = TableName("default", "orders")
NOW = datetime.now(UTC)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.at(tmp_path / "lake")


@pytest.fixture
def index(storage: Storage, tmp_path: Path) -> EventIndex:
    return EventIndex(storage.events, tmp_path / "ui")


def write(storage: Storage, *events: Event, update: str = "u1") -> None:
    builder = RowBuilder(Origin("shop", str(storage.root), update))
    EventTable(storage.events).append([row for event in events for row in builder.rows(event)])


def batch(number: int, **facts: Any) -> BatchCommitted:
    return BatchCommitted(
        update="u1",
        flow="orders",
        dataset=ORDERS,
        batch=number,
        version=number,
        rows=10,
        dropped=2,
        duration_s=0.5,
        checkpoint="c",
        at=NOW + timedelta(seconds=number),
        **facts,
    )


def counts(index: EventIndex) -> dict[str, Any]:
    found = index.query("SELECT sum(rows) AS rows, sum(rejected) AS rejected, sum(batches) AS n FROM hours")[
        0
    ]
    flow = index.query("SELECT rows, rejected, batches AS n FROM flows WHERE upd = 'u1'")
    assert [found] == flow
    return found


def test_each_batch_is_counted_once_also_after_the_files_were_merged(
    storage: Storage, index: EventIndex
) -> None:
    for number in range(FOLD_FILES):
        write(storage, batch(number))
    assert index.sync() == FOLD_FILES
    expected = {"rows": 10 * FOLD_FILES, "rejected": 2 * FOLD_FILES, "n": FOLD_FILES}
    assert counts(index) == expected
    EventTable(storage.events).fold()
    assert index.sync() == 1
    assert index.sync() == 0
    assert counts(index) == expected
    # A batch whose row the next run has added again from the commit has the same id.
    write(storage, batch(0), update="u2")
    index.sync()
    assert counts(index) == expected


def test_the_newest_files_are_read_first(storage: Storage, index: EventIndex) -> None:
    for number in range(3):
        write(storage, batch(number))
    seen: list[int] = []
    index.sync(lambda: seen.append(index.query("SELECT min(batch) AS n FROM batches")[0]["n"]))
    assert seen == [2, 1, 0]
    assert index.progress.is_complete


def test_an_event_log_that_was_made_again_does_not_show_the_old_events(
    storage: Storage, index: EventIndex
) -> None:
    write(storage, batch(0), batch(1))
    index.sync()
    shutil.rmtree(storage.events.local_path)
    write(storage, batch(5))
    index.sync()
    assert [row["batch"] for row in index.query("SELECT batch FROM batches")] == [5]
    assert counts(index) == {"rows": 10, "rejected": 2, "n": 1}


def test_an_index_of_another_version_is_made_again(storage: Storage, index: EventIndex) -> None:
    write(storage, batch(0))
    index.sync()
    connection = sqlite3.connect(index.file)
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    again = EventIndex(storage.events, index.folder)
    assert again.query("SELECT * FROM batches") == []
    assert again.sync() == 1


def test_an_index_that_is_deleted_while_it_is_used_is_made_again(storage: Storage, index: EventIndex) -> None:
    write(storage, batch(0))
    index.sync()
    shutil.rmtree(index.folder)
    made = index.made
    assert index.query("SELECT * FROM batches") == []
    assert index.made == made + 1
    assert index.sync() == 1
    assert counts(index)["n"] == 1
    assert {file.stat().st_mode & 0o077 for file in index.folder.iterdir()} == {0}


@pytest.mark.parametrize("kept", [0, 4096])
def test_a_damaged_index_is_made_again(storage: Storage, index: EventIndex, kept: int) -> None:
    write(storage, batch(0))
    index.sync()
    whole = index.file.read_bytes()
    index.file.write_bytes(whole[:kept] + b"damaged " * ((len(whole) - kept) // 8))
    again = EventIndex(storage.events, index.folder)
    with suppress(sqlite3.DatabaseError):  # A damaged page shows when it is read.
        again.query("SELECT * FROM batches")
    again.sync()
    assert counts(again)["n"] == 1


def test_events_without_the_form_of_one_are_skipped_and_counted(storage: Storage, index: EventIndex) -> None:
    builder = RowBuilder(Origin("shop", str(storage.root), "u1"))
    good = builder.rows(batch(0))
    metrics = next(row for row in good if row["level"] == "METRICS")
    info = next(row for row in good if row["level"] == "INFO")

    def like(row: Row, **fields: Any) -> Row:
        return {**row, "id": str(uuid.uuid4()), **fields}

    def with_quality(**quality: Any) -> Row:
        details = json.loads(metrics["details"])
        details["flow_progress"]["data_quality"] |= quality
        return like(metrics, details=json.dumps(details))

    expectation = {"name": "a", "dataset": "d", "action": "drop", "passed_records": 1, "failed_records": 0}
    definition = {"level": "INFO", "event_type": "dataset_definition"}
    odd = [
        with_quality(expectations=[{**expectation, "passed_records": "many"}]),
        with_quality(expectations=[{**expectation, "name": 5}]),
        with_quality(expectations=[{"name": "a"}]),
        with_quality(bad_records=[{"name": "a", "action": "drop"}]),
        like(info, id="no uuid"),
        like(metrics, details="{}"),
        like(metrics, details='{"flow_progress": {"metrics": null}}'),
        like(info, details='{"flow_progress": {"sta'),
        like(info, details=None),
        like(info, details="[]"),
        like(info, event_type=None),
        like(info, **definition, details='{"dataset_definition": {}}'),
        like(info, **definition | {"event_type": "flow_definition"}, details='{"flow_definition": {}}'),
    ]
    EventTable(storage.events).append([*good, *odd])
    index.sync()
    assert index.progress.skipped == len(odd)
    assert counts(index)["n"] == 1
    assert len(index.query("SELECT * FROM events")) == len(good)
    assert EventIndex(storage.events, index.folder).query("SELECT sum(skipped) AS n FROM files") == [
        {"n": len(odd)}
    ]


def test_the_sums_of_old_updates_do_not_grow_when_files_are_merged(
    storage: Storage, index: EventIndex
) -> None:
    write(storage, replace(batch(0), at=NOW - timedelta(days=91)), batch(1))
    for number in range(2, 5):
        write(storage, batch(number))
    index.sync()
    before = index.query("SELECT * FROM flows")
    EventTable(storage.events).fold()
    index.sync()
    assert index.query("SELECT * FROM flows") == before
    assert [row["batches"] for row in before] == [4]


def test_the_index_is_read_by_its_owner_alone(storage: Storage, index: EventIndex) -> None:
    write(storage, batch(0))
    index.sync()
    assert {file.stat().st_mode & 0o077 for file in index.folder.iterdir()} == {0}
    assert index.folder.stat().st_mode & 0o077 == 0


def test_the_measures_of_a_batch_are_columns(storage: Storage, index: EventIndex) -> None:
    started = UpdateStarted(update="u1", pipeline="shop", mode="triggered", flows=("orders",), views=())
    timed = BatchTimed(
        update="u1", flow="orders", dataset=ORDERS, batch=3, steps_ms={"write": 7}, jvm_ms={"gc": 0}
    )
    finished = UpdateFinished(update="u1", outcome="completed", duration_s=1.0)
    one = replace(batch(3), lag=4, latency_s=(3.0, 1.0))
    write(storage, started, one, timed, finished)
    index.sync()
    (row,) = index.query("SELECT * FROM batches")
    assert (row["lag"], row["latency_s"], row["duration_ms"], row["pipeline"]) == (4, 2.0, 500, "shop")
    kinds = [row["type"] for row in index.query("SELECT type FROM events WHERE upd = 'u1' ORDER BY seq")]
    assert kinds[0] == "create_update" and "batch_steps" in kinds and kinds[-1] == "update_progress"


def test_a_bucket_is_indexed_and_shown(
    object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    object_server.reach(monkeypatch)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    root = f"s3://{object_server.make_bucket()}/lake"
    (tmp_path / "headrace.yml").write_text(f"name: shop\nstorage: {root}\nlibraries: [{{file: none.py}}]\n")
    settings = load_project(tmp_path)
    started = UpdateStarted(update="u1", pipeline="shop", mode="triggered", flows=("orders",), views=())
    write(settings.storage, started, batch(0), batch(1))
    dashboard = Dashboard(settings, Address(port=0), token="t")
    with serving(dashboard), requests.Session() as session:
        home = f"http://127.0.0.1:{dashboard.port}/"
        session.get(f"{home}?token=t", timeout=30)
        until(lambda: dashboard.site.index.progress.done == 1, "the bucket was not read")
        assert "has committed batch 1" in session.get(f"{home}p/shop/events", timeout=30).text
        assert "update?id=u1" in session.get(home, timeout=30).text
