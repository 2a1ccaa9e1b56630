"""A flow at work: one streaming query over one checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from headrace.errors import HeadraceError
from headrace.model.events import FlowStarted, LateRowsDropped
from headrace.model.ranges import Position, SourceRange
from headrace.model.remedies import Remedies
from headrace.plan.stages import PlannedFlow
from headrace.run.batch import BatchFunction, QueryState
from headrace.run.batch_ranges import BatchRanges
from headrace.run.context import UpdateContext
from headrace.run.failures import as_error
from headrace.run.gate import OpeningGate
from headrace.run.lag import LagGauge
from headrace.run.late import LateRows
from headrace.run.limits import BatchLimits
from headrace.run.narrowing import name_record
from headrace.run.opening import OpenedFlow, flow_opener
from headrace.run.readiness import FeedState
from headrace.run.reporting import BatchReporter, Progress
from headrace.run.sizing import most_tasks
from headrace.run.stop import PlanAgain, StopRequested, StopSignal
from headrace.run.survey import is_drained
from headrace.run.targets import flow_target
from headrace.sources.guard import FlowRun
from headrace.sources.guards import SourceGuards
from headrace.sources.ranges import load_next_positions
from headrace.sources.registry import kind_of
from headrace.state.lease import Lease
from headrace.state.ledger import Ledger
from headrace.state.offset_log import is_seeded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

Outcome = Literal["drained", "stopped", "up to date", "plan again"]

_LOG = logging.getLogger(__name__)
_POLL_S = 0.2
_FOLD_S = 600.0
"""Seconds between two folds of the table's log into the ledger; Delta keeps its log for days."""
_NOTHING_TO_READ = "Waiting for data to arrive"
"""Spark's status of a query that has asked its sources and found nothing new."""
_COMMIT_LOG_S = 2.0
"""How long a stop waits for Spark to write ``commits/N`` after a batch."""


