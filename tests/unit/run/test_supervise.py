"""Each flow on its own: what passes is tried again, what does not is reported, a stop ends both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.errors import BrokerUnreachableError, FlowFailedError, HeadraceError, SourceLocation
from headrace.model.declarations import AppendFlow
from headrace.model.events import Event, FlowFailed, FlowFinished, FlowRetrying
from headrace.model.names import TableName
from headrace.model.queries import PythonQuery
from headrace.run.context import UpdateContext
from headrace.run.flow import FlowRunner
from headrace.run.reporting import Progress
from headrace.run.stop import StopSignal
from headrace.run.supervise import TRIGGERED_ATTEMPTS, supervise
from headrace.state.lease import Heart, Lease
from headrace.storage.layout import Storage

FLOW = AppendFlow(
    name="sales",
    target=TableName("default", "sales"),
    query=PythonQuery(lambda: None, SourceLocation("sales.py", 1)),
)
AWAY = BrokerUnreachableError("away")


@dataclass
class Runner:
    """A flow that meets what it is told to meet, one thing at each start."""

    meets: list[HeadraceError | str | Callable[[Runner], HeadraceError]]
    planned: Any = field(default_factory=lambda: SimpleNamespace(flow=FLOW))
    progress: Progress = field(default_factory=Progress)
    starts: int = 0

    def run(self, lease: Lease) -> str:
        lease.check(FLOW.name)
        met = self.meets[min(self.starts, len(self.meets) - 1)]
        self.starts += 1
        met = met(self) if callable(met) else met
        if isinstance(met, HeadraceError):
            raise met
        return met


class WaitlessStop(StopSignal):
    """Notes how long somebody would have waited."""

    def __init__(self, stop_after: int = 10**6) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._stop_after = stop_after

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        if len(self.waits) >= self._stop_after:
            self.request()
        return self.requested


@dataclass
class Update:
    context: UpdateContext
    events: list[Event]
    stop: WaitlessStop

    def supervise(self, runner: Runner) -> Any:
        return supervise(cast(FlowRunner, runner), self.context)

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


@pytest.fixture
def make(tmp_path: Path) -> Any:
    hearts: list[Heart] = []

    def create(mode: str = "triggered", stop_after: int = 10**6) -> Update:
        events: list[Event] = []
        stop = WaitlessStop(stop_after)
        hearts.append(Heart())
        context = SimpleNamespace(
            update="u1",
            mode=mode,
            settings=SimpleNamespace(storage=Storage.at(tmp_path)),
            emit=events.append,
            heart=hearts[-1],
            stop=stop,
            log_file=None,
        )
        return Update(cast(UpdateContext, context), events, stop)

    yield create
    for heart in hearts:
        heart.stop()


def test_a_flow_that_ends_well_gives_its_lease_back(make: Any, tmp_path: Path) -> None:
    update = make()
    result = update.supervise(Runner(["drained"]))
    assert (result.outcome, result.error) == ("drained", None)
    assert update.count(FlowFinished) == 1
    assert Storage.at(tmp_path).leases.list_files() == []


def test_what_passes_is_tried_again_after_longer_and_longer_waits(make: Any) -> None:
    update = make("continuous")
    result = update.supervise(Runner([AWAY] * 8 + ["drained"]))  # type: ignore[list-item]
    assert result.outcome == "drained"
    assert update.stop.waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert update.count(FlowRetrying) == 8


def test_a_triggered_run_does_not_wait_for_ever(make: Any) -> None:
    update = make()
    result = update.supervise(Runner([AWAY]))
    assert (result.outcome, result.error) == ("failed", AWAY)
    assert len(update.stop.waits) == TRIGGERED_ATTEMPTS - 1
    assert update.count(FlowFailed) == 1


def test_a_batch_in_between_makes_the_waits_short_again(make: Any) -> None:
    def after_a_batch(runner: Runner) -> HeadraceError:
        runner.progress.batches += 1
        return AWAY

    update = make("continuous")
    update.supervise(Runner([AWAY, AWAY, AWAY, after_a_batch, AWAY, "drained"]))
    assert update.stop.waits == [1, 2, 4, 1, 2]


def test_what_does_not_pass_ends_the_flow_at_once(make: Any) -> None:
    error = FlowFailedError("wrong")
    update = make("continuous")
    result = update.supervise(Runner([error]))
    assert (result.outcome, result.error) == ("failed", error)
    assert update.stop.waits == []


def test_a_stop_ends_the_waiting(make: Any) -> None:
    update = make("continuous", stop_after=2)
    assert update.supervise(Runner([AWAY])).outcome == "stopped"
    assert update.count(FlowFailed) == 0


def test_what_does_not_pass_is_told_at_a_stop_too(make: Any) -> None:
    error = FlowFailedError("wrong")
    update = make("continuous")

    def stopped_meanwhile(runner: Runner) -> HeadraceError:
        update.stop.request()
        return error

    assert update.supervise(Runner([stopped_meanwhile])).error == error


def test_a_second_driver_never_starts_the_flow(make: Any, tmp_path: Path) -> None:
    other = Lease.acquire(Storage.at(tmp_path).lease(FLOW.target, FLOW.name), FLOW.name)
    update = make()
    runner = Runner(["drained"])
    result = update.supervise(runner)
    assert result.error.code == "SECOND_DRIVER"
    assert runner.starts == 0
    other.check(FLOW.name)


def test_a_flow_whose_table_was_refused_never_starts(make: Any) -> None:
    update = make()
    runner = Runner(["drained"])
    refused = FlowFailedError("its table is lost")
    result = supervise(cast(FlowRunner, runner), update.context, refused)
    assert (result.error, runner.starts) == (refused, 0)


def test_a_stop_signal_counts_down_from_the_first_request() -> None:
    stop = StopSignal(limit_s=5.0)
    assert (stop.requested, stop.remaining_s) == (False, float("inf"))
    threading.Thread(target=stop.request).start()
    assert stop.wait(10.0)
    first = stop.remaining_s
    stop.request()
    assert 0 < stop.remaining_s <= first <= 5.0
