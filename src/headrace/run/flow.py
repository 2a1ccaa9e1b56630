"""Runs a flow: one streaming query with one checkpoint."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.contracts.expectations import with_checks
from headrace.errors import HeadraceError
from headrace.model.declarations import AppendFlow
from headrace.model.remedies import Remedies
from headrace.plan.stages import PlannedFlow
from headrace.run.attempts import Looks
from headrace.run.batch import BatchFunction, QueryState, RecordFeed
from headrace.run.checks import DatasetChecks
from headrace.run.context import Build, MakeSession
from headrace.run.failures import Failures
from headrace.run.limits import BatchLimits
from headrace.run.opening import FlowOpener, OpenedFlow
from headrace.run.readiness import FeedState
from headrace.run.reporting import FlowReports, Outcome, Progress
from headrace.run.snapshots import SnapshotPoller
from headrace.run.stop import PlanAgain, StopRequested, StopSignal
from headrace.run.survey import is_drained
from headrace.runtime.engine.record import pool_name
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.target import keeps_state
from headrace.sources.registry import kind_of
from headrace.state.checkpoint import load_offsets
from headrace.state.lease import Lease
from headrace.state.ledger import Ledger
from headrace.storage.s3.spark import check_session

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_LOG = logging.getLogger(__name__)
_GATE_POLL_S = 0.05


class OpeningGate:
    """Lets flows of one table open one after another, and commit only after all have tried to open.

    An opening changes the table's metadata. At the same time, Delta would refuse other openings and batches
    as conflicts, and they would be retried.
    """

    def __init__(self, flows: Iterable[str] = ()) -> None:
        self._missing = set(flows)
        self._turn = threading.Lock()

    def expect(self, flow: str) -> None:
        """Register a flow that will start: no flow commits before it has tried to open."""
        self._missing.add(flow)

    @contextmanager
    def opening(self, flow: str) -> Iterator[None]:
        """Open a flow within this context: one flow at a time."""
        with self._turn:
            try:
                yield
            finally:
                self.leave(flow)

    def leave(self, flow: str) -> None:
        self._missing.discard(flow)

    def wait(self, stop: StopSignal) -> None:
        """Wait until every flow has tried to open, or until the update stops."""
        while self._missing and not stop.wait(_GATE_POLL_S):
            pass


@dataclass(kw_only=True)
class LateRows:
    """Counts the late rows that a query reports. `stateful`: whether the query is stateful; only a stateful
    query drops late rows."""

    stateful: bool
    ledger: Ledger
    checkpoint: str
    report: Callable[[int, int], None]
    rows: int = 0
    _looked_at: str = ""
    _counted: int = -1

    def look(self, query: StreamingQuery) -> None:
        """Count the late rows that Spark has reported since the last call."""
        if not self.stateful:
            return
        newest = query.lastProgress
        if newest is None or newest["timestamp"] == self._looked_at:
            return
        self._looked_at = newest["timestamp"]
        for report in query.recentProgress:
            batch = int(report["batchId"])
            rows = sum(int(one.get("numRowsDroppedByWatermark", 0)) for one in report["stateOperators"])
            if batch > self._counted and rows > 0:
                self._count(batch, rows)

    def _count(self, batch: int, rows: int) -> None:
        self._counted = batch
        try:
            if not self.ledger.record_late(self.checkpoint, batch, rows):
                return
        except HeadraceError as error:
            _LOG.warning("the late rows of flow %s were not recorded: %s", self.ledger.flow, error)
        self.rows += rows
        self.report(batch, rows)


_POLL_S = 0.2
_CONTINUOUS_POLL_S = 0.5  # each look asks the JVM, also while the flow waits
_FOLD_S = 600.0
"""Seconds between two folds of the table's log into the ledger; Delta keeps its log for days."""
_NOTHING_TO_READ = "Waiting for data to arrive"
"""Spark's status of a query that has found no new data in its sources."""
_COMMIT_LOG_S = 2.0
"""How long a stop waits for Spark to write ``commits/N`` after a batch."""


Look = Callable[["StreamingQuery"], None]
"""Takes what Spark reports about the batches of a query."""

MakeBatches = Callable[[OpenedFlow, SparkSession, Lease, StopSignal, BatchLimits, QueryState], BatchFunction]
"""Makes the function that Spark calls for each batch of one query."""


