"""What is reported of a batch: events, counts, the age of its records. Reporting never fails a flow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.errors import SourceLocation
from headrace.model.counts import BatchCounts
from headrace.model.declarations import AppendFlow
from headrace.model.event_forms import Event
from headrace.model.events import BatchCommitted, BatchReplayed, BatchStarted
from headrace.model.names import TableName
from headrace.model.queries import PythonQuery
from headrace.run.reporting import BatchReporter, FlowReports, Progress, logged_only, record_ages
from headrace.sinks.target import BatchStamp, Committed

ONE = BatchCounts(input=1, accepted=1)
STAMP = BatchStamp(pipeline="shop", flow="sales", checkpoint="c1", batch=4, ranges=())


def committed(*ages_s: tuple[float, float]) -> Committed:
    def at(age: float) -> str:
        return (datetime.now(UTC) - timedelta(seconds=age)).isoformat(timespec="milliseconds")

    statistics: list[dict[str, Any]] = [
        {"numRecords": 1, "minValues": {"s": {"at": at(old)}}, "maxValues": {"s": {"at": at(new)}}}
        for old, new in ages_s
    ]
    return Committed(version=1, counts=ONE, statistics=tuple(statistics))


def test_the_ages_of_the_oldest_and_the_newest_record() -> None:
    found = record_ages(committed((9.0, 3.0), (5.0, 1.0)), "s.at")
    assert found is not None
    assert found == pytest.approx((9.0, 1.0), abs=0.5)


@pytest.mark.parametrize("column", [None, "s.other", "other"])
def test_no_age_without_a_timestamp(column: str | None) -> None:
    assert record_ages(committed((9.0, 3.0)), column) is None
    assert record_ages(Committed(version=1, counts=ONE), column) is None


@pytest.mark.parametrize("at", ["+10000-01-01T00:00:00.000Z", "10000-01-01T00:00:00.000Z", "today"])
def test_a_timestamp_that_python_cannot_hold_is_left_out(at: str) -> None:
    one = {"minValues": {"at": "9999-12-31T23:59:59.999Z"}, "maxValues": {"at": at}}
    assert record_ages(Committed(version=1, counts=ONE, statistics=(one,)), "at") is None


def test_a_timestamp_without_a_zone_is_utc() -> None:
    one = {"minValues": {"at": "2026-01-01T00:00:00"}, "maxValues": {"at": "2026-01-01T00:00:00"}}
    assert record_ages(Committed(version=1, counts=ONE, statistics=(one,)), "at") is not None


def test_an_error_in_a_report_is_logged_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    with logged_only("flow orders: the lag after batch 7"):
        raise ValueError("year 10000 is out of range")
    assert "the lag after batch 7 could not be reported" in caplog.text


class Reports:
    """A reporter, and what it reported."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.calls: list[str] = []
        self.progress = Progress()
        flow = AppendFlow(
            name="sales",
            target=TableName("default", "sales"),
            query=PythonQuery(lambda: None, SourceLocation("sales.py", 1)),
        )
        self.reporter = BatchReporter(
            planned=cast(Any, SimpleNamespace(flow=flow, timestamp=None)),
            reports=FlowReports("u1", self.events.append),
            progress=self.progress,
            measure_lag=self.measure_lag,
            after_batch={"the offsets": self.fail, "the limit": lambda *_: self.calls.append("limit")},
        )

    def measure_lag(self, ranges: Any) -> int:
        raise RuntimeError("the broker is down")

    def fail(self, ranges: Any, duration_s: float) -> None:
        raise RuntimeError("the broker is down")


def test_a_commit_is_reported_and_counted_even_where_other_reports_fail() -> None:
    reports = Reports()
    reports.reporter.began(4)
    reports.reporter.ended(STAMP, Committed(version=7, counts=BatchCounts(input=3, accepted=3)), 0.5)
    began, ended = reports.events
    assert isinstance(began, BatchStarted) and began.batch == 4
    assert isinstance(ended, BatchCommitted)
    assert (ended.batch, ended.version, ended.rows, ended.lag, ended.duration_s) == (4, 7, 3, None, 0.5)
    assert (reports.progress.batches, reports.progress.commits, reports.progress.rows) == (1, 1, 3)
    assert reports.calls == ["limit"]


def test_a_replay_is_reported_and_counts_no_rows() -> None:
    reports = Reports()
    reports.reporter.ended(STAMP, None, 0.5)
    (ended,) = reports.events
    assert isinstance(ended, BatchReplayed)
    assert (reports.progress.batches, reports.progress.commits, reports.progress.rows) == (1, 0, 0)
