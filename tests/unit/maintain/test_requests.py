"""A compaction that needs a pause waits for batches, and batches wait for it."""

from __future__ import annotations

import threading

from headrace.maintain.scheduler import Turns
from waiting import DEADLINE_S


def test_a_compaction_and_batches_never_run_at_once() -> None:
    turns, order = Turns(), list[str]()
    in_batch, may_end, asked = threading.Event(), threading.Event(), threading.Event()

    def batch(name: str) -> None:
        with turns.batch():
            order.append(f"{name} begins")
            in_batch.set()
            assert may_end.wait(DEADLINE_S)
            order.append(f"{name} ends")

    def compact() -> None:
        asked.set()
        with turns.compaction(DEADLINE_S) as is_free:
            assert is_free
            order.append("compaction")

    first = threading.Thread(target=batch, args=("first",))
    first.start()
    assert in_batch.wait(DEADLINE_S)
    with turns.compaction(0.01) as is_free:
        assert not is_free
    other = threading.Thread(target=compact)
    other.start()
    assert asked.wait(DEADLINE_S)
    may_end.set()
    for thread in (first, other):
        thread.join(DEADLINE_S)
    batch("second")
    assert order == ["first begins", "first ends", "compaction", "second begins", "second ends"]


def test_batches_of_several_flows_run_at_once() -> None:
    turns = Turns()
    with turns.batch(), turns.batch():
        pass


def test_what_stops_waits_for_no_compaction() -> None:
    turns, is_stopping = Turns(), threading.Event()
    with turns.compaction(DEADLINE_S) as is_free:
        assert is_free
        is_stopping.set()
        with turns.batch(is_stopping.is_set):
            pass
    with turns.batch(), turns.compaction(DEADLINE_S, is_stopping.is_set) as is_free:
        assert not is_free
