"""What a batch tells of itself: how many offsets it spans, and how old its records are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.model.ranges import SourceRange
from headrace.run.batch import _latency, records
from headrace.sinks.delta.commit import Appended


def kafka(start: dict[str, int] | None, until: dict[str, int]) -> SourceRange:
    return SourceRange(
        index=0,
        kind="kafka",
        identity={},
        start=None if start is None else {"t": start},
        until={"t": until},
    )


@pytest.mark.parametrize(
    ("start", "until", "expected"),
    [
        ({"0": 0, "1": 0}, {"0": 10, "1": 5}, 15),
        ({"0": 7, "1": 5}, {"0": 10, "1": 5}, 3),
        ({"0": 7}, {"0": 7, "1": 4}, 4),
        (None, {"0": 7}, 7),
    ],
    ids=["first batch", "one partition moved", "a new partition", "no start"],
)
def test_the_offsets_of_a_batch(start: dict[str, int] | None, until: dict[str, int], expected: int) -> None:
    assert records((kafka(start, until),)) == expected


def test_other_sources_have_no_offsets() -> None:
    assert (
        records((SourceRange(index=0, kind="files", identity={}, start=None, until={"logOffset": 3}),)) == 0
    )


def appended(*ages_s: tuple[float, float]) -> Appended:
    def at(age: float) -> str:
        return (datetime.now(UTC) - timedelta(seconds=age)).isoformat(timespec="milliseconds")

    statistics: list[dict[str, Any]] = [
        {"numRecords": 1, "minValues": {"s": {"at": at(old)}}, "maxValues": {"s": {"at": at(new)}}}
        for old, new in ages_s
    ]
    return Appended(version=1, rows=1, statistics=tuple(statistics))


def test_the_ages_of_the_oldest_and_the_newest_record() -> None:
    found = _latency(appended((9.0, 3.0), (5.0, 1.0)), "s.at")
    assert found is not None
    assert found == pytest.approx((9.0, 1.0), abs=0.5)


@pytest.mark.parametrize("column", [None, "s.other", "other"])
def test_no_age_without_a_timestamp(column: str | None) -> None:
    assert _latency(appended((9.0, 3.0)), column) is None
    assert _latency(Appended(version=1, rows=0), column) is None
