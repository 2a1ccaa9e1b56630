"""What the slowest batches of a flow consist of, from the event log."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import fmean, median
from typing import Any

from headrace.observe.event_table import EventTable, sql_time
from headrace.observe.read import fields_to_json
from headrace.storage.layout import Storage

_SPAN = timedelta(hours=1)
_SHARE = 100  # one of so many batches is slow
_NEWEST = "SELECT max(timestamp) AS at FROM t WHERE event_type = 'batch_steps'"
_ROWS = (
    "SELECT timestamp AS at, event_type AS type, origin['flow_name'] AS flow, details FROM t WHERE "
    "timestamp >= {since} AND (event_type = 'batch_steps' OR (event_type = 'operation_progress' "
    "AND details LIKE '%\"MAINTENANCE\"%')) ORDER BY timestamp"
)


@dataclass(frozen=True, kw_only=True)
class SlowStep:
    step: str
    median_ms: float  # of all batches
    slow_ms: float  # the mean of the slowest batches
    share: float | None  # of the time by which the slowest batches exceed the median; ``None`` if they do not


@dataclass(frozen=True, kw_only=True)
class SlowBatches:
    """The slowest percent of the batches of a flow."""

    flow: str
    batches: int
    slowest: tuple[int, ...]  # their numbers
    from_ms: int  # the shortest of them
    steps: tuple[SlowStep, ...]  # the last one is the ``total``
    beside: Mapping[str, int]  # in how many of the slowest batches something else ran, by its name
    pauses_ms: int  # the pauses of the collector during the slowest batches

    def to_json(self) -> dict[str, Any]:
        return fields_to_json(self)


@dataclass(frozen=True)
class _Batch:
    number: int
    began: datetime
    ended: datetime
    steps: Mapping[str, int]
    jvm: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.steps.values())


@dataclass(frozen=True)
class _Work:
    name: str
    began: datetime
    ended: datetime


def find_slow_batches(storage: Storage, since: datetime | None = None) -> list[SlowBatches]:
    """The slowest batches of each flow since a time; by default, in the last hour of the event log."""
    table = EventTable(storage.events)
    newest = table.query(_NEWEST)
    if not newest or newest[0]["at"] is None:
        return []
    rows = table.query(_ROWS.format(since=sql_time(since or newest[0]["at"] - _SPAN)))
    batches: dict[str, list[_Batch]] = {}
    works: list[_Work] = []
    for row in rows:
        details = next(iter(json.loads(row["details"]).values()))
        if row["type"] == "batch_steps":
            at, steps = row["at"], details["steps_ms"]
            began = at - timedelta(milliseconds=sum(steps.values()))
            one = _Batch(details["batch"], began, at, steps, details["jvm_ms"])
            batches.setdefault(row["flow"], []).append(one)
        elif details.get("duration_ms"):
            works += _works(row["at"], details)
    return [_slowest(flow, held, works, batches) for flow, held in sorted(batches.items())]


def _works(at: datetime, details: Mapping[str, Any]) -> Iterable[_Work]:
    names = {"compacted": "compaction", "vacuumed": "vacuum", "checkpoint": "log checkpoint"}
    for key in names.keys() & details.keys():
        yield _Work(names[key], at - timedelta(milliseconds=details["duration_ms"]), at)


def _slowest(
    flow: str, batches: Sequence[_Batch], works: Sequence[_Work], all_batches: Mapping[str, Sequence[_Batch]]
) -> SlowBatches:
    slow = sorted(batches, key=lambda one: one.total)[-max(len(batches) // _SHARE, 1) :]
    usual_ms, slow_ms = median(one.total for one in batches), fmean(one.total for one in slow)
    excess = slow_ms - usual_ms
    names = dict.fromkeys(name for one in batches for name in one.steps)
    steps = []
    for name in names:
        usual = median(one.steps.get(name, 0) for one in batches)
        mean = fmean(one.steps.get(name, 0) for one in slow)
        share = (mean - usual) / excess if excess > 0 else None
        steps.append(SlowStep(step=name, median_ms=usual, slow_ms=mean, share=share))
    steps.append(SlowStep(step="total", median_ms=usual_ms, slow_ms=slow_ms, share=None))
    beside: Counter[str] = Counter()
    for one in slow:
        ran = {work.name for work in works if work.began < one.ended and work.ended > one.began}
        ran |= {name for name, ms in one.jvm.items() if ms}
        if any(name != flow and _overlaps(one, held) for name, held in all_batches.items()):
            ran.add("other flows")
        beside.update(ran)
    return SlowBatches(
        flow=flow,
        batches=len(batches),
        slowest=tuple(sorted(one.number for one in slow)),
        from_ms=slow[0].total,
        steps=tuple(steps),
        beside=dict(beside.most_common()),
        pauses_ms=sum(one.jvm.get("gc", 0) for one in slow),
    )


def _overlaps(one: _Batch, others: Sequence[_Batch]) -> bool:
    """Whether one of the batches of another flow, in the order of their ends, ran at the same time."""
    index = bisect_right(others, one.began, key=lambda other: other.ended)
    return index < len(others) and others[index].began < one.ended
