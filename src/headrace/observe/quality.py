"""The counts of expectations over time, from the event log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from headrace.model.event_forms import Row
from headrace.model.names import TableName
from headrace.model.texts import html_table
from headrace.observe.event_table import EventFilter, query_events
from headrace.observe.read import plain
from headrace.storage.layout import Storage

SPANS = 20  # the number of equal time spans into which the counts are divided


@dataclass(frozen=True, kw_only=True)
class SpanCounts:
    start: datetime
    end: datetime
    passed: int
    failed: int

    def to_json(self) -> dict[str, Any]:
        return {
            "start": self.start.isoformat(timespec="seconds"),
            "end": self.end.isoformat(timespec="seconds"),
            "passed": self.passed,
            "failed": self.failed,
        }


@dataclass(frozen=True, kw_only=True)
class ExpectationQuality:
    """The counts of one expectation, or of the records that are bad for one reason."""

    name: str  # the expectation, or the reason, such as ``RECORD_UNPARSEABLE``
    dataset: str
    action: str  # what happens to rows that fail: ``warn``, ``drop``, ``quarantine`` or ``fail``
    passed: int
    failed: int  # rows that failed. A row can fail several expectations
    over_time: tuple[SpanCounts, ...]  # the same counts in equal spans of time, oldest first


@dataclass(frozen=True, kw_only=True)
class DatasetQuality:
    """The rows of one table or materialized view, and the counts of its expectations."""

    dataset: TableName
    accepted: int
    quarantined: int
    dropped: int
    expectations: tuple[ExpectationQuality, ...]
    # The counts of records that readers have left out, by reason.
    bad_records: tuple[ExpectationQuality, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Quality:
    pipeline: str
    datasets: tuple[DatasetQuality, ...]
    start: datetime | None = None  # the time of the first batch that is counted; ``None`` if there is none
    end: datetime | None = None

    def __repr__(self) -> str:
        failed = sum(one.failed for dataset in self.datasets for one in dataset.expectations)
        return f"<Quality of {self.pipeline}: {len(self.datasets)} datasets, {failed:,} failed rows>"

    def _repr_html_(self) -> str:
        rows = [
            (dataset.dataset.short, one.name, one.action, one.passed, one.failed)
            for dataset in self.datasets
            for one in (*dataset.expectations, *dataset.bad_records)
        ]
        return html_table(self.pipeline, ("dataset", "expectation", "action", "passed", "failed"), rows)

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "start": None if self.start is None else self.start.isoformat(timespec="milliseconds"),
            "end": None if self.end is None else self.end.isoformat(timespec="milliseconds"),
            "datasets": plain(self.datasets),
        }


def read_quality(storage: Storage, chosen: EventFilter) -> Quality:
    """Sum up the counts of the batches and refreshes in the event log."""
    rows = query_events(
        storage,
        "SELECT timestamp AS at, origin['dataset_name'] AS dataset, details FROM t "
        f"WHERE level = 'METRICS' AND {chosen.to_sql()} ORDER BY timestamp",
    )
    return sum_quality(chosen.pipeline, rows)


def sum_quality(pipeline: str, rows: Iterable[Row]) -> Quality:
    """Sum up the counts of batches and refreshes. `rows`: time, dataset and details of each, oldest first."""
    batches = [_Batch(row) for row in rows]
    # Batches without expectations and rejected rows have no quality to show.
    checked = [one for one in batches if one.expectations or one.quarantined or one.dropped]
    names = sorted({one.dataset for one in checked})
    if not names:
        return Quality(pipeline=pipeline, datasets=())
    counted = [one for one in batches if one.dataset in names]
    start, end = counted[0].at, counted[-1].at
    return Quality(
        pipeline=pipeline,
        datasets=tuple(
            _sum_dataset(name, [one for one in counted if one.dataset == name], start, end) for name in names
        ),
        start=start,
        end=end,
    )


class _Batch:
    def __init__(self, row: Row) -> None:
        progress = json.loads(row["details"])["flow_progress"]
        quality = progress["data_quality"]
        self.at: datetime = row["at"]
        self.dataset = TableName.parse(row["dataset"], "")
        self.accepted = int(progress["metrics"]["num_output_rows"])
        self.quarantined = int(quality["quarantined_records"])
        self.dropped = int(quality["dropped_records"])
        self.expectations: Sequence[Mapping[str, Any]] = quality.get("expectations", ())
        self.bad_records: Sequence[Mapping[str, Any]] = quality.get("bad_records", ())

    def count_bad(self, name: str, action: str) -> Mapping[str, Any]:
        """How many records are bad for a reason, in the form of an expectation's counts."""
        total = self.accepted + self.quarantined + self.dropped
        bad = sum(
            one["records"] for one in self.bad_records if (one["name"], one["action"]) == (name, action)
        )
        return {
            "name": name,
            "dataset": str(self.dataset),
            "action": action,
            "passed_records": total - bad,
            "failed_records": bad,
        }


@dataclass
class _Sum:
    action: str = ""
    passed: list[int] = field(default_factory=lambda: [0] * SPANS)
    failed: list[int] = field(default_factory=lambda: [0] * SPANS)


def _sum_dataset(
    name: TableName, batches: Iterable[_Batch], start: datetime, end: datetime
) -> DatasetQuality:
    batches = list(batches)
    reasons = sorted({(bad["name"], bad["action"]) for one in batches for bad in one.bad_records})
    bad = [(one, [one.count_bad(*reason) for reason in reasons]) for one in batches]
    return DatasetQuality(
        dataset=name,
        accepted=sum(one.accepted for one in batches),
        quarantined=sum(one.quarantined for one in batches),
        dropped=sum(one.dropped for one in batches),
        expectations=_over_time([(one, one.expectations) for one in batches], start, end),
        bad_records=_over_time(bad, start, end),
    )


def _over_time(
    counts: Iterable[tuple[_Batch, Iterable[Mapping[str, Any]]]], start: datetime, end: datetime
) -> tuple[ExpectationQuality, ...]:
    length = max((end - start) / SPANS, timedelta(milliseconds=1))
    sums: dict[tuple[str, str], _Sum] = {}
    for batch, listed in counts:
        span = min(int((batch.at - start) / length), SPANS - 1)
        for one in listed:
            known = sums.setdefault((one["dataset"], one["name"]), _Sum())
            known.action = one["action"]
            known.passed[span] += one["passed_records"]
            known.failed[span] += one["failed_records"]
    return tuple(
        ExpectationQuality(
            name=name,
            dataset=dataset,
            action=known.action,
            passed=sum(known.passed),
            failed=sum(known.failed),
            over_time=tuple(
                SpanCounts(
                    start=start + number * length,
                    end=start + (number + 1) * length,
                    passed=known.passed[number],
                    failed=known.failed[number],
                )
                for number in range(SPANS)
            ),
        )
        for (dataset, name), known in sums.items()
    )
