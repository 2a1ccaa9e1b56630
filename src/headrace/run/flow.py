"""A flow at work: one streaming query over one checkpoint."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from typing import TYPE_CHECKING, Literal

from headrace.errors import HeadraceError
from headrace.model.events import FlowStarted
from headrace.model.remedies import Remedies
from headrace.plan.stages import PlannedFlow
from headrace.run.batch import BatchFunction, Progress
from headrace.run.context import UpdateContext
from headrace.run.failures import as_error
from headrace.run.file_batch import FlowFiles
from headrace.run.gate import OpeningGate
from headrace.run.late import LateRows
from headrace.run.limits import BatchLimits
from headrace.run.narrowing import name_record
from headrace.run.opening import OpenedFlow, fold_ledger, open_flow
from headrace.run.stop import StopRequested
from headrace.run.survey import is_drained
from headrace.state.lease import Lease
from headrace.state.ledger import Ledger
from headrace.state.offset_log import is_seeded, load_next_positions

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

Outcome = Literal["drained", "stopped", "up to date"]

_LOG = logging.getLogger(__name__)
_POLL_S = 0.2
_FOLD_S = 600.0
"""Seconds between two folds of the table's log into the ledger; Delta keeps its log for days."""
_COMMIT_LOG_S = 2.0
"""How long a stop waits for Spark to write ``commits/N`` after a batch."""


class FlowRunner:
    """Runs one flow until it is drained, stopped, or fails; may be run again after a failure."""

    def __init__(self, planned: PlannedFlow, context: UpdateContext, gate: OpeningGate) -> None:
        self.planned = planned
        self.gate = gate
        self.progress = Progress()
        self._context = context
        self._attempts = 0

    def run(self, lease: Lease) -> Outcome:
        """Open the flow's checkpoint and run its query.

        Raises:
            HeadraceError: Whatever went wrong, with its code.
        """
        flow, context = self.planned.flow, self._context
        try:
            with self.gate.opening(flow.name):
                remedies = context.remedies if self._attempts == 0 else Remedies()
                opened = open_flow(self.planned, context, remedies)
            self._attempts += 1
            if context.mode == "triggered" and is_drained(
                self.planned, opened.checkpoint, opened.kafka, context.settings.storage
            ):
                return "up to date"
            function = BatchFunction(
                self.planned,
                context,
                checkpoint=opened.path,
                identity=opened.identity,
                sources=opened.sources,
                lease=lease,
                progress=self.progress,
                files=self._compared_files(opened),
            )
        except Exception as error:
            raise as_error(error, None, flow, context.log_file, context.settings.kafka) from error
        with closing(BatchLimits(self.planned, context)) as limits:
            function.after_batch = limits.follow
            return self._work(opened, function, limits)

    def _work(self, opened: OpenedFlow, function: BatchFunction, limits: BatchLimits) -> Outcome:
        flow, context = self.planned.flow, self._context
        late = LateRows(self.planned, context, opened.identity.checkpoint)
        try:
            self.gate.wait(context.stop)
            query = self._start(opened, function, limits.first(opened))
            limits.attach(query)
        except Exception as error:
            raise as_error(error, None, flow, context.log_file, context.settings.kafka) from error
        try:
            return self._wait(query, function, opened, late)
        finally:
            self.progress.late += late.rows

    def _compared_files(self, opened: OpenedFlow) -> FlowFiles:
        flow, settings = self.planned.flow, self._context.settings
        files = FlowFiles(
            flow,
            checkpoint=opened.path,
            identity=opened.identity.checkpoint,
            sources=opened.sources,
            ledger=Ledger(settings.storage.ledger(flow.target, flow.name), flow.target, flow.name),
            on_data_loss=settings.on_data_loss,
        )
        if opened.checkpoint is not None:
            files.compare(opened.checkpoint.positions)
        else:
            files.compare(
                load_next_positions(opened.path, 1, opened.sources) if is_seeded(opened.path) else {}
            )
        return files

    def _start(self, opened: OpenedFlow, function: BatchFunction, limit: int) -> StreamingQuery:
        flow, context = self.planned.flow, self._context
        session = context.session(dict(flow.spark_conf))
        # The pool keeps a slow flow from starving the others (FAIR scheduler); the query's thread
        # inherits the property from the thread that starts it.
        session.sparkContext.setLocalProperty("spark.scheduler.pool", flow.name)
        df = context.build(session, flow, kafka_limit=limit)
        function.session = session
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
        self, query: StreamingQuery, function: BatchFunction, opened: OpenedFlow, late: LateRows
    ) -> Outcome:
        flow, context = self.planned.flow, self._context
        stop = context.stop
        fold_at = time.monotonic() + _FOLD_S
        try:
            while not query.awaitTermination(_POLL_S):
                late.look(query)
                if time.monotonic() >= fold_at:
                    self._fold(opened)
                    fold_at = time.monotonic() + _FOLD_S
                if stop.requested:
                    self._stop(query, function, opened)
                    late.look(query)
                    return "stopped"
            late.look(query)
        except Exception as error:
            if isinstance(function.failure, StopRequested):
                return "stopped"
            kafka, reading = context.settings.kafka, function.reading
            found = as_error(error, function.failure, flow, context.log_file, kafka=kafka, reading=reading)
            if reading is not None and function.session is not None:
                found = name_record(found, self.planned, context, function.session, reading.ranges)
            raise found from error
        finally:
            if self.progress.batches:
                self._fold(opened)
        return "stopped" if stop.requested else "drained"

    def _fold(self, opened: OpenedFlow) -> None:
        """The ledger is a copy: one that cannot be written now is written at the next start."""
        flow = self.planned.flow
        try:
            fold_ledger(flow.target, flow.name, opened.identity.table_id, self._context)
        except HeadraceError as error:
            _LOG.warning("the ledger of flow %s was not written: %s", flow.name, error)

    def _stop(self, query: StreamingQuery, function: BatchFunction, opened: OpenedFlow) -> None:
        """Stop between batches: `query.stop` in the middle of one has been seen to break Spark."""
        stop = self._context.stop
        while function.busy and stop.remaining_s > 0:
            time.sleep(0.02)
        if function.failure is None and not function.busy and function.last_batch >= 0:
            finished = opened.path / "commits" / str(function.last_batch)
            deadline = time.monotonic() + _COMMIT_LOG_S
            while not finished.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        if not function.busy:
            query.stop()
