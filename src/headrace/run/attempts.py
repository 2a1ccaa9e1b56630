"""One flow until it ends: transient errors are retried with backoff, terminal errors end it."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Literal

from headrace.errors import HeadraceError
from headrace.model.events import FlowFailed, FlowFinished, FlowRetrying, FlowSkipped
from headrace.plan.stages import PlannedFlow
from headrace.run.context import UpdateContext
from headrace.run.flow import FlowRunner, Outcome
from headrace.run.reporting import Progress
from headrace.run.stop import StopSignal
from headrace.state.lease import Lease

_LOG = logging.getLogger(__name__)

TRIGGERED_ATTEMPTS = 5
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0
_STABLE_S = 60.0
"""A query that ran for so long had recovered from the error before."""


@dataclass(frozen=True, kw_only=True)
class FlowResult:
    """How a flow ended.

    Args:
        outcome: ``skipped`` where the flow was not started because a table that it reads was never
            written; ``plan again`` never leaves an update.
        rows: Rows that the update has added to the table.
        batches: Batches of the update, replayed batches included.
        late: Rows that the query dropped because they were older than its watermark.
        commits: Batches that were committed to the table.
        duration_s: From the flow's start to its end.
        reason: Why the flow was skipped.
    """

    flow: str
    outcome: Literal["drained", "stopped", "up to date", "failed", "skipped", "plan again"]
    rows: int = 0
    batches: int = 0
    late: int = 0
    commits: int = 0
    duration_s: float = 0.0
    error: HeadraceError | None = None
    reason: str | None = None


def run_attempts(runner: FlowRunner, context: UpdateContext, lease: Lease, stop: StopSignal) -> FlowResult:
    """Run a flow until it ends; an error becomes a result.

    Args:
        runner: The flow.
        context: The update.
        lease: The flow's lease.
        stop: Stops the flow.
    """
    planned, progress = runner.planned, runner.progress
    attempt = 0
    while True:
        batches, started = progress.batches, time.monotonic()
        try:
            outcome = runner.run(lease, stop)
        except HeadraceError as error:
            # A terminal error would come again at the next start, so it is reported at a stop, too.
            if stop.requested and error.transient:
                return finish(planned, context, "stopped", progress)
            # An idle flow commits no batch; that it ran for long enough counts as well.
            if progress.batches > batches or time.monotonic() - started > _STABLE_S:
                attempt = 0
            attempt += 1
            if not error.transient or (context.mode == "triggered" and attempt >= TRIGGERED_ATTEMPTS):
                return fail(planned, context, error, progress)
            runner.state = "retrying"
            wait_s = min(_FIRST_WAIT_S * 2 ** (attempt - 1), _LONGEST_WAIT_S)
            context.emit(
                FlowRetrying(
                    update=context.update,
                    flow=planned.flow.name,
                    dataset=planned.flow.target,
                    error=error.to_dict(),
                    attempt=attempt,
                    wait_s=wait_s,
                )
            )
            if stop.wait(wait_s):
                return finish(planned, context, "stopped", progress)
        else:
            return finish(planned, context, outcome, progress)


def finish(
    planned: PlannedFlow, context: UpdateContext, outcome: Outcome, progress: Progress | None = None
) -> FlowResult:
    """The result of a flow that ended without an error, after its event."""
    flow, done = planned.flow, progress or Progress()
    if outcome != "plan again":
        context.emit(
            FlowFinished(
                update=context.update,
                flow=flow.name,
                dataset=flow.target,
                outcome=outcome,
                rows=done.rows,
                batches=done.batches,
            )
        )
    return _result(planned, outcome, done)


def fail(
    planned: PlannedFlow, context: UpdateContext, error: HeadraceError, progress: Progress | None = None
) -> FlowResult:
    """The result of a flow that ended with an error, after its event."""
    flow = planned.flow
    # The trace is for the log alone; what a person needs is in the error.
    _LOG.info("flow %s failed", flow.name, exc_info=error)
    context.emit(
        FlowFailed(update=context.update, flow=flow.name, dataset=flow.target, error=error.to_dict())
    )
    return _result(planned, "failed", progress or Progress(), error)


def skip(planned: PlannedFlow, context: UpdateContext, reason: str) -> FlowResult:
    """The result of a flow that was not started, after its event."""
    flow = planned.flow
    context.emit(FlowSkipped(update=context.update, flow=flow.name, dataset=flow.target, reason=reason))
    return FlowResult(flow=flow.name, outcome="skipped", reason=reason)


def _result(
    planned: PlannedFlow,
    outcome: Literal["drained", "stopped", "up to date", "failed", "plan again"],
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
