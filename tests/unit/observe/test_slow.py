"""What the slowest batches consist of, from the events of a run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.cli.commands.status import slow_table
from headrace.model.event_forms import Event
from headrace.model.events import BatchTimed
from headrace.model.names import TableName
from headrace.model.table_events import OperationProgressed
from headrace.observe.event_log import EventLog
from headrace.observe.slow import find_slow_batches
from headrace.storage.layout import Storage

ORDERS = TableName("default", "orders")
BEGAN = datetime(2026, 11, 27, 9, tzinfo=UTC)


def timed(second: float, number: int, flow: str = "orders", gc: int = 0, **steps: int) -> BatchTimed:
    at = BEGAN + timedelta(seconds=second)
    jvm_ms = {"gc": gc, "compiler": 0}
    return BatchTimed(
        update="u", flow=flow, dataset=ORDERS, at=at, batch=number, steps_ms=steps, jvm_ms=jvm_ms
    )


def compacted(second: float, duration_s: float) -> OperationProgressed:
    return OperationProgressed(
        update="u",
        dataset=ORDERS,
        at=BEGAN + timedelta(seconds=second),
        operation="MAINTENANCE",
        status="COMPLETED",
        duration_s=duration_s,
        outcome={"compacted": {}},
    )


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.at(tmp_path / "lake")


def log(storage: Storage, *events: Event) -> None:
    with EventLog(storage, "shop", "u") as written:
        for event in events:
            written(event)


def test_the_slowest_percent_is_compared_with_all_batches(storage: Storage) -> None:
    usual = [timed(number, number, write=100, commit=50) for number in range(199)]
    slow = timed(200, 199, gc=40, write=100, commit=450)
    log(storage, *usual, slow, timed(200.1, 0, flow="other", write=300), compacted(199.9, 0.2))
    orders, other = find_slow_batches(storage)
    assert (orders.flow, orders.batches, orders.slowest[-1], orders.pauses_ms) == ("orders", 200, 199, 40)
    steps = {one.step: one for one in orders.steps}
    assert (steps["commit"].median_ms, steps["write"].median_ms, steps["total"].median_ms) == (50, 100, 150)
    assert steps["commit"].share == 1 and steps["write"].share == 0
    assert orders.beside == {"compaction": 1, "gc": 1, "other flows": 1}
    assert (other.flow, other.beside) == ("other", {"compaction": 1, "other flows": 1})


def test_work_that_has_ended_before_a_batch_is_not_beside_it(storage: Storage) -> None:
    log(storage, compacted(0, 5), timed(1, 0, write=900))
    (orders,) = find_slow_batches(storage)
    assert orders.beside == {}
    assert find_slow_batches(storage, BEGAN + timedelta(seconds=2)) == []


def test_a_log_without_batches_has_no_slow_ones(storage: Storage) -> None:
    assert find_slow_batches(storage) == []
    assert slow_table([]) == "The event log has no batches yet. `headrace run` writes it."
