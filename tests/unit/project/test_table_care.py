"""The care of tables never fails the command that asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.declare.spec import load_project
from headrace.errors import TableUnknownError
from headrace.maintain import table_files
from headrace.model.names import TableName
from headrace.project import table_care
from headrace.project.engine import Engine
from headrace.project.pipeline import Pipeline
from headrace.project.table_care import TableCare, TableKeeper
from headrace.state.identity import CheckpointIdentity, write_checkpoint
from headrace.state.lease import VIEW, Lease

ORDERS = TableName("default", "orders")


class Desk:
    """A storage with one table of three small files, whose Spark does not start."""

    def __init__(self, folder: Path) -> None:
        self.settings = load_project(text="name: shop\n", overrides={"storage": str(folder)})
        self.storage = self.settings.storage
        self.is_broken = True
        self.compacted = 0
        for number in range(3):
            self.append(number)
        flow = CheckpointIdentity.create(
            pipeline="shop", flow="feed", dataset=str(ORDERS), generation=1, table_id="t1", sources=()
        )
        write_checkpoint(self.storage.checkpoint(ORDERS, "feed", 1), flow, {})

    def append(self, number: int) -> None:
        write_deltalake(str(self.storage.table(ORDERS)), pa.table({"id": [number]}), mode="append")

    def session(self) -> Any:
        if self.is_broken:
            raise RuntimeError("Spark did not start\nat line 1")
        return None

    def keep(self, *steps: str) -> TableCare:
        keeper = TableKeeper(settings=self.settings, engine=cast("Engine", self), steps=steps)
        (care,) = keeper.keep([ORDERS])
        return care


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(table_files, "MANY_FILES", 2)
    desk = Desk(tmp_path)

    def compact(*_: Any) -> None:
        desk.compacted += 1

    monkeypatch.setattr(table_care, "compact_files", compact)
    yield desk


def test_a_failure_is_a_warning(desk: Desk) -> None:
    care = desk.keep("optimize", "vacuum")
    assert (care.steps, care.warning) == ((), "not maintained: RuntimeError: Spark did not start")
    assert list(care.lines()) == ["orders  not maintained: RuntimeError: Spark did not start"]
    desk.is_broken = False
    care = desk.keep("optimize")
    assert (care.steps, care.warning, desk.compacted) == (("optimize",), None, 1)
    assert next(care.lines()).startswith("orders  compacted: 3 files (")


def test_nothing_is_done_that_was_not_asked_for_or_is_not_due(desk: Desk) -> None:
    # Spark is not started for it.
    assert desk.keep("vacuum").warning is None
    assert list(desk.keep("vacuum").lines()) == []
    assert desk.compacted == 0


def test_tables_of_a_flow_that_runs_are_left_as_they_are(desk: Desk) -> None:
    lease = Lease.acquire(desk.storage.lease(ORDERS, "feed"), "feed")
    assert str(desk.keep("optimize").warning).startswith("not maintained: another process runs flow feed")
    lease.release()
    assert "Spark" in str(desk.keep("optimize").warning)


def test_a_view_that_is_refreshed_is_left_as_it_is(desk: Desk) -> None:
    desk.storage.checkpoints(ORDERS).delete_folder()
    lease = Lease.acquire(desk.storage.lease(ORDERS, VIEW), str(ORDERS))
    assert "another process runs" in str(desk.keep("optimize").warning)
    lease.release()


def test_a_table_that_does_not_exist_is_refused(desk: Desk) -> None:
    with pytest.raises(TableUnknownError) as caught:
        Pipeline(desk.settings).maintain(["order"])
    assert caught.value.remedies == ("did you mean `orders`?",)
