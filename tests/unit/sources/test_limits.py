"""How much a batch may take: enough to be fast, never so much that it takes minutes."""

from __future__ import annotations

import pytest

from headrace.sources.limits import KAFKA_MAX_OFFSETS_PER_TRIGGER, Taken, first_limit, next_limit

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
def test_a_first_batch_goes_by_the_size_of_the_records(record_bytes: float | None, limit: int) -> None:
    assert first_limit(record_bytes) == limit


def test_a_fast_query_may_take_more_but_not_at_once() -> None:
    assert next_limit(1000, Taken(amount=1000, duration_s=0.1)) == 4000
    assert next_limit(500_000, Taken(amount=500_000, duration_s=4.0, record_bytes=100)) == 1_250_000


def test_a_slow_query_takes_less_at_once() -> None:
    assert next_limit(500_000, Taken(amount=500_000, duration_s=100.0)) == 50_000


def test_a_batch_that_was_not_cut_short_never_raises_the_limit() -> None:
    assert next_limit(1000, Taken(amount=10, duration_s=0.3)) == 1000
    assert next_limit(1000, Taken(amount=0, duration_s=0.1)) == 1000
    assert next_limit(1000, Taken(amount=100, duration_s=100.0)) == 10


def test_large_records_to_come_lower_the_limit_before_they_are_read() -> None:
    assert next_limit(500_000, Taken(amount=500_000, duration_s=5.0, record_bytes=5 * MB)) == 51


def test_a_limit_is_never_nothing() -> None:
    assert next_limit(1, Taken(amount=1, duration_s=1000.0)) == 1


def test_limits_settle_where_a_batch_takes_ten_seconds() -> None:
    limit, rate = 500, 2_000
    for _ in range(10):
        limit = next_limit(limit, Taken(amount=limit, duration_s=limit / rate))
    assert limit == 10 * rate
