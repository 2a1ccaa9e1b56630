"""One batch of a flow, step by step: gate, ranges, split, write, commit, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.contracts.expectations import with_checks
from headrace.errors import CheckpointBehindTableError, QueryFailedError, SinkRowRefusedError, text_of
from headrace.model.ranges import SourceRange
from headrace.plan.stages import PlannedFlow
from headrace.run.bad_records import HeaderCheck
from headrace.run.failpoints import reach
from headrace.run.failures import Reading, violated_condition
from headrace.run.limits import Execution
from headrace.run.narrowing import NarrowedBatch, RecordSearch
from headrace.run.queue import BatchQueue
from headrace.run.reporting import BatchReporter, BatchSteps, StepClock
from headrace.run.split import BatchSplit, shown_row
from headrace.run.stop import PlanAgain, StopRequested, StopSignal
from headrace.runtime.gateway import quiet, release_unused
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.target import BatchStamp, BatchWriter, Committed, FlowTarget, SplitRows
from headrace.sources.kind import FlowRun
from headrace.sources.registry import SourceGuards, load_ranges
from headrace.state.lease import Lease
from headrace.state.ledger import TargetCommits
from headrace.storage.location import Location


class BatchRanges(SourceGuards):
    """The ranges of a flow's batches, which the guards of its sources check."""

    def __init__(self, run: FlowRun, *, pipeline: str, target: TargetCommits) -> None:
        super().__init__(run)
        self._run = run
        self._pipeline = pipeline
        self._target = target
        self._last: tuple[int, Sequence[SourceRange]] | None = None

    def load(self, number: int) -> BatchStamp:
        """Load the ranges of a batch that Spark has planned."""
        run = self._run
        # Spark writes the offsets of a batch once, so those of the last batch need no second read. But a
        # local folder can be away, and Spark then makes a new one without them: reading them shows that.
        known = None if run.checkpoint.is_local else self._last
        before = known[1] if known is not None and known[0] == number - 1 else None
        loaded = load_ranges(run.checkpoint, number, run.sources, before)
        self._last = (number, loaded)
        return BatchStamp(
            pipeline=self._pipeline,
            flow=run.flow.name,
            checkpoint=run.checkpoint_id,
            batch=number,
            ranges=self.begin(number, loaded),
        )

    def check_replay(self, stamp: BatchStamp) -> None:
        """Check that a replayed batch has the ranges that were committed."""
        flow, run = stamp.flow, self._run
        held = run.ledger.last_batch(self._target, stamp.checkpoint, stamp.batch)
        ours = [one.to_json()["until"] for one in stamp.ranges]
        theirs = None if held is None else [source["until"] for source in held["sources"]]
        if theirs == ours and self.is_replay(stamp.batch):
            return
        raise CheckpointBehindTableError(
            f"flow {flow}: the table holds batch {stamp.batch} with other offset ranges",
            location=run.flow.location,
            facts=(
                f"checkpoint {stamp.checkpoint} planned {ours}",
                f"the table holds {theirs}",
                "an old copy of the checkpoint was restored, or another driver planned the batch "
                "differently; nothing was written",
            ),
            remedies=(f"continue from the table:   headrace reset {flow}",),
            params={"flow": flow, "checkpoint": stamp.checkpoint, "batch": stamp.batch},
        )


ReadRecords = Callable[["DataFrame", BatchStamp], AbstractContextManager["DataFrame"]]
"""Gives the change records of a batch, from the rows of the query."""


class RecordFeed(Protocol):
    """The rows of a flow whose stream has only markers: snapshots, or a batch query that is applied once."""

    def look(self, *, applied: bool) -> bool:
        """Record a marker for the next version, and return whether there is one.
        `applied`: whether all markers are applied; else there is one to apply, if there are any."""

    def records(
        self, batch: DataFrame, stamp: BatchStamp, checkpoint: Location
    ) -> AbstractContextManager[DataFrame]:
        """The rows in place of the marker of a batch."""


@dataclass
class QueryState:
    """The state of the batches of a running query. The batch function writes it, the flow's thread reads it.

    Spark reports an exception of a Python batch function only as text, so the exception is kept here.
    """

    stop: StopSignal
    """Set by the flow's stop, and when the flow ends its query: no other batch begins then."""
    busy: bool = False
    """Whether a batch is running."""
    reading: Reading | None = None
    """The batch that runs or ran last, with its ranges."""
    failure: BaseException | None = None
    last_batch: int = -1
    """The last batch that ended without an error."""


