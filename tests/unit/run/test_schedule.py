"""When an update refreshes its views: each on its own, in the order of what they read, and until a stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.errors import StorageUnreadableError
from headrace.model.event_forms import Event
from headrace.model.events import LookFailed
from headrace.model.names import TableName
from headrace.plan.stages import Plan, RefreshViewStage
from headrace.run import attempts, schedule as schedule_module, stop as stop_module
from headrace.run.context import UpdateContext
from headrace.run.flows import UpdateFlows
from headrace.run.schedule import Schedule
from headrace.run.stop import StopSignal, cancelled_at
from headrace.run.views import ViewRunner
from headrace.storage.layout import Storage
from headrace.storage.local import LocalFiles
from headrace.storage.location import Location
from waiting import until


class View:
    """A view that counts its refreshes, and whose refresh can be held."""

    def __init__(self, name: str, *inputs: str) -> None:
        self.view = SimpleNamespace(name=TableName("default", name))
        self.inputs = tuple(TableName("default", one) for one in inputs)
        self.result: Any = None
        self.interval_s = 0.0
        self.refreshes = 0
        self.changed: Callable[[], bool] = lambda: self.refreshes == 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.begun = threading.Event()
        self.during: Callable[[], object] = lambda: None
        self.cancel: Callable[[], object] = self.goes_on.set

    @property
    def state(self) -> str:
        return "pending" if self.result is None else "working"

    def inputs_changed(self) -> bool:
        return self.changed()

    def refresh(self, stop: StopSignal) -> None:
        context = SimpleNamespace(
            addJobTag=lambda tag: None,
            removeJobTag=lambda tag: None,
            cancelJobsWithTag=lambda tag: self.cancel(),
        )
        with cancelled_at(stop, cast("Any", SimpleNamespace(sparkContext=context))):
            self.begun.set()
            self.during()
            assert self.goes_on.wait(20)
        self.refreshes += 1
        self.result = SimpleNamespace(outcome="refreshed")

    def fail(self, error: Exception) -> None:
        self.result = SimpleNamespace(outcome="failed", error=error)


class Flows:
    """An update with one flow that runs until the stop, or without flows."""

    feeding: dict[TableName, list[str]] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.is_running = True
        self.planned: dict[str, Any] = {}

    def start(self, *names: str) -> None: ...
    def wait(self) -> None: ...
    def end_unstarted(self, names: list[str]) -> None: ...


class FailingFiles(LocalFiles):
    """The files of a store that does not answer for a while."""

    def __init__(self) -> None:
        self.failures = 0

    def _meet(self) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("503 Slow Down")

    def open(self, path: str) -> Any:
        self._meet()
        return super().open(path)

    def read_all(self, paths: Sequence[str]) -> list[bytes | None]:
        self._meet()
        return super().read_all(paths)

    def list_files(self, folder: str) -> list[str]:
        self._meet()
        return super().list_files(folder)


@dataclass
class Update:
    storage: Storage
    files: FailingFiles
    stop: StopSignal = field(default_factory=StopSignal)
    events: list[Event] = field(default_factory=list)
    flows: Flows = field(default_factory=Flows)

    def schedule(self, *views: View, mode: str = "continuous") -> Schedule:
        context = SimpleNamespace(
            stop=self.stop,
            settings=SimpleNamespace(storage=self.storage),
            update="u1",
            emit=self.events.append,
            mode=mode,
        )
        runners = [cast(ViewRunner, view) for view in views]
        return Schedule(cast(UpdateFlows, self.flows), runners, cast(UpdateContext, context))

    @contextmanager
    def running(self, *views: View) -> Iterator[None]:
        """A continuous run in a thread; it is stopped at the end."""

        def run() -> None:
            with self.schedule(*views) as schedule:
                schedule.run_continuously()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.stop.request()
            thread.join(20)
            assert not thread.is_alive(), "the run obeys the stop"


@pytest.fixture
def update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Update:
    monkeypatch.setattr(schedule_module, "_FIRST_VIEWS_S", 0.0)
    monkeypatch.setattr(schedule_module, "_POLL_S", 0.01)
    monkeypatch.setattr(stop_module, "_POLL_S", 0.01)
    monkeypatch.setattr(stop_module, "_GRACE_S", 0.05)
    monkeypatch.setattr(attempts, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(attempts, "_LONGEST_WAIT_S", 0.02)
    files = FailingFiles()
    found = Update(Storage(Location(str(tmp_path), files)), files)
    found.flows.planned = {"f": SimpleNamespace()}
    monkeypatch.setattr(Schedule, "_start_ready", lambda self, names: [])
    return found


def plan_of(*levels: tuple[View, ...]) -> Plan:
    stages = []
    for level in levels:
        stages.append(tuple(object.__new__(RefreshViewStage) for _ in level))
        for stage, view in zip(stages[-1], level, strict=True):
            object.__setattr__(stage, "view", view.view)
    return cast(Plan, SimpleNamespace(levels=tuple(stages)))


@pytest.mark.parametrize("blocked", [False, True])
def test_a_view_that_is_blocked_is_never_refreshed(update: Update, blocked: bool) -> None:
    view = View("totals")
    with update.schedule(view, mode="triggered") as schedule:
        schedule.block_views({"default.totals": ValueError("stale")} if blocked else {})
        schedule.run_once(plan_of((view,)))
    assert view.refreshes == (0 if blocked else 1)
    assert view.result.outcome == ("failed" if blocked else "refreshed")


def test_a_slow_view_holds_no_other_view(update: Update) -> None:
    slow, fast = View("slow"), View("fast")
    slow.goes_on.clear()
    fast.changed = lambda: True
    with update.running(slow, fast):
        assert slow.begun.wait(20)
        until(lambda: fast.refreshes >= 3, "the other view is refreshed again and again")
        assert slow.refreshes == 0
        slow.goes_on.set()
        until(lambda: slow.refreshes == 1, "the slow view ends")


def test_a_view_is_refreshed_after_the_views_that_it_reads(update: Update) -> None:
    """The reader waits for the refresh that runs, and has its turn before the next one."""
    first, reader = View("first"), View("reader", "first")
    first.changed = lambda: True
    order: list[str] = []
    first.during, reader.during = lambda: order.append("first"), lambda: order.append("reader")
    first.goes_on.clear()
    with update.running(first, reader):
        assert first.begun.wait(20)
        assert not reader.begun.wait(0.2)
        first.goes_on.set()
        until(lambda: reader.refreshes == 1, "the reader is refreshed")
    # Until the table of the first view exists, nothing says that its reader has work.
    assert order[0] == "first" and "reader" in order[1:3]


def test_refreshes_at_the_same_time_are_limited(update: Update, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_module, "most_refreshes", lambda: 2)
    running, most, lock = 0, 0, threading.Lock()

    def count() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.03)
        with lock:
            running -= 1

    views = [View(f"v{number}") for number in range(6)]
    for view in views:
        view.during = count
    with update.schedule(*views, mode="triggered") as schedule:
        schedule.run_once(plan_of(tuple(views)))
    assert [view.refreshes for view in views] == [1] * 6
    assert most == 2


def test_a_stop_cancels_the_refresh_that_runs(update: Update) -> None:
    slow, later = View("slow"), View("later", "slow")
    slow.goes_on.clear()
    with update.running(slow, later):
        assert slow.begun.wait(20)
    assert (slow.goes_on.is_set(), later.refreshes) == (True, 0)


def test_an_aborted_run_does_not_wait_for_a_refresh(update: Update, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.run.supervise._ABORT_S", 0.05)
    stuck = View("stuck")
    stuck.goes_on.clear()
    stuck.cancel = lambda: None
    with update.running(stuck):
        assert stuck.begun.wait(20)
        update.stop.abort()
    assert stuck.refreshes == 0
    stuck.goes_on.set()


@pytest.mark.parametrize("mode", ["continuous", "triggered"])
def test_a_storage_that_does_not_answer_for_a_while_ends_nothing(update: Update, mode: str) -> None:
    """A look that fails is repeated, with an event; the view is refreshed when the storage answers."""
    (update.storage.table(TableName("default", "raw")) / "_delta_log" / ("0" * 20 + ".json")).create("{}\n")
    view = View("totals", "raw")
    update.flows.feeding = {TableName("default", "raw"): ["f"]}
    update.flows.state = lambda name: "pending"  # type: ignore[attr-defined]
    update.files.failures = 3
    if mode == "continuous":
        with update.running(view):
            until(lambda: len(update.events) == 3, "three looks have failed")
            update.flows.feeding = {}
            until(lambda: view.refreshes == 1, "the view is refreshed")
    else:
        with update.schedule(view, mode="triggered") as schedule:
            schedule.run_once(plan_of((view,)))
    looks = [event for event in update.events if isinstance(event, LookFailed)]
    assert [look.attempt for look in looks] == [1, 2, 3]
    assert update.files.failures == 0
    assert looks[0].error["code"] == "STORAGE_UNREADABLE"


def test_a_triggered_run_fails_a_view_whose_storage_never_answers(update: Update) -> None:
    (update.storage.table(TableName("default", "raw")) / "_delta_log" / ("0" * 20 + ".json")).create("{}\n")
    view, other = View("totals", "raw"), View("other")
    update.flows.feeding = {TableName("default", "raw"): ["f"]}
    update.flows.state = lambda name: "pending"  # type: ignore[attr-defined]
    update.files.failures = 10**6
    with update.schedule(view, other, mode="triggered") as schedule:
        schedule.run_once(plan_of((view, other)))
    assert isinstance(view.result.error, StorageUnreadableError)
    assert other.refreshes == 1