@dataclass(kw_only=True)
class FlowRunner:
    """Runs one flow until it is up to date, stopped, or fails; may be run again after a failure.
    `is_outdated`: whether the flow needs a new plan, because a table that it reads has new columns."""

    planned: PlannedFlow
    gate: OpeningGate
    progress: Progress
    opener: FlowOpener
    make_batches: MakeBatches
    checks: DatasetChecks
    session: MakeSession
    build: Build
    failures: Failures
    reports: FlowReports
    triggered: bool  # whether the flow ends when its sources are drained
    remedies: Remedies  # the user's options; they apply to the first start
    snapshots: RecordFeed | None = None  # the rows in place of the markers, if the flow reads markers
    state: FeedState = field(default="pending", init=False)
    was_opened: bool = field(default=False, init=False)  # whether its table and checkpoint were there once
    columns: str | None = field(default=None, init=False)
    is_outdated: Callable[[], bool] = field(default=lambda: False, init=False)
    _reruns_when_drained: bool = field(default=False, init=False)
    """Whether the source of snapshots can have a snapshot that is not recorded."""
    _looks: Looks = field(init=False)

    def __post_init__(self) -> None:
        reports = self.reports
        self._looks = Looks(reports.update, reports.emit, self.planned.flow.name)

    def run(self, lease: Lease, stop: StopSignal) -> Outcome:
        """Open the flow's checkpoint and run its query."""
        outcome = self._run_query(lease, stop)
        # One snapshot is recorded when the one before is applied.
        batches = -1
        while outcome == "up to date" and self._reruns_when_drained and self.progress.batches > batches:
            batches = self.progress.batches
            outcome = self._run_query(lease, stop)
        return outcome

    def _run_query(self, lease: Lease, stop: StopSignal) -> Outcome:
        flow, systems = self.planned.flow, self.opener.surveyor.systems
        with self._explained():
            with self.gate.opening(flow.name):
                opened = self.opener.open(self.remedies)
            self.was_opened, self.remedies = True, Remedies()
            drained = is_drained(self.planned, opened.sources, opened.checkpoint, systems)
            if self.snapshots is not None:
                try:
                    self._reruns_when_drained = self.snapshots.look(applied=drained)
                except PlanAgain:
                    return "plan again"
            self.checks.run_left(self.opener.spark, stop)
            if self.triggered and drained and not self._reruns_when_drained:
                return "up to date"
            session = self.session({**self._source_settings(opened), **flow.spark_conf})
            limits = BatchLimits(self.planned, systems, session, opened)
        state = QueryState(stop.child())
        late = LateRows(
            stateful=self.planned.stateful,
            ledger=self.opener.surveyor.ledger,
            checkpoint=opened.identity.checkpoint,
            report=lambda batch, rows: self.reports.late(self.planned, batch, rows),
        )
        with self._explained():
            function = self.make_batches(opened, session, lease, stop, limits, state)
            self.gate.wait(stop)
        steps = function.steps

        def look(query: StreamingQuery) -> None:
            late.look(query)
            steps.look(query)

        try:
            with self._explained():
                query = self._start(opened, function, session, limits.first)
                limits.attach(query)
            return self._wait(query, opened, look, state, stop)
        except PlanAgain:
            return "plan again"
        finally:
            function.ranges.close()
            self.progress.late += late.rows

    def _source_settings(self, opened: OpenedFlow) -> dict[str, str]:
        """The Spark settings with which the flow continues to read its sources."""
        systems = self.opener.surveyor.systems
        # When a query starts, Spark reads the range of the last batch again.
        before = -1 if opened.checkpoint is None else opened.checkpoint.last_planned - 1
        held = load_offsets(opened.path, before) if before >= 0 else ()
        found: dict[str, str] = {}
        for source in self.planned.sources:
            text = held[source.index] if source.index < len(held) else None
            start = None if text is None else kind_of(source.kind).position(json.loads(text))
            found |= source.settings(start, systems)
        return found

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise a failure of the block as an error with a code."""
        try:
            yield
        except PlanAgain:
            raise
        except Exception as error:
            coded = self.failures.as_error(error, self.planned.flow)
            raise coded from coded.__cause__

    def _start(
        self, opened: OpenedFlow, function: BatchFunction, session: SparkSession, limit: int | None
    ) -> StreamingQuery:
        flow = self.planned.flow
        # The pool keeps a slow flow from starving the others (FAIR scheduler); the query's thread
        # inherits the property from the thread that starts it.
        session.sparkContext.setLocalProperty("spark.scheduler.pool", pool_name(flow.name))
        by_commit = keeps_state(self.planned.sink)
        built = self.build(session, flow, record_limit=limit, whole_commits=by_commit)
        columns, self.columns = self.columns, built.schema.simpleString()
        if columns not in (None, self.columns):
            # A schema registry has a new version since the attempt before.
            raise PlanAgain
        # The rows in place of a marker are checked in their batch.
        df = with_checks(built, self.planned.expectations) if self.snapshots is None else built
        writer = (
            df.writeStream.queryName(flow.name)
            .option("checkpointLocation", str(opened.path))
            .foreachBatch(function)
        )
        if isinstance(flow, AppendFlow) and flow.groups is not None:
            # A batch has the groups that have changed.
            writer = writer.outputMode("update")
        trigger = flow.trigger or self.opener.surveyor.settings.trigger
        if self.triggered or trigger.available_now:
            writer = writer.trigger(availableNow=True)
        elif trigger.interval_s:
            writer = writer.trigger(processingTime=f"{trigger.interval_s * 1000:.0f} milliseconds")
        check_session(session, opened.path)
        query = writer.start()
        self.reports.started(self.planned, opened.identity.checkpoint)
        return query

    def _wait(
        self, query: StreamingQuery, opened: OpenedFlow, look: Look, state: QueryState, stop: StopSignal
    ) -> Outcome:
        try:
            return self._watch(query, opened, look, state, stop)
        except Exception as error:
            if isinstance(state.failure, StopRequested):
                return "stopped"
            if isinstance(state.failure, PlanAgain) or self.is_outdated():
                return "plan again"
            planned = self.planned
            coded = self.failures.as_error(
                error, planned.flow, state.failure, state.reading, planned.expectations
            )
            # Its cause is the exception of the batch function, where one has raised it.
            raise coded from coded.__cause__
        finally:
            _end(query, state, opened, stop)
            if self.progress.batches:
                self._fold(opened)

    def _watch(
        self, query: StreamingQuery, opened: OpenedFlow, look: Look, state: QueryState, stop: StopSignal
    ) -> Outcome:
        """Look after a query until it ends, is stopped, or needs a new plan."""
        fold_at = time.monotonic() + _FOLD_S
        poller = SnapshotPoller(self.snapshots, state, lambda: query.lastProgress is not None)

        def has_ended() -> bool:
            if self.triggered:
                return bool(query.awaitTermination(_POLL_S))
            stop.wait(_CONTINUOUS_POLL_S)
            return bool(query.awaitTermination(0.001))

        while not has_ended():
            look(query)
            if not self.triggered:
                outdated = self._looks.ask("the source of snapshots", poller.is_outdated)
                if outdated:
                    return "plan again"
            if self.state != "working" and query.status["message"] == _NOTHING_TO_READ:
                self.state = "working"
            self._looks.ask("the checks of the table", lambda: self.checks.run_due(self.opener.spark, stop))
            if time.monotonic() >= fold_at and self._fold(opened):
                fold_at = time.monotonic() + _FOLD_S
            if stop.requested:
                _stop(query, state, opened, stop)
                look(query)
                return "stopped"
        look(query)
        if stop.requested:
            return "stopped"
        self.checks.run_due(self.opener.spark, stop, now=True)
        return "up to date"

    def _fold(self, opened: OpenedFlow) -> bool:
        """Write the ledger, and return whether that is done; the next start writes what is missing."""

        def fold() -> bool:
            self.opener.fold(opened.identity.table_id)
            return True

        try:
            return bool(self._looks.ask("the ledger", fold))
        except HeadraceError as error:
            _LOG.warning("the ledger of flow %s was not written: %s", self.planned.flow.name, error)
            return True


def _end(query: StreamingQuery, state: QueryState, opened: OpenedFlow, stop: StopSignal) -> None:
    """Stop a query that still runs when its flow ends, also after an error."""
    try:
        state.stop.request()
        if query.isActive:
            _stop(query, state, opened, stop)
    except Exception:
        _LOG.warning("query %s could not be stopped", query.name, exc_info=True)


def _stop(query: StreamingQuery, state: QueryState, opened: OpenedFlow, stop: StopSignal) -> None:
    """Stop between two batches: `query.stop` in the middle of a batch can break Spark."""
    while state.busy and stop.remaining_s > 0:
        time.sleep(0.02)
    if state.failure is None and not state.busy and state.last_batch >= 0:
        finished = opened.path / "commits" / str(state.last_batch)
        deadline = time.monotonic() + _COMMIT_LOG_S
        # A storage that does not answer: the next start replays the batch.
        with suppress(OSError):
            while not finished.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
    if not state.busy:
        query.stop()
