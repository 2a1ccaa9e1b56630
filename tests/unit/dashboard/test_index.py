"""The index of the event log holds each event once, whatever happens to the log's files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

from headrace.dashboard.index import EventIndex
from headrace.dashboard.server import Address, Dashboard, serving
from headrace.declare.spec import load_project
from headrace.model.event_forms import Event
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
    import sqlite3

    write(storage, batch(0))
    index.sync()
    connection = sqlite3.connect(index.file)
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    again = EventIndex(storage.events, index.folder)
    assert again.query("SELECT * FROM batches") == []
    assert again.sync() == 1


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
