"""Maintenance never fails the command that asks for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from stores import At, on_disk

from headrace.declare.spec import load_project
from headrace.errors import PinInvalidError, TableUnknownError
from headrace.maintain import condition, scheduler
from headrace.maintain.holders import load_maintenance
from headrace.model.names import TableName
from headrace.project import maintenance as project_maintenance
from headrace.project.engine import Engine
from headrace.project.maintenance import MaintenanceOptions, MaintenanceResult, TableMaintenance
from headrace.project.pipeline import Pipeline
from headrace.sinks.delta.compaction import Compaction
from headrace.state.checkpoint import CheckpointIdentity, write_checkpoint
from headrace.state.lease import VIEW, Heart
from headrace.storage.location import Location

ORDERS = TableName("default", "orders")


class Desk:
    """A storage with one table of three small files, whose Spark does not start."""

    def __init__(self, folder: Location) -> None:
        self.settings = load_project(
            text="name: shop\n", overrides={"storage": str(folder), "maintenance.small_files": "2"}
        )
        self.storage = self.settings.storage
        self.is_broken = True
        self.compacted = 0
        for number in range(3):
            self.append(number)
        flow = CheckpointIdentity(
            pipeline="shop", flow="feed", dataset=str(ORDERS), generation=1, table_id="t1", sources=()
        )
        write_checkpoint(self.storage.checkpoint(ORDERS, "feed", 1), flow, {})

    def append(self, number: int) -> None:
        write_deltalake(on_disk(self.storage.table(ORDERS)), pa.table({"id": [number]}), mode="append")

    def session(self) -> Any:
        if self.is_broken:
            raise RuntimeError("Spark did not start\nat line 1")
        return None

    def keep(self, *steps: str) -> MaintenanceResult:
        options = MaintenanceOptions(steps=steps)
        maintenance = TableMaintenance(settings=self.settings, engine=cast("Engine", self), options=options)
        (result,) = maintenance.maintain([ORDERS])
        return result


@pytest.fixture
def desk(at: At, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    desk = Desk(at(tmp_path))

    def compact(*_: Any, **__: Any) -> Compaction:
        desk.compacted += 1
        return Compaction(added=1, removed=3, added_bytes=1, removed_bytes=3, duration_s=0.1)

    monkeypatch.setattr(project_maintenance, "compact_files", compact)
    monkeypatch.setattr(scheduler, "compact_files", compact)
    yield desk


def test_a_failure_is_a_warning(desk: Desk) -> None:
    result = desk.keep("optimize", "vacuum")
    assert (result.steps, result.warning) == ((), "not maintained: RuntimeError: Spark did not start")
    assert list(result.lines()) == ["orders  not maintained: RuntimeError: Spark did not start"]
    desk.is_broken = False
    result = desk.keep("optimize")
    assert (result.steps, result.warning, desk.compacted) == (("optimize",), None, 1)
    assert next(result.lines()).startswith("orders  compacted: 3 files (")


def test_nothing_is_done_that_was_not_asked_for_or_is_not_due(desk: Desk) -> None:
    # Spark is not started for it.
    assert desk.keep("vacuum").warning is None
    assert list(desk.keep("vacuum").lines()) == []
    assert desk.compacted == 0


def test_tables_of_a_flow_that_runs_are_left_as_they_are(desk: Desk) -> None:
    (heart := Heart()).acquire(desk.storage.lease(ORDERS, "feed"), "feed")
    assert str(desk.keep("optimize").warning).startswith("not compacted: another process runs flow feed")
    heart.stop()
    assert "Spark" in str(desk.keep("optimize").warning)


def test_a_view_that_is_refreshed_is_left_as_it_is(desk: Desk) -> None:
    desk.storage.checkpoints(ORDERS).delete_folder()
    (heart := Heart()).acquire(desk.storage.lease(ORDERS, VIEW), str(ORDERS))
    assert "another process runs" in str(desk.keep("optimize").warning)
    heart.stop()


def test_a_table_that_does_not_exist_is_refused(desk: Desk) -> None:
    with pytest.raises(TableUnknownError) as caught:
        Pipeline(desk.settings).maintain(["order"])
    assert caught.value.remedies == ("did you mean `orders`?",)


def leave_old_file(desk: Desk) -> Path:
    stray = on_disk(desk.storage.table(ORDERS)) / "left-by-a-killed-writer.parquet"
    stray.write_bytes(b"12345")
    two_days_ago = time.time() - 2 * 86400
    os.utime(stray, (two_days_ago, two_days_ago))
    return stray


def test_a_short_retention_needs_a_word_and_a_dry_run_changes_nothing(desk: Desk) -> None:
    maintenance = TableMaintenance(
        settings=desk.settings,
        engine=cast("Engine", desk),
        options=MaintenanceOptions(steps=("vacuum",), retention_s=0, dry_run=True),
    )
    stray = leave_old_file(desk)
    (result,) = maintenance.maintain([ORDERS])
    assert result.error is not None and result.error.code == "RETENTION_TOO_SHORT"
    command = "headrace maintain orders --only vacuum --retain"
    longer, allowing = (remedy.partition(":   ")[2] for remedy in result.error.remedies)
    assert (longer, allowing) == (f"{command} 7d", f"{command} 0s --allow-short-retention")
    allowed = MaintenanceOptions(steps=("vacuum",), retention_s=0, dry_run=True, allow_short_retention=True)
    (result,) = replace(maintenance, options=allowed).maintain([ORDERS])
    assert result.error is None and stray.exists()
    assert list(result.lines()) == ["orders  a vacuum would delete 1 file (5 bytes)"]
    (result,) = replace(maintenance, options=replace(allowed, dry_run=False)).maintain([ORDERS])
    assert result.steps == ("vacuum",) and not stray.exists()
    assert next(result.lines()).startswith("orders  vacuumed: 3 files (")
    assert load_maintenance(desk.storage, ORDERS)["vacuumed"]["size_bytes"] == 5


def test_the_files_that_a_compaction_has_replaced_are_vacuumed_by_the_same_command(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compact(*_: Any, **__: Any) -> Compaction:
        DeltaTable(on_disk(desk.storage.table(ORDERS))).optimize.compact()
        return Compaction(added=1, removed=3, added_bytes=1, removed_bytes=3, duration_s=0.1)

    monkeypatch.setattr(project_maintenance, "compact_files", compact)
    desk.is_broken = False
    options = MaintenanceOptions(steps=("optimize", "vacuum"), retention_s=0, allow_short_retention=True)
    maintenance = TableMaintenance(settings=desk.settings, engine=cast("Engine", desk), options=options)
    (result,) = maintenance.maintain([ORDERS])
    assert result.steps == ("optimize", "vacuum") and result.warning is None
    assert result.after is not None and result.after.stored_files == result.after.files == 1


def test_versions_are_pinned_listed_and_released(desk: Desk) -> None:
    pins = Pipeline(desk.settings).pins
    assert (pins.add("orders", 1, 3600).version, pins.add("orders", None, 3600).version) == (1, 2)
    assert [one.version for one in pins.list()] == [1, 2]
    with pytest.raises(PinInvalidError) as caught:
        pins.add("orders", 7, 3600)
    assert caught.value.facts == ("its versions: 0 to 2",)
    assert caught.value.remedies[0].endswith("headrace pin orders --version 2 --for 1h")
    assert len(pins.remove("orders")) == 2 and not pins.list("orders")


def test_a_refused_vacuum_does_not_hide_a_compaction(desk: Desk) -> None:
    desk.is_broken = False
    options = MaintenanceOptions(steps=("optimize", "vacuum"), retention_s=0)
    maintenance = TableMaintenance(settings=desk.settings, engine=cast("Engine", desk), options=options)
    leave_old_file(desk)
    (result,) = maintenance.maintain([ORDERS])
    assert result.steps == ("optimize",) and result.error is not None
    assert result.error.code == "RETENTION_TOO_SHORT" and str(result.warning).startswith("not vacuumed: ")
    assert not any("not vacuumed" in line for line in result.lines()), "the error is printed below them"
    assert "compacted" in load_maintenance(desk.storage, ORDERS)


@pytest.mark.parametrize("sees", ["the vacuum", "the pin"])
def test_a_vacuum_and_a_pin_at_once_see_each_other(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, sees: str
) -> None:
    """The vacuum deletes a file that version 2 and older ones need."""
    pins = Pipeline(desk.settings).pins
    DeltaTable(on_disk(desk.storage.table(ORDERS))).delete("id = 0")
    options = MaintenanceOptions(steps=("vacuum",), retention_s=0, allow_short_retention=True)
    maintenance = TableMaintenance(settings=desk.settings, engine=cast("Engine", desk), options=options)
    before = count_files(desk)
    refused = []

    def pin_first(function: Callable[..., Any]) -> Callable[..., Any]:
        def both(*args: Any) -> Any:
            try:
                pins.add("orders", 2, 3600)
            except PinInvalidError as error:
                refused.append(error)
            return function(*args)

        return both

    step = "record_maintenance" if sees == "the vacuum" else "delete_stored"
    monkeypatch.setattr(condition, step, pin_first(getattr(condition, step)))
    (result,) = maintenance.maintain([ORDERS])
    deleted = before - count_files(desk)
    if sees == "the vacuum":
        assert (result.steps, deleted, refused, len(pins.list())) == ((), 0, [], 1)
        # A version that is pinned can be pinned for longer.
        pins.add("orders", 2, 7200)
    else:
        assert (result.steps, deleted, len(refused), pins.list()) == (("vacuum",), 1, 1, ())


def count_files(desk: Desk) -> int:
    return len(list(on_disk(desk.storage.table(ORDERS)).glob("*.parquet")))
