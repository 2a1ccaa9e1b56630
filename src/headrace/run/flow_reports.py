"""The events and results of flows."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Literal

from headrace.errors import HeadraceError
from headrace.model.events import (
    Emitter,
    FlowFailed,
    FlowFinished,
    FlowRetrying,
    FlowSkipped,
    FlowStarted,
    LateRowsDropped,
    SnapshotSkipped,
)
from headrace.plan.stages import PlannedFlow
from headrace.run.reporting import Progress

_LOG = logging.getLogger(__name__)

Outcome = Literal["drained", "stopped", "up to date", "plan again"]
"""How a flow ends without an error."""


@dataclass(frozen=True, kw_only=True)
class FlowResult:
    """How a flow ended.

    Args:
        outcome: ``skipped`` if the flow was not started because a table that it reads was never written;
            ``plan again`` is used only within an update.
    """

    flow: str
    outcome: Outcome | Literal["failed", "skipped"]
    rows: int = 0
    batches: int = 0
    late: int = 0  # rows that the query dropped because they were older than its watermark
    commits: int = 0  # batches that were committed to the table
    duration_s: float = 0.0
    error: HeadraceError | None = None
    reason: str | None = None


@dataclass(frozen=True)
class FlowReports:
    """Emits the events of flows, and makes the results of those that ended."""

    update: str
    emit: Emitter

    def started(self, planned: PlannedFlow, checkpoint: str) -> None:
        """Report that a flow's query runs."""
        flow = planned.flow
        self.emit(FlowStarted(update=self.update, flow=flow.name, dataset=flow.target, checkpoint=checkpoint))

    def late(self, planned: PlannedFlow, batch: int, rows: int) -> None:
        """Report rows that the query dropped because they were older than its watermark."""
        flow = planned.flow
        self.emit(
            LateRowsDropped(update=self.update, flow=flow.name, dataset=flow.target, batch=batch, rows=rows)
        )

    def snapshot_skipped(self, planned: PlannedFlow, version: str, reason: str) -> None:
        """Report a snapshot that is not applied."""
        flow = planned.flow
        _LOG.warning("flow %s: skipped the snapshot %s: %s", flow.name, version, reason)
        self.emit(
            SnapshotSkipped(
                update=self.update, flow=flow.name, dataset=flow.target, version=version, reason=reason
            )
        )

    def retrying(self, planned: PlannedFlow, error: HeadraceError, attempt: int, wait_s: float) -> None:
        """Report that a flow waits for its next attempt."""
        flow = planned.flow
        self.emit(
            FlowRetrying(
                update=self.update,
                flow=flow.name,
                dataset=flow.target,
                error=error.to_dict(),
                attempt=attempt,
                wait_s=wait_s,
            )
        )

    def finished(
        self, planned: PlannedFlow, outcome: Outcome, progress: Progress | None = None
    ) -> FlowResult:
        """Report that a flow ended without an error."""
        flow, done = planned.flow, progress or Progress()
        if outcome != "plan again":
            self.emit(
                FlowFinished(
                    update=self.update,
                    flow=flow.name,
                    dataset=flow.target,
                    outcome=outcome,
                    rows=done.rows,
                    batches=done.batches,
                )
            )
        return _result(planned, outcome, done)

    def failed(
        self, planned: PlannedFlow, error: HeadraceError, progress: Progress | None = None
    ) -> FlowResult:
        """Report that a flow ended with an error."""
        flow = planned.flow
        # The trace is for the log alone; what a person needs is in the error.
        _LOG.info("flow %s failed", flow.name, exc_info=error)
        self.emit(FlowFailed(update=self.update, flow=flow.name, dataset=flow.target, error=error.to_dict()))
        return _result(planned, "failed", progress or Progress(), error)

    def skipped(self, planned: PlannedFlow, reason: str) -> FlowResult:
        """Report that a flow is not started."""
        flow = planned.flow
        self.emit(FlowSkipped(update=self.update, flow=flow.name, dataset=flow.target, reason=reason))
        return FlowResult(flow=flow.name, outcome="skipped", reason=reason)


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
