"""When an update refreshes its views."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.model.names import TableName
from headrace.plan.stages import Plan, RefreshViewStage
from headrace.run.flows import UpdateFlows
from headrace.run.stop import StopSignal
from headrace.run.update import _Schedule
from headrace.run.views import ViewRunner
from headrace.storage.layout import Storage

NAME = TableName("default", "totals")


class View:
    """A view that counts its refreshes."""

    def __init__(self) -> None:
        self.view = SimpleNamespace(name=NAME)
        self.inputs: tuple[TableName, ...] = ()
        self.result: Any = None
        self.interval_s = 0.0
        self.refreshes = 0

    def refresh(self) -> None:
        self.refreshes += 1
        self.result = SimpleNamespace(outcome="refreshed")

    def fail(self, error: Exception) -> None:
        self.result = SimpleNamespace(outcome="failed", error=error)


class Flows:
    """An update without flows."""

    planned: dict[str, Any] = {}  # noqa: RUF012
    feeding: dict[TableName, list[str]] = {}  # noqa: RUF012
    is_running = False

    def start(self, *names: str) -> None: ...
    def wait(self) -> None: ...
    def end_unstarted(self, names: list[str]) -> None: ...


@pytest.mark.parametrize("blocked", [False, True])
def test_a_view_that_is_blocked_is_never_refreshed(tmp_path: Path, blocked: bool) -> None:
    view, stop = View(), StopSignal()
    schedule = _Schedule(cast(UpdateFlows, Flows()), [cast(ViewRunner, view)], stop, Storage.at(tmp_path))
    schedule.block_views({str(NAME): ValueError("stale")} if blocked else {})
    stage = object.__new__(RefreshViewStage)
    object.__setattr__(stage, "view", view.view)
    schedule.run_once(cast(Plan, SimpleNamespace(levels=((stage,),))))
    assert view.refreshes == (0 if blocked else 1)
    assert view.result.outcome == ("failed" if blocked else "refreshed")
