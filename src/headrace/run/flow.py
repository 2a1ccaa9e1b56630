"""Runs a flow: one streaming query with one checkpoint."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.contracts.expectations import with_checks
from headrace.errors import HeadraceError
from headrace.model.declarations import AppendFlow
from headrace.model.remedies import Remedies
from headrace.plan.stages import PlannedFlow
from headrace.run.batch import BatchFunction, QueryState, RecordFeed
from headrace.run.batch_setup import BatchSetup
from headrace.run.context import Build, MakeSession
from headrace.run.failures import Failures
from headrace.run.flow_reports import FlowReports, Outcome
from headrace.run.gate import OpeningGate
from headrace.run.late import LateRows
from headrace.run.limits import BatchLimits
from headrace.run.opening import FlowOpener, OpenedFlow
from headrace.run.readiness import FeedState
from headrace.run.reporting import Progress
from headrace.run.snapshots import SnapshotLooks
from headrace.run.stop import PlanAgain, StopRequested, StopSignal
from headrace.run.survey import is_drained
from headrace.runtime.engine.record import pool_name
from headrace.sources.registry import kind_of
from headrace.state.lease import Lease
from headrace.state.offset_log import load_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_LOG = logging.getLogger(__name__)
_POLL_S = 0.2
_FOLD_S = 600.0
"""Seconds between two folds of the table's log into the ledger; Delta keeps its log for days."""
_NOTHING_TO_READ = "Waiting for data to arrive"
"""Spark's status of a query that has found no new data in its sources."""
_COMMIT_LOG_S = 2.0
"""How long a stop waits for Spark to write ``commits/N`` after a batch."""


@dataclass(kw_only=True)
class FlowRunner:
    """Runs one flow until it is drained, stopped, or fails; may be run again after a failure.

    Attributes:
        is_outdated: Whether the flow needs a new plan, because a table that it reads has new columns.
    """

    planned: PlannedFlow
    gate: OpeningGate
    progress: Progress
    opener: FlowOpener
    batches: BatchSetup
    session: MakeSession
    build: Build
    failures: Failures
    reports: FlowReports
    triggered: bool  # whether the flow ends when its sources are drained
    remedies: Remedies  # the user's options; they apply to the first start
    snapshots: RecordFeed | None = None  # the rows in place of the markers, if the flow reads markers
    state: FeedState = field(default="pending", init=False)
    columns: str | None = field(default=None, init=False)
    is_outdated: Callable[[], bool] = field(default=lambda: False, init=False)
    _looks_again: bool = field(default=False, init=False)
    """Whether the source of snapshots can have a snapshot that is not recorded."""

    def run(self, lease: Lease, stop: StopSignal) -> Outcome:
        """Open the flow's checkpoint and run its query.

        Raises:
            HeadraceError: The flow failed.
        """
        outcome = self._run_query(lease, stop)
        # A function gets the version that was applied last, so it is asked again after each batch.
        batches = -1
        while outcome == "drained" and self._looks_again and self.progress.batches > batches:
            batches = self.progress.batches
            again = self._run_query(lease, stop)
            outcome = "drained" if again == "up to date" else again
        return outcome

    def _run_query(self, lease: Lease, stop: StopSignal) -> Outcome:
        """Run one query; see `run`."""
        flow, systems = self.planned.flow, self.opener.surveyor.systems
        with self._explained():
            with self.gate.opening(flow.name):
                opened = self.opener.open(self.remedies)
            self.remedies = Remedies()
            drained = is_drained(self.planned, opened, systems)
            # Snapshots that were recorded before are applied before the source is asked again.
            self._looks_again = self.snapshots is not None
            is_new = opened.checkpoint is None or opened.checkpoint.last_planned < 0
            if self.snapshots is not None and (drained or is_new):
                try:
                    self._looks_again = self.snapshots.look(stop)
                except PlanAgain:
                    return "plan again"
            if self.triggered and drained and not self._looks_again:
                return "up to date"
            session = self.session({**self._source_settings(opened), **flow.spark_conf})
            limits = BatchLimits(self.planned, systems, session, opened)
        state = QueryState()
        late = LateRows(
            stateful=self.planned.stateful,
            ledger=self.opener.surveyor.ledger,
            checkpoint=opened.identity.checkpoint,
            report=lambda batch, rows: self.reports.late(self.planned, batch, rows),
        )
        with closing(limits):
            with self._explained():
                function = self.batches.make(opened, session, lease, stop, limits, state)
                self.gate.wait(stop)
            try:
                with self._explained():
                    query = self._start(opened, function, session, limits.first)
                    limits.attach(query)
                return self._wait(query, opened, late, state, stop)
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
            raise self.failures.as_error(error, self.planned.flow) from error

    def _start(
        self, opened: OpenedFlow, function: BatchFunction, session: SparkSession, limit: int
    ) -> StreamingQuery:
        flow = self.planned.flow
        # The pool keeps a slow flow from starving the others (FAIR scheduler); the query's thread
        # inherits the property from the thread that starts it.
        session.sparkContext.setLocalProperty("spark.scheduler.pool", pool_name(flow.name))
        built = self.build(session, flow, kafka_limit=limit)
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
        query = writer.start()
        self.reports.started(self.planned, opened.identity.checkpoint)
        return query

    def _wait(
        self,
        query: StreamingQuery,
        opened: OpenedFlow,
        late: LateRows,
        state: QueryState,
        stop: StopSignal,
    ) -> Outcome:
        fold_at = time.monotonic() + _FOLD_S
        looks = SnapshotLooks(self.snapshots, state)
        try:
            while not query.awaitTermination(_POLL_S):
                late.look(query)
                if not self.triggered and looks.is_outdated(stop):
                    _stop(query, state, opened, stop)
                    return "plan again"
                if self.state != "working" and query.status["message"] == _NOTHING_TO_READ:
                    self.state = "working"
                if time.monotonic() >= fold_at:
                    self._fold(opened)
                    fold_at = time.monotonic() + _FOLD_S
                if stop.requested:
                    _stop(query, state, opened, stop)
                    late.look(query)
                    return "stopped"
            late.look(query)
        except Exception as error:
            if isinstance(state.failure, StopRequested):
                return "stopped"
            if isinstance(state.failure, PlanAgain) or self.is_outdated():
                return "plan again"
            planned = self.planned
            raise self.failures.as_error(
                error, planned.flow, state.failure, state.reading, planned.expectations
            ) from error
        finally:
            if self.progress.batches:
                self._fold(opened)
        return "stopped" if stop.requested else "drained"

    def _fold(self, opened: OpenedFlow) -> None:
        """Write the ledger; if that fails, the next start writes it."""
        try:
            self.opener.fold(opened.identity.table_id)
        except HeadraceError as error:
            _LOG.warning("the ledger of flow %s was not written: %s", self.planned.flow.name, error)


def _stop(query: StreamingQuery, state: QueryState, opened: OpenedFlow, stop: StopSignal) -> None:
    """Stop between two batches: `query.stop` in the middle of a batch can break Spark."""
    while state.busy and stop.remaining_s > 0:
        time.sleep(0.02)
    if state.failure is None and not state.busy and state.last_batch >= 0:
        finished = opened.path / "commits" / str(state.last_batch)
        deadline = time.monotonic() + _COMMIT_LOG_S
        while not finished.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    if not state.busy:
        query.stop()
