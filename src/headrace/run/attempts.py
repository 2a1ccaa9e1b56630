"""One flow until it ends: transient errors are retried with backoff, terminal errors end it."""

from __future__ import annotations

import time

from headrace.errors import HeadraceError
from headrace.run.flow import FlowRunner
from headrace.run.flow_reports import FlowReports, FlowResult
from headrace.run.stop import StopSignal
from headrace.state.lease import Lease

TRIGGERED_ATTEMPTS = 5
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0
_STABLE_S = 60.0
"""A query that ran for so long had recovered from the error before."""


def run_attempts(
    runner: FlowRunner, lease: Lease, stop: StopSignal, reports: FlowReports, limit: int | None
) -> FlowResult:
    """Run a flow until it ends; an error becomes a result.

    Args:
        limit: The highest number of attempts without a batch between them; ``None`` for no limit.
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
                return reports.finished(planned, "stopped", progress)
            # An idle flow commits no batch; that it ran for long enough counts as well.
            if progress.batches > batches or time.monotonic() - started > _STABLE_S:
                attempt = 0
            attempt += 1
            if not error.transient or (limit is not None and attempt >= limit):
                return reports.failed(planned, error, progress)
            runner.state = "retrying"
            wait_s = min(_FIRST_WAIT_S * 2 ** (attempt - 1), _LONGEST_WAIT_S)
            reports.retrying(planned, error, attempt, wait_s)
            if stop.wait(wait_s):
                return reports.finished(planned, "stopped", progress)
        else:
            return reports.finished(planned, outcome, progress)
