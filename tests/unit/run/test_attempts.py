"""Each flow on its own: what passes is tried again, what does not is reported, a stop ends both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from stores import At

from headrace.errors import (
    BrokerUnreachableError,
    FlowFailedError,
    HeadraceError,
    SecondDriverError,
    SourceLocation,
    StorageAccessError,
    StorageUnreadableError,
    StorageUnwritableError,
    TableLostError,
)
from headrace.model.declarations import AppendFlow
from headrace.model.event_forms import Event
from headrace.model.events import FlowFailed, FlowFinished, FlowRetrying, LookFailed
from headrace.model.names import TableName
from headrace.model.queries import PythonQuery
from headrace.plan.stages import RunFlowStage
from headrace.run import views as views_module
from headrace.run.attempts import TRIGGERED_ATTEMPTS, run_attempts
from headrace.run.failures import Failures
from headrace.run.flow import FlowRunner
from headrace.run.flows import UpdateFlows
from headrace.run.reporting import FlowReports, Progress
from headrace.run.stop import StopSignal
from headrace.run.views import ViewRunner
from headrace.state.lease import VIEW, Heart, Lease, is_free
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
    state: str = "pending"
    was_opened: bool = True

    def run(self, lease: Lease, stop: StopSignal) -> str:
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
    storage: Storage
    limit: int | None
    stop: WaitlessStop
    events: list[Event] = field(default_factory=list)
    refusals: list[HeadraceError] = field(default_factory=list)
    """What the attempts to take the lease meet, the last one first."""

    def run(self, runner: Runner) -> Any:
        reports = FlowReports("u1", self.events.append)
        with Heart() as heart:
            lease = heart.acquire(self.storage.lease(FLOW.target, FLOW.name), FLOW.name)

            def acquire() -> Lease:
                if self.refusals:
                    raise self.refusals.pop()
                return lease

            return run_attempts(cast(FlowRunner, runner), acquire, self.stop, reports, self.limit)

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


@pytest.fixture
def make(at: At, tmp_path: Path) -> Any:
    def create(mode: str = "triggered", stop_after: int = 10**6) -> Update:
        limit = TRIGGERED_ATTEMPTS if mode == "triggered" else None
        return Update(Storage(at(tmp_path)), limit, WaitlessStop(stop_after))

    return create


def test_a_flow_that_ends_well_is_finished(make: Any) -> None:
    update = make()
    result = update.run(Runner(["up to date"]))
    assert (result.outcome, result.error) == ("up to date", None)
    assert update.count(FlowFinished) == 1


def test_a_flow_that_needs_a_new_plan_is_not_finished(make: Any) -> None:
    update = make()
    assert update.run(Runner(["plan again"])).outcome == "plan again"
    assert update.count(FlowFinished) == 0


def test_what_passes_is_tried_again_after_longer_and_longer_waits(make: Any) -> None:
    update = make("continuous")
    result = update.run(Runner([AWAY] * 8 + ["up to date"]))  # type: ignore[list-item]
    assert result.outcome == "up to date"
    assert update.stop.waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert update.count(FlowRetrying) == 8


@pytest.mark.parametrize(("mode", "outcome"), [("continuous", "up to date"), ("triggered", "failed")])
def test_a_continuous_run_waits_for_a_storage_that_cannot_be_written(
    make: Any, mode: str, outcome: str
) -> None:
    update = make(mode)
    result = update.run(Runner([StorageUnwritableError("the disk is full"), "up to date"]))
    assert (result.outcome, len(update.stop.waits)) == (outcome, 1 if outcome == "up to date" else 0)


@pytest.mark.parametrize(
    ("mode", "was_opened", "starts"),
    [("continuous", True, 21), ("continuous", False, 1), ("triggered", True, TRIGGERED_ATTEMPTS)],
)
def test_a_continuous_run_waits_for_a_bucket_that_refuses_it_for_a_while(
    make: Any, mode: str, was_opened: bool, starts: int
) -> None:
    refused = StorageAccessError("the bucket does not exist")
    runner = Runner([*[refused] * 20, "up to date"], was_opened=was_opened)
    result = make(mode).run(runner)
    assert (runner.starts, result.error) == (starts, None if starts == 21 else refused)


@pytest.mark.parametrize(("was_opened", "starts"), [(True, TRIGGERED_ATTEMPTS), (False, 1)])
def test_what_was_there_in_this_run_may_come_back(make: Any, was_opened: bool, starts: int) -> None:
    """A disk can be away for seconds; a table that stays away is the error of a lost table."""
    update, lost = make("continuous"), TableLostError("the table is missing")
    runner = Runner([lost], was_opened=was_opened)
    assert (update.run(runner).error, runner.starts) == (lost, starts)
    retrying = [event.error["code"] for event in update.events if isinstance(event, FlowRetrying)]
    assert retrying == ["STORAGE_UNREADABLE"] * (starts - 1)


def test_attempts_for_what_is_missing_are_counted_alone(make: Any) -> None:
    """A disk that answers with errors first, and is away then."""
    update, lost = make("continuous"), TableLostError("the table is missing")
    errors = [AWAY] * (TRIGGERED_ATTEMPTS + 1) + [lost] * (TRIGGERED_ATTEMPTS - 1)
    runner = Runner([*errors, "up to date"], was_opened=True)
    assert (update.run(runner).error, runner.starts) == (None, len(errors) + 1)


def test_a_lease_that_a_store_fails_to_give_is_taken_later(make: Any) -> None:
    update, runner = make("continuous"), Runner(["stopped"])
    update.refusals += [StorageUnreadableError("503"), StorageUnwritableError("no answer")]
    assert update.run(runner).outcome == "stopped"
    assert (runner.starts, update.count(FlowRetrying), update.count(FlowFailed)) == (1, 2, 0)
    update.refusals.append(SecondDriverError("another process"))
    assert update.run(runner).error.code == "SECOND_DRIVER"


class Failing(Heart):
    """A heart whose store answers after some attempts."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def acquire(self, *arguments: Any) -> Lease:
        self.failures -= 1
        if self.failures >= 0:
            raise StorageUnreadableError("503 Slow Down")
        return super().acquire(*arguments)


