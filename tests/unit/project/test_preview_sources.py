"""Which records a preview reads."""

from __future__ import annotations

from headrace.sources.kafka.reader import newest
from headrace.sources.requests import SourceSeen


def test_the_newest_records_are_spread_over_partitions() -> None:
    first = {"t": {0: 0, 1: 0, 2: 0}}
    until = {"t": {0: 100, 1: 100, 2: 100}}
    assert newest(first, until, 30) == {"t": {0: 90, 1: 90, 2: 90}}


def test_what_a_small_partition_leaves_goes_to_the_others() -> None:
    first = {"t": {0: 5, 1: 0}, "u": {0: 40}}
    until = {"t": {0: 7, 1: 100}, "u": {0: 40}}
    assert newest(first, until, 12) == {"t": {0: 5, 1: 90}, "u": {0: 40}}


def test_no_more_is_read_than_there_is_or_than_was_asked_for() -> None:
    first, until = {"t": {0: 0, 1: 0}}, {"t": {0: 3, 1: 4}}
    assert newest(first, until, 1000) == first
    for count in range(1, 8):
        start = newest(first, until, count)
        assert sum(until["t"][p] - start["t"][p] for p in (0, 1)) == count


def test_what_was_read_is_said_in_a_line() -> None:
    assert str(SourceSeen(kind="kafka", name="orders", read=4000, held=60000)) == (
        "kafka orders: 4,000 of 60,000 records"
    )
    assert str(SourceSeen(kind="table", name="orders", version=12)) == "table orders: v12"
