"""What a batch tells of itself: how many offsets it spans, and how old its records are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.model.ranges import SourceRange
from headrace.run.batch import _latency, records
from headrace.run.reporting import logged_only
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


@pytest.mark.parametrize("at", ["+10000-01-01T00:00:00.000Z", "10000-01-01T00:00:00.000Z", "today"])
def test_a_timestamp_that_python_cannot_hold_is_left_out(at: str) -> None:
    one = {"minValues": {"at": "9999-12-31T23:59:59.999Z"}, "maxValues": {"at": at}}
    assert _latency(Appended(version=1, rows=1, statistics=(one,)), "at") is None


def test_a_timestamp_without_a_zone_is_utc() -> None:
    one = {"minValues": {"at": "2026-01-01T00:00:00"}, "maxValues": {"at": "2026-01-01T00:00:00"}}
    assert _latency(Appended(version=1, rows=1, statistics=(one,)), "at") is not None


def test_an_error_in_a_report_is_logged_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    with logged_only("flow orders: the lag after batch 7"):
        raise ValueError("year 10000 is out of range")
    assert "the lag after batch 7 could not be reported" in caplog.text