def context_of(update: Update, heart: Heart, mode: str) -> Any:
    return SimpleNamespace(
        update="u1",
        mode=mode,
        settings=SimpleNamespace(storage=update.storage),
        emit=update.events.append,
        stop=update.stop,
        heart=heart,
        failures=lambda: Failures(settings=None),
        spark=None,
    )


@pytest.mark.parametrize(
    ("mode", "failures", "is_taken"),
    [("triggered", 2, True), ("triggered", 5, False), ("continuous", 9, True)],
)
def test_the_leases_of_a_start_are_taken_after_failures_that_pass(
    make: Any, mode: str, failures: int, is_taken: bool
) -> None:
    update = make(mode)
    plan: Any = SimpleNamespace(stages=[RunFlowStage(planned=cast(Any, SimpleNamespace(flow=FLOW)))])
    with Failing(failures) as heart:
        flows = UpdateFlows(plan, context_of(update, heart, mode))
        refused = flows._take_leases()
        assert list(refused) == ([] if is_taken else ["sales"])
        assert list(flows._leases) == (["sales"] if is_taken else [])
    assert update.count(LookFailed) == (failures if is_taken else TRIGGERED_ATTEMPTS - 1)


def test_a_view_whose_lease_meets_a_failure_that_passes_is_refreshed(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    update, view = make("continuous"), TableName("default", "totals")
    refreshed: Any = SimpleNamespace(outcome="refreshed")
    monkeypatch.setattr(views_module, "cancelled_at", lambda *_: nullcontext())
    monkeypatch.setattr(views_module, "release_unused", lambda: None)
    monkeypatch.setattr(ViewRunner, "_refresh", lambda _: refreshed)
    monkeypatch.setattr(ViewRunner, "_error", lambda _, failure: failure)
    with Failing(2) as heart:
        runner = ViewRunner(
            stage=cast(Any, SimpleNamespace(view=SimpleNamespace(name=view, location=None))),
            inputs=(),
            target=cast(Any, None),
            increments=cast(Any, None),
            split=cast(Any, None),
            context=context_of(update, heart, "continuous"),
        )
        for _ in range(2):
            runner.refresh(update.stop)
            assert runner.result is refreshed
        assert update.count(LookFailed) == 2
        assert is_free(update.storage.lease(view, VIEW))


def test_a_triggered_run_does_not_wait_for_ever(make: Any) -> None:
    update = make()
    result = update.run(Runner([AWAY]))
    assert (result.outcome, result.error) == ("failed", AWAY)
    assert len(update.stop.waits) == TRIGGERED_ATTEMPTS - 1
    assert update.count(FlowFailed) == 1


def test_a_batch_in_between_makes_the_waits_short_again(make: Any) -> None:
    def after_a_batch(runner: Runner) -> HeadraceError:
        runner.progress.batches += 1
        return AWAY

    update = make("continuous")
    update.run(Runner([AWAY, AWAY, AWAY, after_a_batch, AWAY, "up to date"]))
    assert update.stop.waits == [1, 2, 4, 1, 2]


def test_what_does_not_pass_ends_the_flow_at_once(make: Any) -> None:
    error = FlowFailedError("wrong")
    update = make("continuous")
    result = update.run(Runner([error]))
    assert (result.outcome, result.error) == ("failed", error)
    assert update.stop.waits == []


def test_a_stop_ends_the_waiting(make: Any) -> None:
    update = make("continuous", stop_after=2)
    assert update.run(Runner([AWAY])).outcome == "stopped"
    assert update.count(FlowFailed) == 0


def test_what_does_not_pass_is_told_at_a_stop_too(make: Any) -> None:
    error = FlowFailedError("wrong")
    update = make("continuous")

    def stopped_meanwhile(runner: Runner) -> HeadraceError:
        update.stop.request()
        return error

    assert update.run(Runner([stopped_meanwhile])).error == error


def test_a_query_that_an_abort_breaks_off_has_not_failed(make: Any) -> None:
    update = make("continuous")

    def aborted_meanwhile(runner: Runner) -> HeadraceError:
        update.stop.abort()
        return FlowFailedError("sales failed")

    assert update.run(Runner([aborted_meanwhile])).outcome == "stopped"
    assert update.count(FlowFailed) == 0


def test_a_stop_signal_counts_down_from_the_first_request() -> None:
    stop = StopSignal(limit_s=5.0)
    assert (stop.requested, stop.remaining_s) == (False, float("inf"))
    threading.Thread(target=stop.request).start()
    assert stop.wait(10.0)
    first = stop.remaining_s
    stop.request()
    assert 0 < stop.remaining_s <= first <= 5.0


def test_a_request_reaches_the_signals_of_all_flows_and_not_the_other_way() -> None:
    update = StopSignal()
    one, other = update.child(), update.child()
    one.request()
    assert (update.requested, one.requested, other.requested) == (False, True, False)
    update.request()
    assert other.requested
    assert update.child().requested


def test_an_abort_leaves_no_time_to_any_flow() -> None:
    update = StopSignal()
    flow = update.child()
    assert not flow.aborted
    update.abort()
    assert (flow.requested, flow.aborted, update.child().aborted) == (True, True, True)
