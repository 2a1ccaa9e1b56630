"""The care of tables within a run: what is due is done, and a failure is an event."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from stores import At, on_disk

from headrace.declare.spec import load_project
from headrace.maintain import condition, scheduler as scheduler_module
from headrace.maintain.holders import load_maintenance
from headrace.maintain.scheduler import MaintenanceScheduler
from headrace.model.event_forms import Event
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.table_events import OperationProgressed
from headrace.observe.board import Board
from headrace.observe.display import event_line
from headrace.storage.location import Location
from headrace.storage.table_log import versions
from read_table import ReadTable
from waiting import until

ORDERS = TableName("default", "orders")


class NoCheckpoints:
    """Writes no checkpoint."""

    def offer(self, *_: Any) -> None: ...

    def stop(self) -> None: ...


def make_older(path: Location, age: timedelta) -> None:
    """Let all commits and files of a table be older."""
    then = time.time() - age.total_seconds()
    for file in (on_disk(path) / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            line.get("commitInfo", {})["timestamp"] = int(then * 1000)
        file.write_text("\n".join(json.dumps(line, separators=(",", ":")) for line in lines))
    for file in on_disk(path).glob("*.parquet"):
        os.utime(file, (then, then))


def scheduler(
    settings: ProjectSettings, events: list[Event], *, continuous: bool = False, session: Any = None
) -> MaintenanceScheduler:
    return MaintenanceScheduler(
        checkpointer=cast("Any", NoCheckpoints()),
        session=session or (lambda: cast("Any", None)),
        settings=settings,
        emit=events.append,
        update="u1",
        continuous=continuous,
    )


def lines(events: list[Event]) -> list[str]:
    """What a run prints about its care."""
    return [event_line(one, Board()) for one in events]


@pytest.mark.parametrize(("retention", "age"), [("30 days", timedelta(days=40)), ("1h", timedelta(hours=2))])
def test_a_run_cleans_logs_and_reports_what_it_could_not_compact(
    at: At, tmp_path: Path, retention: str, age: timedelta
) -> None:
    policy = {"maintenance.small_files": "3", "maintenance.log_retention": retention}
    settings = load_project(text="name: shop\n", overrides={"storage": str(at(tmp_path)), **policy})
    path = settings.storage.table(ORDERS)
    cleans = {"delta.enableExpiredLogCleanup": "false"}
    for number in range(6):
        write_deltalake(on_disk(path), pa.table({"id": [number]}), mode="append", configuration=cleans)
    DeltaTable(on_disk(path)).create_checkpoint()
    make_older(path, age)
    events: list[Event] = []

    def session() -> Any:
        raise RuntimeError("Spark has ended\nat line 1")

    run = scheduler(settings, events, session=session)
    run.offer(path, 5, concurrently=False)
    run.finish()
    failed, cleaned = [one for one in events if isinstance(one, OperationProgressed)]
    assert failed.status == "FAILED" and failed.error is not None
    assert failed.error["summary"] == "Spark has ended"
    assert lines(events) == [
        "orders  not compacted: Spark has ended",
        "orders  log cleaned: 5 commits before version 5",
    ]
    assert (cleaned.dataset, cleaned.outcome["log_cleanup"]["commits"]) == (ORDERS, 5)
    assert versions(path) == (5,) and DeltaTable(on_disk(path)).to_pyarrow_table().num_rows == 6
    assert load_maintenance(settings.storage, ORDERS)["log"]["first"] == 5
    # The log is looked at once a day.
    an_hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="seconds")
    looked = {"at": an_hour_ago}
    held = {**load_maintenance(settings.storage, ORDERS), "log_look": looked}
    settings.storage.care(ORDERS).replace_json(held)
    again = scheduler(settings, events, session=session)
    again.offer(path, 5, concurrently=False)
    again.finish()
    assert load_maintenance(settings.storage, ORDERS)["log_look"] == looked
    again.stop()


def test_a_continuous_run_vacuums_tables_and_their_quarantine(
    at: At, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = load_project(
        text="name: shop\n", overrides={"storage": str(at(tmp_path)), "maintenance.vacuum_every": "1s"}
    )
    storage = settings.storage
    a_month_ago = time.time() - 30 * 86400
    strays = []
    for path in (storage.table(ORDERS), storage.quarantine(ORDERS)):
        write_deltalake(on_disk(path), pa.table({"id": [1]}), mode="append")
        strays.append(on_disk(path) / "left-by-a-killed-writer.parquet")
        strays[-1].write_bytes(b"12345")
        os.utime(strays[-1], (a_month_ago, a_month_ago))
    events: list[Event] = []
    run = scheduler(settings, events, continuous=True)
    try:
        # A view whose first refresh has not ended has no table.
        run.watch(storage.table(TableName("default", "totals")))
        run.watch(storage.table(ORDERS))
        until(lambda: not any(one.exists() for one in strays), "the files are deleted")
        until(lambda: len(events) == 2, "both are reported")
    finally:
        run.stop()
    assert not caplog.records
    outcomes = [one.outcome for one in events if isinstance(one, OperationProgressed)]
    assert [one.get("part") for one in outcomes] == [None, "quarantine"]
    assert all(one["vacuumed"]["size_bytes"] == 5 for one in outcomes)
    assert [one.partition("  took")[0] for one in lines(events)] == [
        "orders  vacuumed: 1 file (5 bytes) deleted",
        "orders (quarantine)  vacuumed: 1 file (5 bytes) deleted",
    ]
    assert (
        load_maintenance(storage, ORDERS)["vacuumed"]
        and load_maintenance(storage, ORDERS, "quarantine")["vacuumed"]
    )


def finish(settings: ProjectSettings, table: TableName = ORDERS) -> list[Event]:
    """The end of a triggered run with a commit to a table."""
    events: list[Event] = []
    run = scheduler(settings, events)
    path = settings.storage.table(table)
    run.offer(path, versions(path)[-1], concurrently=False)
    run.finish()
    return events


def test_a_triggered_run_vacuums_a_table_once_a_day_when_it_is_older_than_its_retention(
    at: At, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_project(text="name: shop\n", overrides={"storage": str(at(tmp_path))})
    storage, path = settings.storage, settings.storage.table(ORDERS)
    write_deltalake(on_disk(path), pa.table({"id": [1, 2]}))
    write_deltalake(on_disk(path), pa.table({"id": [3]}), mode="overwrite")
    listed: list[str] = []
    listing = condition.list_stored
    monkeypatch.setattr(condition, "list_stored", lambda one: listed.append(str(one)) or listing(one))
    # Nothing can be deleted in the first week of a table, so its folder is not listed.
    make_older(path, timedelta(days=6))
    assert finish(settings) == [] == listed
    make_older(path, timedelta(days=8))
    (event,) = finish(settings)
    assert isinstance(event, OperationProgressed) and event.outcome["vacuumed"]["files"] == 1
    assert len(list(on_disk(path).glob("*.parquet"))) == 1
    # It is a day until the next vacuum.
    listed.clear()
    assert finish(settings) == [] == listed
    yesterday = (datetime.now(UTC) - timedelta(hours=25)).isoformat(timespec="seconds")
    held = {key: {**one, "at": yesterday} for key, one in load_maintenance(storage, ORDERS).items()}
    storage.care(ORDERS).replace_json(held)
    assert finish(settings) == [] and listed


@pytest.mark.parametrize(
    "policy", [{"maintenance.vacuum": "false"}, {"maintenance.retention": "10m"}], ids=["off", "too short"]
)
def test_a_triggered_run_does_not_vacuum_what_the_policy_forbids(
    at: At, tmp_path: Path, policy: dict[str, str]
) -> None:
    allowed = {"maintenance.allow_short_retention": "true"}
    settings = load_project(
        text="name: shop\n", overrides={"storage": str(at(tmp_path)), **policy, **allowed}
    )
    path = settings.storage.table(ORDERS)
    for number in range(2):
        write_deltalake(on_disk(path), pa.table({"id": [number]}), mode="overwrite")
    make_older(path, timedelta(days=40))
    assert finish(settings) == []
    assert len(list(on_disk(path).glob("*.parquet"))) == 2


@pytest.mark.parametrize(("retention", "age"), [("30 days", 8), ("1 day", 2)])
def test_the_logs_of_quarantine_and_tombstones_are_cleaned_after_a_week(
    at: At, tmp_path: Path, retention: str, age: int
) -> None:
    settings = load_project(
        text="name: shop\n", overrides={"storage": str(at(tmp_path)), "maintenance.log_retention": retention}
    )
    storage = settings.storage
    paths = [storage.table(ORDERS), storage.quarantine(ORDERS), storage.tombstones(ORDERS)]
    for path in paths:
        for number in range(3):
            write_deltalake(on_disk(path), pa.table({"id": [number]}), mode="append")
        DeltaTable(on_disk(path)).create_checkpoint()
        make_older(path, timedelta(days=age))
    cleaned = [one for one in lines(finish(settings)) if "log cleaned" in one]
    assert [one.partition("  ")[0] for one in cleaned] == ["orders (quarantine)", "orders (tombstones)"]
    # Delta itself cleans the log of this table.
    assert [len(versions(path)) for path in paths] == [3, 1, 1]
    assert DeltaTable(on_disk(paths[1])).to_pyarrow_table().num_rows == 3
    assert load_maintenance(storage, ORDERS, "quarantine")["log"]["first"] == 2


def test_a_vacuum_that_is_refused_because_a_reader_lags_is_a_line(at: At, tmp_path: Path) -> None:
    table = ReadTable(at(tmp_path))
    table.add_reader(2)
    table.append(3)
    table.compact()
    table.age(40)
    settings = load_project(text="name: shop\n", overrides={"storage": str(at(tmp_path))})
    files = sorted(on_disk(table.path).rglob("*.parquet"))
    (event,) = finish(settings)
    assert isinstance(event, OperationProgressed) and event.status == "FAILED"
    assert event.error is not None and event.error["code"] == "READER_LAGS"
    (line,) = lines([event])
    assert line.startswith("orders  not vacuumed: [READER_LAGS] flow large has not read commits of orders")
    assert sorted(on_disk(table.path).rglob("*.parquet")) == files
    # A reader that does not lag that much is named in the line of the vacuum.
    settings.storage.care(ORDERS).delete()
    table.age(20)
    (line,) = lines(finish(settings))
    assert "kept for flow large  took" in line


def test_a_table_rests_after_a_compaction_until_it_has_many_small_files(
    at: At, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "_REST", 1e9)
    overrides = {"storage": str(at(tmp_path)), "maintenance.small_files": "3", "maintenance.vacuum": "false"}
    settings = load_project(text="name: shop\n", overrides=overrides)
    path = settings.storage.table(ORDERS)
    tried: list[int] = []

    def session() -> Any:
        tried.append(versions(path)[-1])
        raise RuntimeError("Spark has ended")

    run = scheduler(settings, [], continuous=True, session=session)
    try:
        for number in range(30):
            write_deltalake(on_disk(path), pa.table({"id": [number]}), mode="append")
            run.offer(path, number, concurrently=True)
            # It looks at each second commit: half of `small_files`.
            until(lambda: run._tables[path].looked >= versions(path)[-1] - 1, "the table is looked at")
    finally:
        run.stop()
    first, *later = tried
    assert first <= 5 and min(later) >= 24
