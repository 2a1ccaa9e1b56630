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

from headrace.declare.spec import load_project
from headrace.maintain.caretaker import Caretaker
from headrace.maintain.record import load_care
from headrace.model.events import Event, OperationProgressed
from headrace.model.names import TableName
from headrace.storage.table_log import versions
from waiting import until

ORDERS = TableName("default", "orders")


class NoCheckpoints:
    """Writes no checkpoint."""

    def offer(self, *_: Any) -> None: ...

    def stop(self) -> None: ...


@pytest.mark.parametrize(("retention", "age"), [("30 days", timedelta(days=40)), ("1h", timedelta(hours=2))])
def test_a_run_cleans_logs_and_reports_what_it_could_not_compact(
    tmp_path: Path, retention: str, age: timedelta
) -> None:
    policy = {"maintenance.small_files": "3", "maintenance.log_retention": retention}
    settings = load_project(text="name: shop\n", overrides={"storage": str(tmp_path), **policy})
    path = settings.storage.table(ORDERS)
    cleans = {"delta.enableExpiredLogCleanup": "false"}
    for number in range(6):
        write_deltalake(str(path), pa.table({"id": [number]}), mode="append", configuration=cleans)
    DeltaTable(str(path)).create_checkpoint()
    for file in (path.local_path / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            line.get("commitInfo", {})["timestamp"] = int((time.time() - age.total_seconds()) * 1000)
        file.write_text("\n".join(json.dumps(line, separators=(",", ":")) for line in lines))
    events: list[Event] = []

    def session() -> Any:
        raise RuntimeError("Spark has ended\nat line 1")

    def caretaker() -> Caretaker:
        return Caretaker(
            checkpointer=cast("Any", NoCheckpoints()),
            session=session,
            settings=settings,
            emit=events.append,
            update="u1",
            continuous=False,
        )

    run = caretaker()
    run.offer(path, 5, beside=False)
    run.finish()
    failed, cleaned = [one for one in events if isinstance(one, OperationProgressed)]
    assert failed.status == "FAILED" and failed.error is not None
    assert failed.error["summary"] == "Spark has ended"
    assert (cleaned.dataset, cleaned.outcome["log"]["commits"]) == (ORDERS, 5)
    assert versions(path) == (5,) and DeltaTable(str(path)).to_pyarrow_table().num_rows == 6
    assert load_care(settings.storage, ORDERS)["log"]["first"] == 5
    # The log is looked at once a day.
    an_hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="seconds")
    looked = {"at": an_hour_ago}
    held = {**load_care(settings.storage, ORDERS), "log_look": looked}
    settings.storage.care(ORDERS).replace_json(held)
    again = caretaker()
    again.offer(path, 5, beside=False)
    again.finish()
    assert load_care(settings.storage, ORDERS)["log_look"] == looked
    again.stop()


def test_a_continuous_run_vacuums_tables_and_their_quarantine(tmp_path: Path) -> None:
    settings = load_project(
        text="name: shop\n", overrides={"storage": str(tmp_path), "maintenance.vacuum_every": "1s"}
    )
    storage = settings.storage
    a_month_ago = time.time() - 30 * 86400
    strays = []
    for path in (storage.table(ORDERS), storage.quarantine(ORDERS)):
        write_deltalake(str(path), pa.table({"id": [1]}), mode="append")
        strays.append(path.local_path / "left-by-a-killed-writer.parquet")
        strays[-1].write_bytes(b"12345")
        os.utime(strays[-1], (a_month_ago, a_month_ago))
    events: list[Event] = []
    run = Caretaker(
        checkpointer=cast("Any", NoCheckpoints()),
        session=lambda: cast("Any", None),
        settings=settings,
        emit=events.append,
        update="u1",
        continuous=True,
    )
    try:
        run.watch(storage.table(ORDERS))
        until(lambda: not any(one.exists() for one in strays), "the files are deleted")
        until(lambda: len(events) == 2, "both are reported")
    finally:
        run.stop()
    outcomes = [one.outcome for one in events if isinstance(one, OperationProgressed)]
    assert [one.get("role") for one in outcomes] == [None, "quarantine"]
    assert all(one["vacuumed"]["bytes"] == 5 for one in outcomes)
    assert load_care(storage, ORDERS)["vacuumed"] and load_care(storage, ORDERS, "quarantine")["vacuumed"]
