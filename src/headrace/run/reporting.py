"""Reports of flows: events, results, batches, their steps, and lag. An error in a report fails no flow."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import HeadraceError
from headrace.model import events
from headrace.model.event_forms import Emitter, Event
from headrace.model.ranges import SourceRange
from headrace.model.table_events import SnapshotSkipped
from headrace.plan.stages import PlannedFlow
from headrace.sinks.target import BatchStamp, Committed
from headrace.sources.registry import kind_of
from headrace.sources.requests import Lag, Systems
from headrace.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


_INTERVAL_S = 1.0
"""Minimum seconds between two measurements, so that they do not delay batches."""

_SHARE = 0.02
"""The highest share of the time that measurements take: the list of a large folder takes seconds."""


@dataclass
class LagGauge:
    """Measures what a flow's sources hold beyond its last batch. `record_bytes`: the mean size of a record of
    a source, by the source's index; ``None`` if unknown."""

    _systems: Systems
    _checkpoint: Location
    _record_bytes: Callable[[int], float | None]
    _next_s: float = 0.0

    def measure(self, ranges: tuple[SourceRange, ...]) -> events.Backlog:
        """The backlog behind the ends of ranges; it is not known if it was measured just before."""
        began = time.monotonic()
        if began < self._next_s:
            return events.Backlog()
        found = [(one, kind_of(one.kind).lag(one, self._systems, self._checkpoint)) for one in ranges]
        ended = time.monotonic()
        self._next_s = ended + max(_INTERVAL_S, (ended - began) / _SHARE)
        records = [None if lag is None or lag.counts_files else lag.count for _, lag in found]
        sizes = [None if lag is None else self._size(one, lag) for one, lag in found]
        return events.Backlog(records=_total(records), size_bytes=_total(sizes))

    def _size(self, one: SourceRange, lag: Lag) -> int | None:
        if lag.size_bytes is not None or not lag.count:
            return lag.size_bytes or 0
        mean = self._record_bytes(one.index)
        return None if mean is None else round(lag.count * mean)


def _total(counts: list[int | None]) -> int | None:
    """The sum; ``None`` if there is nothing to add, or a count is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


_LOG = logging.getLogger(__name__)

AfterBatch = Callable[[tuple[SourceRange, ...], float], None]
"""Called after each batch with its ranges, and the seconds that it took."""


@contextmanager
def logged_only(what: str) -> Iterator[None]:
    """Log an error in the block as a warning, and continue.

    A flow that failed after its commit would replay the batch at each start, and fail again. `what`: what the
    block reports, such as ``flow orders: the lag after batch 7``.
    """
    try:
        yield
    except Exception:
        _LOG.warning("%s could not be reported", what, exc_info=True)


@dataclass
class Progress:
    """The counts of a flow in this update, over all its attempts."""

    rows: int = 0
    batches: int = 0
    late: int = 0
    """Rows that its query dropped as too late."""
    commits: int = 0
    started: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, kw_only=True)
class BatchReporter:
    planned: PlannedFlow
    reports: FlowReports
    progress: Progress  # the flow's counts so far
    measure_lag: Callable[
        [tuple[SourceRange, ...]], events.Backlog
    ]  # what the sources hold beyond these ranges
    after_batch: Mapping[str, AfterBatch]

    def began(self, number: int) -> None:
        self.reports.report(events.BatchStarted, self.planned, batch=number)

    def ended(self, stamp: BatchStamp, committed: Committed | None, duration_s: float) -> None:
        """Report that the target holds a batch. `committed`: its commit; ``None`` for a replayed batch."""
        self.progress.batches += 1
        if committed is not None:
            self.progress.rows += committed.counts.accepted
            self.progress.commits += 1
        with logged_only(f"flow {stamp.flow}: the event of batch {stamp.batch}"):
            self._emit_end(stamp, committed, duration_s)
        for what, call in self.after_batch.items():
            with logged_only(f"flow {stamp.flow}: {what} after batch {stamp.batch}"):
                call(stamp.ranges, duration_s)

    def _emit_end(self, stamp: BatchStamp, committed: Committed | None, duration_s: float) -> None:
        if committed is None:
            self.reports.report(events.BatchReplayed, self.planned, batch=stamp.batch)
            return
        backlog, counts = events.Backlog(), committed.counts
        with logged_only(f"flow {stamp.flow}: the lag after batch {stamp.batch}"):
            backlog = self.measure_lag(stamp.ranges)
        self.reports.report(
            events.BatchCommitted,
            self.planned,
            batch=stamp.batch,
            version=committed.version,
            rows=counts.accepted,
            duration_s=duration_s,
            ranges=stamp.ranges,
            lag=backlog.records,
            lag_bytes=backlog.size_bytes,
            latency_s=record_ages(committed, self.planned.timestamp),
            quarantined=counts.quarantined,
            dropped=counts.dropped,
            expectations=tuple(one.to_json() for one in counts.expectations),
            bad_records=tuple(one.to_json() for one in counts.bad_records),
            checkpoint=stamp.checkpoint,
            changes=counts.changes,
            without_index=committed.without_index,
        )


def record_ages(committed: Committed, timestamp: str | None) -> tuple[float, float] | None:
    """The age of the oldest and of the newest record in seconds, from Delta's statistics."""
    if timestamp is None:
        return None
    oldest = [_at(s.get("minValues"), timestamp) for s in committed.statistics]
    newest = [_at(s.get("maxValues"), timestamp) for s in committed.statistics]
    first = min((at for at in oldest if at is not None), default=None)
    last = max((at for at in newest if at is not None), default=None)
    if first is None or last is None:
        return None
    now = datetime.now(UTC)
    return (now - first).total_seconds(), (now - last).total_seconds()


