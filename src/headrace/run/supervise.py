"""Each flow on its own: what passes is retried with backoff, what does not is reported."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Literal

from headrace.errors import HeadraceError
from headrace.model.events import FlowFailed, FlowFinished, FlowRetrying
from headrace.run.context import UpdateContext
from headrace.run.failures import as_error
from headrace.run.flow import FlowRunner
from headrace.state.lease import Lease

_LOG = logging.getLogger(__name__)

TRIGGERED_ATTEMPTS = 5
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0
_HELD_S = 60.0
"""A query that went on for so long had recovered from what interrupted it before."""


@dataclass(frozen=True, kw_only=True)
class FlowResult:
    """What became of a flow.

    Args:
        rows: Rows that the update has added to the table.
        batches: Batches of the update, replayed ones too.
        late: Rows that its query left out because they came behind its watermark.
        commits: Those batches that were committed to the table.
        duration_s: From the flow's start to its end.
    """

    flow: str
    outcome: Literal["drained", "stopped", "up to date", "failed"]
    rows: int
    batches: int
    late: int = 0
    commits: int = 0
    duration_s: float = 0.0
    error: HeadraceError | None = None


def supervise(
    runner: FlowRunner, context: UpdateContext, blocked_by: BaseException | None = None
) -> FlowResult:
    """Run a flow to its end, whatever happens to it; raises nothing.

    Args:
        runner: The flow.
        context: The update.
        blocked_by: Why it cannot be started, if it cannot.
    """
    flow = runner.planned.flow
    if blocked_by is not None:
        return _failed(runner, context, as_error(blocked_by, None, flow, context.log_file))
    path = context.settings.storage.lease(flow.target, flow.name)
    try:
        lease = Lease.acquire(path, flow.name)
    except Exception as error:
        return _failed(runner, context, as_error(error, None, flow, context.log_file))
    context.heart.add(lease)
    try:
        return _attempt(runner, context, lease)
    finally:
        context.heart.release(lease)


def _attempt(runner: FlowRunner, context: UpdateContext, lease: Lease) -> FlowResult:
    flow = runner.planned.flow
    attempt = 0
    while True:
        batches, started = runner.progress.batches, time.monotonic()
        try:
            outcome = runner.run(lease)
        except HeadraceError as error:
            # Whoever asked for the stop has to hear of what will fail again at the next start.
            if context.stop.requested and error.transient:
                return _finished(runner, context, "stopped")
            # An idle flow makes no progress that could be counted; that it held is enough.
            if runner.progress.batches > batches or time.monotonic() - started > _HELD_S:
                attempt = 0
            attempt += 1
            if not error.transient or (context.mode == "triggered" and attempt >= TRIGGERED_ATTEMPTS):
                return _failed(runner, context, error)
            wait_s = min(_FIRST_WAIT_S * 2 ** (attempt - 1), _LONGEST_WAIT_S)
            context.emit(
                FlowRetrying(
                    update=context.update,
                    flow=flow.name,
                    dataset=flow.target,
                    error=error.to_dict(),
                    attempt=attempt,
                    wait_s=wait_s,
                )
            )
            if context.stop.wait(wait_s):
                return _finished(runner, context, "stopped")
        else:
            return _finished(runner, context, outcome)


def _finished(
    runner: FlowRunner, context: UpdateContext, outcome: Literal["drained", "stopped", "up to date"]
) -> FlowResult:
    flow, progress = runner.planned.flow, runner.progress
    context.emit(
        FlowFinished(
            update=context.update,
            flow=flow.name,
            dataset=flow.target,
            outcome=outcome,
            rows=progress.rows,
            batches=progress.batches,
        )
    )
    return _result(runner, outcome)


def _failed(runner: FlowRunner, context: UpdateContext, error: HeadraceError) -> FlowResult:
    flow = runner.planned.flow
    # The trace is for the log alone; what a person needs is in the error.
    _LOG.info("flow %s failed", flow.name, exc_info=error)
    context.emit(
        FlowFailed(update=context.update, flow=flow.name, dataset=flow.target, error=error.to_dict())
    )
    return _result(runner, "failed", error)


def _result(
    runner: FlowRunner,
    outcome: Literal["drained", "stopped", "up to date", "failed"],
    error: HeadraceError | None = None,
) -> FlowResult:
    progress = runner.progress
    return FlowResult(
        flow=runner.planned.flow.name,
        outcome=outcome,
        rows=progress.rows,
        batches=progress.batches,
        late=progress.late,
        commits=progress.commits,
        duration_s=time.monotonic() - progress.started,
        error=error,
    )
