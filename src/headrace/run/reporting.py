"""Reports after a commit: events, lag, limits. An error in a report never fails a flow."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace.model.events import Backlog, BatchCommitted, BatchReplayed, BatchStarted, Emitter
from headrace.model.ranges import SourceRange
from headrace.plan.stages import PlannedFlow
from headrace.sinks.target import BatchStamp, Committed

_LOG = logging.getLogger(__name__)

AfterBatch = Callable[[tuple[SourceRange, ...], float], None]
"""Called after each batch with its ranges, and the seconds that it took."""


@contextmanager
def logged_only(what: str) -> Iterator[None]:
    """Log an error in the block as a warning, and continue.

    A flow that failed after its commit would replay the batch at each start, and fail again.

    Args:
        what: What the block reports, such as ``flow orders: the lag after batch 7``.
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
    """Reports each batch of a flow."""

    planned: PlannedFlow
    update: str
    emit: Emitter
    progress: Progress  # the flow's counts so far
    measure_lag: Callable[[tuple[SourceRange, ...]], Backlog]  # what the sources hold beyond these ranges
    after_batch: Mapping[str, AfterBatch]

    def began(self, number: int) -> None:
        """Report that a batch runs."""
        flow = self.planned.flow
        self.emit(BatchStarted(update=self.update, flow=flow.name, dataset=flow.target, batch=number))

    def ended(self, stamp: BatchStamp, committed: Committed | None, duration_s: float) -> None:
        """Report that the target holds a batch.

        Args:
            committed: Its commit; ``None`` for a replayed batch.
        """
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
        flow = self.planned.flow
        if committed is None:
            self.emit(
                BatchReplayed(update=self.update, flow=flow.name, dataset=flow.target, batch=stamp.batch)
            )
            return
        backlog = Backlog()
        with logged_only(f"flow {flow.name}: the lag after batch {stamp.batch}"):
            backlog = self.measure_lag(stamp.ranges)
        self.emit(
            BatchCommitted(
                update=self.update,
                flow=flow.name,
                dataset=flow.target,
                batch=stamp.batch,
                version=committed.version,
                rows=committed.counts.accepted,
                duration_s=duration_s,
                ranges=stamp.ranges,
                lag=backlog.records,
                lag_bytes=backlog.size_bytes,
                latency_s=record_ages(committed, self.planned.timestamp),
                quarantined=committed.counts.quarantined,
                dropped=committed.counts.dropped,
                expectations=tuple(one.to_json() for one in committed.counts.expectations),
                bad_records=tuple(one.to_json() for one in committed.counts.bad_records),
                checkpoint=stamp.checkpoint,
                changes=committed.counts.changes,
                without_index=committed.without_index,
            )
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