def _at(values: Any, path: str) -> datetime | None:
    """The timestamp of one column in Delta's statistics; ``None`` if Python cannot represent it.

    A producer can set any timestamp, also one after the year 9999.
    """
    for part in path.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    try:
        found = datetime.fromisoformat(values) if isinstance(values, str) else None
    except ValueError:
        return None
    return found if found is None or found.tzinfo else found.replace(tzinfo=UTC)


Outcome = Literal["up to date", "stopped", "plan again"]
"""How a flow ends without an error."""


@dataclass(frozen=True, kw_only=True)
class FlowResult:
    """How a flow ended. `outcome`: ``skipped`` if the flow was not started because a table that it reads was
    never written; ``plan again`` is used only within an update."""

    flow: str
    outcome: Outcome | Literal["failed", "skipped"]
    rows: int = 0
    batches: int = 0
    late: int = 0  # rows that the query dropped because they were older than its watermark
    commits: int = 0  # batches that were committed to the table
    duration_s: float = 0.0
    error: HeadraceError | None = None
    reason: str | None = None

    def __repr__(self) -> str:
        return f"<FlowResult {self.flow}: {self.outcome}, +{self.rows:,} rows>"


@dataclass(frozen=True)
class FlowReports:
    """Emits the events of flows, and makes the results of those that ended."""

    update: str
    emit: Emitter

    def report(self, event: Callable[..., Event], planned: PlannedFlow, **more: Any) -> None:
        flow = planned.flow
        self.emit(event(update=self.update, flow=flow.name, dataset=flow.target, **more))

    def started(self, planned: PlannedFlow, checkpoint: str) -> None:
        """Report that a flow's query runs."""
        self.report(events.FlowStarted, planned, checkpoint=checkpoint)

    def late(self, planned: PlannedFlow, batch: int, rows: int) -> None:
        """Report rows that the query dropped because they were older than its watermark."""
        self.report(events.LateRowsDropped, planned, batch=batch, rows=rows)

    def snapshot_skipped(self, planned: PlannedFlow, version: str, reason: str) -> None:
        _LOG.warning("flow %s: skipped the snapshot %s: %s", planned.flow.name, version, reason)
        self.report(SnapshotSkipped, planned, snapshot=version, reason=reason)

    def retrying(self, planned: PlannedFlow, error: HeadraceError, attempt: int, wait_s: float) -> None:
        self.report(events.FlowRetrying, planned, error=error.to_dict(), attempt=attempt, wait_s=wait_s)

    def finished(
        self, planned: PlannedFlow, outcome: Outcome, progress: Progress | None = None
    ) -> FlowResult:
        """Report that a flow ended without an error."""
        done = progress or Progress()
        if outcome != "plan again":
            self.report(events.FlowFinished, planned, outcome=outcome, rows=done.rows, batches=done.batches)
        return _result(planned, outcome, done)

    def failed(
        self, planned: PlannedFlow, error: HeadraceError, progress: Progress | None = None
    ) -> FlowResult:
        # The trace is for the log alone; what a person needs is in the error.
        _LOG.info("flow %s failed", planned.flow.name, exc_info=error)
        self.report(events.FlowFailed, planned, error=error.to_dict())
        return _result(planned, "failed", progress or Progress(), error)

    def skipped(self, planned: PlannedFlow, reason: str) -> FlowResult:
        self.report(events.FlowSkipped, planned, reason=reason)
        return FlowResult(flow=planned.flow.name, outcome="skipped", reason=reason)


