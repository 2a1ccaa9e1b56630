"""How much a batch may take: enough to be fast, never so much that it takes minutes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from headrace.sources.kafka.meter import KAFKA_MAX_OFFSETS_PER_TRIGGER, LEAST_RECORDS, first_limit
from headrace.sources.limits import BATCH_S, AdaptiveLimit, Taken, estimate_cost

MB = 1 << 20


@pytest.mark.parametrize(
    ("record_bytes", "limit"),
    [
        (None, KAFKA_MAX_OFFSETS_PER_TRIGGER),
        (150, KAFKA_MAX_OFFSETS_PER_TRIGGER),
        (5 * MB, 25),
        (1024 * MB, 1),
    ],
)
def test_a_first_batch_depends_on_the_size_of_the_records(record_bytes: float | None, limit: int) -> None:
    assert first_limit(record_bytes) == limit


class Backlog:
    """A query that reads a backlog, with batches that cost what a test says.

    Args:
        cost: Seconds of a batch by its number and its records.
        limit: The first limit.
        record_bytes: Bytes of each record.
    """

    def __init__(
        self, cost: Callable[[int, int], float], limit: int, record_bytes: float | None = None
    ) -> None:
        self.adaptive = AdaptiveLimit(limit, LEAST_RECORDS)
        self.limits = [limit]
        self.durations: list[float] = []
        self._cost = cost
        self._record_bytes = record_bytes

    def read(self, batches: int, arriving: int | None = None) -> list[int]:
        """Run batches, each cut by its limit or by what has arrived; returns the limits."""
        for _ in range(batches):
            limit = self.adaptive.limit
            amount = limit if arriving is None else min(limit, arriving)
            self.durations.append(self._cost(len(self.durations), amount))
            taken = Taken(amount, self.durations[-1], self._record_bytes)
            self.adaptive.limit = self.adaptive.next(taken)
            self.limits.append(self.adaptive.limit)
        return self.limits


def test_a_cold_first_batch_does_not_lower_the_limit() -> None:
    """84 records in 29 s, on a JVM that has just started."""
    backlog = Backlog(lambda n, rows: (29.0, 3.0, 1.0, 0.5)[min(n, 3)] + rows / 50_000, 500_000)
    assert backlog.read(4, arriving=84) == [500_000] * 5


def test_a_limit_that_is_far_too_small_grows_within_a_few_batches() -> None:
    backlog = Backlog(lambda n, rows: 0.3 + rows / 50_000, 29)
    backlog.read(8)
    assert max(backlog.limits[:6]) > 100_000
    assert max(backlog.durations) < 3 * BATCH_S


def test_a_steady_backlog_settles_where_the_rows_take_ten_seconds() -> None:
    backlog = Backlog(lambda n, rows: rows / 2_000, 500)
    assert backlog.read(10)[-1] == pytest.approx(20_000, rel=0.01)


def test_a_fixed_cost_is_no_cost_of_the_rows() -> None:
    backlog = Backlog(lambda n, rows: 1.0 + rows / 2_000, 50)
    backlog.read(10)
    assert backlog.limits[-1] == pytest.approx(20_000, rel=0.1)
    assert backlog.limits[6] > 10_000


def test_a_fixed_cost_above_the_target_does_not_shrink_the_batches() -> None:
    """Shrinking them would read no faster; half of the time is left for rows."""
    backlog = Backlog(lambda n, rows: 30.0 + rows / 2_000, 5_000)
    backlog.read(12)
    assert min(backlog.limits) > 500
    assert backlog.limits[-1] > 20_000


def test_noise_does_not_make_batches_collapse() -> None:
    chance = random.Random(7)

    def cost(number: int, rows: int) -> float:
        spike = 20.0 if chance.random() < 0.1 else 0.0
        return (0.5 + rows / 20_000) * chance.uniform(0.6, 1.6) + spike

    backlog = Backlog(cost, 500_000)
    backlog.read(200)
    settled = sorted(backlog.limits[10:])
    assert settled[len(settled) // 2] == pytest.approx(200_000, rel=0.4)
    assert settled[len(settled) // 10] > 30_000
    assert max(settled) < 800_000


def test_one_slow_batch_is_made_good_by_the_next_ones() -> None:
    backlog = Backlog(lambda n, rows: 120.0 if n == 10 else 0.5 + rows / 20_000, 100_000)
    before = backlog.read(10)[-1]
    assert backlog.read(4)[-1] >= before * 0.8


def test_large_records_stay_bounded_in_memory_and_in_time() -> None:
    """Rows of 5 MB, at 1.5 s each: at most 256 MB at once, and never minutes."""
    backlog = Backlog(lambda n, rows: 0.5 + 1.5 * rows, first_limit(5 * MB), 5 * MB)
    backlog.read(8)
    assert max(backlog.limits) * 5 * MB <= 256 * MB
    assert max(backlog.durations) <= 40
    assert backlog.limits[-1] == LEAST_RECORDS


def test_fast_large_records_stay_bounded_in_memory() -> None:
    backlog = Backlog(lambda n, rows: 0.3 + 0.01 * rows, first_limit(5 * MB), 5 * MB)
    assert backlog.read(8)[-1] == 51


def test_records_that_become_slow_lower_the_limit_within_a_few_batches() -> None:
    backlog = Backlog(lambda n, rows: 0.3 + rows / (50_000 if n < 10 else 500), 100_000)
    backlog.read(18)
    assert max(backlog.durations[11:]) < 60, "only the first slow batch is long"
    assert backlog.limits[-1] == pytest.approx(5_000, rel=0.1)


def test_a_slow_first_batch_lowers_the_limit_at_once() -> None:
    backlog = Backlog(lambda n, rows: rows / 1_000, 500_000)
    assert backlog.read(1)[-1] == pytest.approx(500_000 * 10 / 470, rel=0.01)


def test_a_batch_that_was_not_cut_never_raises_the_limit() -> None:
    backlog = Backlog(lambda n, rows: 0.3, 1000)
    assert backlog.read(10, arriving=10) == [1000] * 11
    adaptive = AdaptiveLimit(1000)
    assert adaptive.next(Taken(amount=0, duration_s=0.1)) == 1000


def test_large_records_to_come_lower_the_limit_before_they_are_read() -> None:
    taken = Taken(amount=500_000, duration_s=5.0, record_bytes=5 * MB)
    assert AdaptiveLimit(500_000, LEAST_RECORDS).next(taken) == 51


def test_a_limit_is_never_nothing() -> None:
    assert AdaptiveLimit(1).next(Taken(amount=1, duration_s=1000.0)) == 1
    assert AdaptiveLimit(1, 20).next(Taken(amount=1, duration_s=1.0, record_bytes=1024 * MB)) == 1


def test_a_cost_is_split_where_batches_of_different_size_show_it() -> None:
    cost = estimate_cost([(1000, 2.0), (2000, 3.0), (4000, 5.0)])
    assert (cost.fixed_s, cost.unit_s) == pytest.approx((1.0, 0.001))
    same = estimate_cost([(1000, 2.0), (1000, 2.0)])
    assert (same.fixed_s, same.unit_s) == (0.0, 0.002)
