"""Flows of one table: one opens after another, and none commits before all have tried."""

from __future__ import annotations

import threading

import pytest

from headrace.run.flow import OpeningGate
from headrace.run.stop import StopSignal


def test_openings_take_turns_and_are_waited_for() -> None:
    gate = OpeningGate(["a", "b"])
    inside, most = [], []

    def work(flow: str) -> None:
        with gate.opening(flow):
            inside.append(flow)
            most.append(len(inside))
            inside.remove(flow)
        gate.wait(StopSignal())

    threads = [threading.Thread(target=work, args=[flow]) for flow in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert most == [1, 1]


def test_an_opening_that_fails_holds_nobody_up() -> None:
    gate = OpeningGate(["a", "b"])
    with pytest.raises(ValueError), gate.opening("a"):
        raise ValueError
    gate.leave("b")
    gate.wait(StopSignal())


def test_a_stop_ends_the_waiting() -> None:
    stop = StopSignal()
    stop.request()
    OpeningGate(["a"]).wait(stop)


def test_a_flow_that_starts_later_is_waited_for_as_well() -> None:
    gate = OpeningGate()
    gate.wait(StopSignal())
    gate.expect("late")
    waited = threading.Thread(target=gate.wait, args=[StopSignal()])
    waited.start()
    assert waited.is_alive()
    with gate.opening("late"):
        pass
    waited.join(10)
    assert not waited.is_alive()