class FlowRunner:
    """Runs one flow until it is drained, stopped, or fails; may be run again after a failure."""

    def __init__(
        self,
        planned: PlannedFlow,
        context: UpdateContext,
        gate: OpeningGate,
        progress: Progress | None = None,
    ) -> None:
        self.planned = planned
        self.gate = gate
        self.progress = progress or Progress()
        self.state: FeedState = "pending"
        self._context = context
        self._opener = flow_opener(planned, context)
        self._attempts = 0

    def run(self, lease: Lease, stop: StopSignal) -> Outcome:
        """Open the flow's checkpoint and run its query.

        Args:
            lease: The flow's lease.
            stop: Stops this flow alone, and with the update's own signal all of them.

        Raises:
            HeadraceError: Whatever went wrong, with its code.
        """
        self._context = replace(self._context, stop=stop)
        flow, context = self.planned.flow, self._context
        with self._explained():
            with self.gate.opening(flow.name):
                remedies = context.remedies if self._attempts == 0 else Remedies()
                declared = context.declared_flows.get(flow.target, frozenset())
                opened = self._opener.open(declared, remedies)
            self._attempts += 1
            if context.mode == "triggered" and is_drained(self.planned, opened, context.systems):
                return "up to date"
            session = context.session(dict(flow.spark_conf))
        state = QueryState()
        late = LateRows(
            stateful=self.planned.stateful,
            ledger=self._ledger(),
            checkpoint=opened.identity.checkpoint,
            report=self._report_late,
        )
        with closing(BatchLimits(self.planned, context)) as limits:
            with self._explained():
                function = self._batch_function(opened, lease, session, limits, state)
                self.gate.wait(context.stop)
                query = self._start(opened, function, session, limits.first(opened))
                limits.attach(query)
            try:
                return self._wait(query, session, opened, late, state)
            finally:
                self.progress.late += late.rows

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise a failure of the block as an error with a code."""
        context = self._context
        try:
            yield
        except Exception as error:
            raise as_error(
                error, None, self.planned.flow, context.log_file, context.settings.kafka
            ) from error

    def _batch_function(
        self,
        opened: OpenedFlow,
        lease: Lease,
        session: SparkSession,
        limits: BatchLimits,
        state: QueryState,
    ) -> BatchFunction:
        planned, context = self.planned, self._context
        flow, settings = planned.flow, context.settings
        run = FlowRun(
            flow=flow,
            checkpoint=opened.path,
            checkpoint_id=opened.identity.checkpoint,
            facts=opened.sources,
            planned=planned.sources,
            systems=context.systems,
            ledger=self._ledger(),
            on_data_loss=settings.on_data_loss,
            session=session,
        )
        guards = SourceGuards(run)
        guards.open(_positions(opened, run))
        return BatchFunction(
            planned=planned,
            stop=context.stop,
            lease=lease,
            ranges=BatchRanges(
                run, guards, pipeline=settings.name, table=settings.storage.table(flow.target)
            ),
            target=flow_target(planned, settings.storage, session, context.checkpointer),
            tasks=most_tasks(session),
            reporter=BatchReporter(
                planned=planned,
                update=context.update,
                emit=context.emit,
                progress=self.progress,
                measure_lag=LagGauge(context.systems).measure,
                after_batch={"the offsets": self._publish, "the limit": limits.follow},
            ),
            state=state,
        )

    def _publish(self, ranges: tuple[SourceRange, ...], duration_s: float) -> None:
        """Publish how far the flow has read under its consumer group."""
        group = f"headrace-{self._context.settings.name}-{self.planned.flow.name}"
        for one in ranges:
            kind_of(one.kind).publish(one, self._context.systems, group)

    def _report_late(self, batch: int, rows: int) -> None:
        flow, context = self.planned.flow, self._context
        context.emit(
            LateRowsDropped(
                update=context.update, flow=flow.name, dataset=flow.target, batch=batch, rows=rows
            )
        )

    def _ledger(self) -> Ledger:
        flow, storage = self.planned.flow, self._context.settings.storage
        return Ledger(storage.ledger(flow.target, flow.name), flow.target, flow.name)

    def _start(
        self, opened: OpenedFlow, function: BatchFunction, session: SparkSession, limit: int
    ) -> StreamingQuery:
        flow, context = self.planned.flow, self._context
        # The pool keeps a slow flow from starving the others (FAIR scheduler); the query's thread
        # inherits the property from the thread that starts it.
        session.sparkContext.setLocalProperty("spark.scheduler.pool", flow.name)
        df = context.build(session, flow, kafka_limit=limit)
        writer = (
            df.writeStream.queryName(flow.name)
            .option("checkpointLocation", str(opened.path))
            .foreachBatch(function)
        )
        trigger = flow.trigger or context.settings.trigger
        if context.mode == "triggered" or trigger.available_now:
            writer = writer.trigger(availableNow=True)
        elif trigger.interval_s:
            writer = writer.trigger(processingTime=f"{trigger.interval_s * 1000:.0f} milliseconds")
        query = writer.start()
        context.emit(
            FlowStarted(
                update=context.update,
                flow=flow.name,
                dataset=flow.target,
                checkpoint=opened.identity.checkpoint,
            )
        )
        return query

    def _wait(
        self,
        query: StreamingQuery,
        session: SparkSession,
        opened: OpenedFlow,
        late: LateRows,
        state: QueryState,
    ) -> Outcome:
        flow, context = self.planned.flow, self._context
        stop = context.stop
        fold_at = time.monotonic() + _FOLD_S
        try:
            while not query.awaitTermination(_POLL_S):
                late.look(query)
                if self.state != "working" and query.status["message"] == _NOTHING_TO_READ:
                    self.state = "working"
                if time.monotonic() >= fold_at:
                    self._fold(opened)
                    fold_at = time.monotonic() + _FOLD_S
                if stop.requested:
                    self._stop(query, state, opened)
                    late.look(query)
                    return "stopped"
            late.look(query)
        except Exception as error:
            if isinstance(state.failure, StopRequested):
                return "stopped"
            if isinstance(state.failure, PlanAgain):
                return "plan again"
            kafka, reading = context.settings.kafka, state.reading
            found = as_error(error, state.failure, flow, context.log_file, kafka=kafka, reading=reading)
            if reading is not None:
                found = name_record(found, self.planned, context, session, reading.ranges)
            raise found from error
        finally:
            if self.progress.batches:
                self._fold(opened)
        return "stopped" if stop.requested else "drained"

    def _fold(self, opened: OpenedFlow) -> None:
        """The ledger is a copy: one that cannot be written now is written at the next start."""
        try:
            self._opener.fold(opened.identity.table_id)
        except HeadraceError as error:
            _LOG.warning("the ledger of flow %s was not written: %s", self.planned.flow.name, error)

    def _stop(self, query: StreamingQuery, state: QueryState, opened: OpenedFlow) -> None:
        """Stop between batches: `query.stop` in the middle of one has been seen to break Spark."""
        stop = self._context.stop
        while state.busy and stop.remaining_s > 0:
            time.sleep(0.02)
        if state.failure is None and not state.busy and state.last_batch >= 0:
            finished = opened.path / "commits" / str(state.last_batch)
            deadline = time.monotonic() + _COMMIT_LOG_S
            while not finished.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        if not state.busy:
            query.stop()


def _positions(opened: OpenedFlow, run: FlowRun) -> dict[int, Position]:
    """Where what the table does not hold yet begins, by source."""
    if opened.checkpoint is not None:
        return dict(opened.checkpoint.positions)
    return load_next_positions(opened.path, 1, run.sources) if is_seeded(opened.path) else {}
