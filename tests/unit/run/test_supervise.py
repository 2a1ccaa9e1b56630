"""The supervisor: single flows are started, stopped, started again and planned again."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from headrace.run.reporting import FlowResult
from headrace.run.stop import StopSignal
from headrace.run.supervise import Supervisor
from waiting import until

LIMIT_S = 10.0


class Flows:
    """Flows that run until they are stopped, or end as they are told."""

    def __init__(self) -> None:
        self.stop = StopSignal()
        self.prepared: Counter[str] = Counter()
        self.started = {name: threading.Event() for name in ("a", "b")}
        self.outcomes: dict[str, str] = {}
        self.supervisor = Supervisor("flow", self._prepare, self.stop)

    def _prepare(self, name: str) -> Callable[[StopSignal], FlowResult]:
        self.prepared[name] += 1
        return lambda stop: self._run(name, stop)

    def _run(self, name: str, stop: StopSignal) -> FlowResult:
        self.started[name].set()
        if (outcome := self.outcomes.get(name)) is not None:
            return FlowResult(flow=name, outcome=outcome)  # type: ignore[arg-type]
        assert stop.wait(LIMIT_S)
        return FlowResult(flow=name, outcome="stopped")


@pytest.fixture
def flows() -> Iterator[Flows]:
    found = Flows()
    with found.supervisor:
        yield found
        found.stop.request()


def wait_for_end(flows: Flows, name: str) -> FlowResult:
    until(lambda: flows.supervisor.result(name) is not None, f"{name} ends", LIMIT_S)
    result = flows.supervisor.result(name)
    assert result is not None
    return result


def test_one_flow_is_stopped_and_the_other_goes_on(flows: Flows) -> None:
    flows.supervisor.start("a", "b")
    assert flows.started["a"].wait(LIMIT_S)
    assert flows.started["b"].wait(LIMIT_S)
    flows.supervisor.stop("a")
    assert wait_for_end(flows, "a").outcome == "stopped"
    assert flows.supervisor.running == {"b"}
    assert flows.supervisor.result("b") is None


def test_a_flow_that_was_stopped_can_be_started_again(flows: Flows) -> None:
    flows.supervisor.start("a")
    flows.supervisor.stop("a")
    wait_for_end(flows, "a")
    flows.started["a"].clear()
    flows.supervisor.start("a")
    assert flows.started["a"].wait(LIMIT_S)
    assert flows.supervisor.running == {"a"}


def test_a_running_flow_is_not_started_twice(flows: Flows) -> None:
    flows.supervisor.start("a")
    flows.supervisor.start("a", "b")
    assert flows.prepared == {"a": 1, "b": 1}


def test_the_update_s_own_signal_stops_all(flows: Flows) -> None:
    flows.supervisor.start("a", "b")
    flows.stop.request()
    flows.supervisor.wait()
    assert wait_for_end(flows, "a").outcome == wait_for_end(flows, "b").outcome == "stopped"


def test_an_error_of_the_caller_stops_the_flows() -> None:
    flows = Flows()
    with pytest.raises(KeyboardInterrupt), flows.supervisor:
        flows.supervisor.start("a")
        raise KeyboardInterrupt
    assert wait_for_end(flows, "a").outcome == "stopped"


def test_a_bug_in_a_flow_s_thread_is_raised(flows: Flows) -> None:
    def broken(stop: StopSignal) -> FlowResult:
        raise ZeroDivisionError

    supervisor = Supervisor("flow", lambda name: broken, StopSignal())
    with pytest.raises(ZeroDivisionError), supervisor:
        supervisor.start("a")
        supervisor.wait()
        supervisor.result("a")


def test_an_aborted_run_does_not_wait_for_a_flow_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.run.supervise._ABORT_S", 0.05)
    released = threading.Event()

    def stuck(stop: StopSignal) -> FlowResult:
        released.wait(LIMIT_S)
        return FlowResult(flow="a", outcome="stopped")

    stop = StopSignal()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Supervisor("flow", lambda name: stuck, stop) as one:
        one.start("a")
        stop.abort()
        raise KeyboardInterrupt
    assert time.monotonic() - began < LIMIT_S / 2
    released.set()