def _result(
    planned: PlannedFlow,
    outcome: Outcome | Literal["failed"],
    progress: Progress,
    error: HeadraceError | None = None,
) -> FlowResult:
    return FlowResult(
        flow=planned.flow.name,
        outcome=outcome,
        rows=progress.rows,
        batches=progress.batches,
        late=progress.late,
        commits=progress.commits,
        duration_s=time.monotonic() - progress.started,
        error=error,
    )


_SPARK_STEPS = {
    "latestOffset": "offsets",
    "walCommit": "offsets",
    "getBatch": "planning",
    "queryPlanning": "planning",
    "commitOffsets": "marks",
}
"""The steps of Spark's progress reports that are not within the batch function; see `BatchTimed`."""
_DURATION = re.compile(r"(\w+)=(\d+)")
_CONCURRENT = re.compile("Concurrent|Cycles")
"""In the names of garbage collectors that run beside the program: they do not pause it."""


class StepClock:
    """Measures steps that follow one another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.monotonic()

    def end(self, step: str) -> None:
        """End a step; it began when the one before ended. A step that is repeated adds up."""
        now = time.monotonic()
        self.seconds[step] = self.seconds.get(step, 0.0) + now - self._at
        self._at = now


class JvmWork:
    """What the JVM does beside the batches of a flow, in milliseconds since the call before."""

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session._jvm
        factory = jvm.java.lang.management.ManagementFactory
        compiler = factory.getCompilationMXBean()
        self._counters: list[tuple[str, Callable[[], int]]] = [
            ("gc", one.getCollectionTime)
            for one in factory.getGarbageCollectorMXBeans()
            if not _CONCURRENT.search(one.getName())
        ]
        if compiler is not None:
            self._counters.append(("compiler", compiler.getTotalCompilationTime))
        self._before = self._count()

    def take(self) -> dict[str, int]:
        """The pauses of the collector, ``gc``, and the work of the ``compiler``."""
        now = self._count()
        found = {name: total - self._before[name] for name, total in now.items()}
        self._before = now
        return found

    def _count(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, count in self._counters:
            found[name] = found.get(name, 0) + max(count(), 0)
        return found


@dataclass(frozen=True)
class _Ended:
    seconds: Mapping[str, float]
    jvm_ms: Mapping[str, int]


@dataclass
class BatchSteps:
    """Reports the steps of each batch.

    The batch function measures its own steps, and calls `ended`. Spark reports the other steps a little
    later; the flow's thread calls `look` for them. `work`: returns what the JVM did since the last call.
    `report`: takes ``at`` (the end of the batch), ``batch``, ``steps_ms`` and ``jvm_ms``."""

    work: Callable[[], Mapping[str, int]]
    report: Callable[..., None]
    _ended: dict[int, _Ended] = field(default_factory=dict)

    def ended(self, batch: int, seconds: Mapping[str, float]) -> None:
        """Take the steps of the batch function."""
        with logged_only(f"the steps of batch {batch}"):
            self._ended[batch] = _Ended(seconds, self.work())

    def look(self, query: StreamingQuery) -> None:
        """Report the batches that Spark has reported since the last call."""
        if self._ended:
            with logged_only(f"the steps of the batches of {query.name}"):
                self._look(query._jsq)

    def _look(self, query: Any) -> None:
        newest = query.lastProgress()
        if newest is None or newest.batchId() < min(self._ended):
            return
        for progress in reversed(query.recentProgress()):
            batch = int(progress.batchId())
            if batch < min(self._ended, default=batch + 1):
                return
            times = {name: int(ms) for name, ms in _DURATION.findall(progress.durationMs().toString())}
            if "addBatch" in times and (ended := self._ended.pop(batch, None)) is not None:
                began = datetime.fromisoformat(progress.timestamp())
                at = began + timedelta(milliseconds=times["triggerExecution"])
                steps = _joined(ended.seconds, times)
                self.report(at=at, batch=batch, steps_ms=steps, jvm_ms=ended.jvm_ms)


def _joined(own_s: Mapping[str, float], spark_ms: Mapping[str, int]) -> dict[str, int]:
    """The steps in their order, in milliseconds."""
    found = dict.fromkeys(("offsets", "planning"), 0)
    own_ms = {name: round(1000 * seconds) for name, seconds in own_s.items()}
    rest = max(spark_ms["addBatch"] - sum(own_ms.values()), 0)
    found |= own_ms | {"report": own_ms.get("report", 0) + rest, "marks": 0}
    for name, step in _SPARK_STEPS.items():
        found[step] += spark_ms.get(name, 0)
    return found