@dataclass(frozen=True, kw_only=True)
class BatchFunction:
    """The function that Spark calls for each batch of a flow. `committed`: called after each batch, also
    after one that is repeated. `accepted`: called before the first batch, after Spark has planned it. `turn`:
    makes a context that holds off compactions while a batch runs. `queue`: gives the turns of a continuous
    update; ``None`` otherwise."""

    planned: PlannedFlow
    lease: Lease
    ranges: BatchRanges
    split: BatchSplit
    search: RecordSearch
    headers: HeaderCheck
    target: FlowTarget
    execution: Execution
    reporter: BatchReporter
    committed: Callable[[], object]
    state: QueryState
    steps: BatchSteps
    accepted: Callable[[], object] = lambda: None
    turn: Callable[[], AbstractContextManager[None]] = nullcontext
    snapshots: ReadRecords | None = None  # gives the rows of a batch whose row is a marker
    queue: BatchQueue | None = None

    def __call__(self, rows: DataFrame, number: int) -> None:
        state, queue, flow = self.state, self.queue, self.planned.flow.name
        state.busy = True
        try:
            clock = StepClock()
            if queue is not None:
                queue.begin(flow, state.stop)
            # The flow reports its errors.
            with quiet(), self.turn():
                clock.end("turn")
                self._run(rows, number, clock)
            state.last_batch = number
            clock.end("report")
            if queue is not None:
                queue.end(flow, state.stop)
            clock.end("turn")
            self.steps.ended(number, clock.seconds)
        except BaseException as error:
            state.failure = error
            raise
        finally:
            # Also after a failure: a flow is tried again and again.
            release_unused()
            state.busy = False

    def _run(self, rows: DataFrame, number: int, clock: StepClock) -> None:
        started_s = time.monotonic()
        flow = self.planned.flow.name
        check_gate(flow, self.state.stop, self.lease)
        reach("batch-start", flow, number)
        stamp = self.ranges.load(number)
        if self.state.reading is None:
            self.accepted()
        self.state.reading = Reading(number, stamp.ranges)
        self.reporter.began(number)
        with self.ranges.explained():
            committed = self._write(rows, stamp, clock)
        reach("after-commit", flow, number)
        self.ranges.committed()
        if committed is None:
            self.ranges.check_replay(stamp)
            if self.planned.stateful:
                self.ranges.check_same_rows(stamp.batch)
                # The batch's watermark, which closes windows and drops late rows, comes from its rows.
                rows.write.format("noop").mode("overwrite").save()
        self.reporter.ended(stamp, committed, time.monotonic() - started_s)
        self.committed()
        reach("after-batch", flow, number)

    def _write(self, rows: DataFrame, stamp: BatchStamp, clock: StepClock) -> Committed | None:
        """Write and commit the rows; ``None`` if the target already holds the batch."""
        session = rows.sparkSession
        writer = self.target.begin(session, stamp)
        clock.end("checks")
        if writer is None:
            return None
        with writer:
            rows, is_built_again = self.headers.by_name(rows, stamp)
            with (
                self._records(rows, stamp) as records,
                self.split.begin(records, stamp, is_built_again=is_built_again) as split,
            ):
                try:
                    writer.write(split)
                except (StopRequested, PlanAgain):
                    raise
                except Exception as failure:
                    self._find_violating(failure, split)
                    if self.snapshots is not None:
                        raise
                    narrowed = self._narrow(failure, session, stamp)
                else:
                    try:
                        return self._commit(writer, split, stamp, clock)
                    except SinkRowRefusedError as refused:
                        # Only the system of a sink knows its constraints.
                        narrowed = self._narrow(refused, session, stamp)
        again = self.target.begin(session, stamp)
        assert again is not None, "the batch was not committed"
        rest = with_checks(narrowed.rows, self.planned.expectations)
        with narrowed.reading(), again, self.split.begin(rest, stamp, narrowed.raising) as split:
            again.write(split)
            return self._commit(again, split, stamp, clock)

    def _narrow(self, failure: Exception, session: SparkSession, stamp: BatchStamp) -> NarrowedBatch:
        search = replace(self.search, try_rows=self.target.trial(stamp))
        return search.narrow(failure, session, stamp.ranges)

    def _find_violating(self, failure: Exception, split: SplitRows) -> None:
        """Keep the row that violates a constraint of the table: Delta's message has only its values in the
        columns of the constraint."""
        condition, reading = violated_condition(text_of(failure)), self.state.reading
        if condition is None or reading is None:
            return
        # Rows that are not those of the table, as changes by key, may lack its columns.
        with suppress(Exception):
            for row in split.accepted.where(condition).limit(1).collect():
                self.state.reading = replace(reading, row=shown_row(row, self.planned.coordinates))

    def _records(self, rows: DataFrame, stamp: BatchStamp) -> AbstractContextManager[DataFrame]:
        """The rows of the batch; for a marker, the rows in its place."""
        if self.snapshots is not None:
            return self.snapshots(rows, stamp)
        return nullcontext(self.execution.prepare(rows, stamp.ranges))

    def _commit(
        self, writer: BatchWriter, split: SplitRows, stamp: BatchStamp, clock: StepClock
    ) -> Committed:
        """Commit the rejected rows, then the accepted ones."""
        flow = self.planned.flow.name
        try:
            split.settle()
        except QueryFailedError:
            # Bad records are read a second time. If a source has changed since, that is the reason.
            self.ranges.finish(stamp.ranges)
            raise
        clock.end("write")
        reach("before-commit", flow, stamp.batch)
        self.lease.check(flow)
        committed = writer.commit(self.ranges.finish(stamp.ranges))
        clock.end("commit")
        return committed


def check_gate(flow: str, stop: StopSignal, lease: Lease) -> None:
    """Check before a batch that it may run; nothing has been read or written yet."""
    if stop.requested:
        raise StopRequested
    lease.check(flow)
