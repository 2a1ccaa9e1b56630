"""The batches of many flows run a few at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from headrace.run import queue as queues
from headrace.run.queue import BatchQueue
from headrace.run.stop import StopSignal


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_flows_wait_for_their_turn_in_the_order_in_which_they_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "_LONG_S", 60.0)
    queue, stop, began = BatchQueue(1), StopSignal(), list[str]()
    queue.begin("first", stop)

    def work(flow: str) -> None:
        queue.begin(flow, stop)
        began.append(flow)

    threads = []
    for number, flow in enumerate(("b", "c", "a")):
        threads.append(threading.Thread(target=work, args=[flow]))
        threads[-1].start()
        _await(lambda count=number: len(queue._waiting) == count + 1)
    assert began == []
    for number in range(3):
        flow = ["first", *began][-1]
        threads.append(threading.Thread(target=queue.end, args=[flow, stop]))
        threads[-1].start()
        _await(lambda count=number: len(began) == count + 1)
    assert began == ["b", "c", "a"]
    stop.request()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_few_batches_run_at_once_and_a_long_one_no_longer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "_LONG_S", 0.2)
    queue, stop = BatchQueue(2), StopSignal()
    began = time.monotonic()
    queue.begin("a", stop)
    queue.begin("b", stop)
    assert time.monotonic() - began < 0.2
    # Both hang; a third flow is not held up by them for longer than that.
    queue.begin("c", stop)
    assert 0.1 < time.monotonic() - began < 5


def test_a_flow_that_finds_nothing_to_read_gives_its_turn_to_the_next() -> None:
    queue, stop = BatchQueue(1), StopSignal()
    queue.begin("a", stop)
    queue.end("a", stop)
    queue.begin("b", stop)


def test_one_flow_never_waits() -> None:
    queue, stop = BatchQueue(1), StopSignal()
    began = time.monotonic()
    for _ in range(1000):
        queue.begin("a", stop)
        queue.end("a", stop)
    assert time.monotonic() - began < 2


def test_a_stop_ends_the_wait() -> None:
    queue, stop = BatchQueue(0), StopSignal()
    waiting = [threading.Thread(target=queue.begin, args=[flow, stop.child()]) for flow in "abc"]
    for thread in waiting:
        thread.start()
    _await(lambda: len(queue._waiting) == 3)
    stop.request()
    for thread in waiting:
        thread.join(10)
        assert not thread.is_alive()
