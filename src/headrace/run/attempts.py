"""What fails for a while is tried again with backoff: flows, and looks at the storage."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from headrace import errors
from headrace.errors import HeadraceError
from headrace.model.event_forms import Emitter
from headrace.model.events import LookFailed
from headrace.run.reporting import FlowReports, FlowResult
from headrace.run.stop import StopSignal
from headrace.state.lease import Lease

if TYPE_CHECKING:
    from headrace.run.flow import FlowRunner

Found = TypeVar("Found")

TRIGGERED_ATTEMPTS = 5
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0
_STABLE_S = 60.0
"""A query that ran for so long had recovered from the error before."""
_STORAGE_AWAY = (
    errors.TableLostError,
    errors.UpstreamMissingError,
    errors.CheckpointLostError,
    errors.CheckpointCorruptError,
    errors.StorageAccessError,
)
"""Errors that a flow meets while it runs if the disk or the bucket of the storage is away for a moment."""
_LOG = logging.getLogger(__name__)


def wait_before(attempt: int) -> float:
    """The seconds to wait after some failed attempts."""
    return min(_FIRST_WAIT_S * float(2 ** (attempt - 1)), _LONGEST_WAIT_S)


def run_attempts(
    runner: FlowRunner,
    acquire: Callable[[], Lease],
    stop: StopSignal,
    reports: FlowReports,
    limit: int | None,
) -> FlowResult:
    """Run a flow until it ends; an error becomes a result. `acquire`: returns the flow's lease, and takes it
    if it is not held. `limit`: the highest number of attempts without a batch between them; ``None`` for no
    limit, and then a storage that cannot be written, or that refuses a flow which has used it, is waited for,
    too.
    """
    planned, progress = runner.planned, runner.progress
    attempt = missing = 0  # in a row
    while True:
        batches, started = progress.batches, time.monotonic()
        try:
            outcome = runner.run(acquire(), stop)
        except HeadraceError as error:
            # A terminal error would come again at the next start, so it is reported at a stop, too. But an
            # abort ends queries in the middle of a batch, and their failure then says nothing.
            if stop.requested and (
                error.transient or (stop.aborted and isinstance(error, errors.FlowFailedError))
            ):
                _LOG.info("flow %s: it was stopped, and then failed: %s", planned.flow.name, error.headline)
                return reports.finished(planned, "stopped", progress)
            # An idle flow commits no batch; that it ran for long enough counts as well.
            if progress.batches > batches or time.monotonic() - started > _STABLE_S:
                attempt = missing = 0
            attempt += 1
            is_away = runner.was_opened and isinstance(error, _STORAGE_AWAY)
            is_refused = is_away and isinstance(error, errors.StorageAccessError)
            # Neither error can mean that a table or a checkpoint is lost.
            waits = limit is None and (is_refused or isinstance(error, errors.StorageUnwritableError))
            missing = missing + 1 if is_away and not waits else 0
            ends = missing >= TRIGGERED_ATTEMPTS or (limit is not None and attempt >= limit)
            if ends or not (error.transient or is_away or waits):
                return reports.failed(planned, error, progress)
            runner.state = "retrying"
            wait_s = wait_before(attempt)
            reports.retrying(planned, _unreadable(error) if is_away else error, attempt, wait_s)
            if stop.wait(wait_s):
                return reports.finished(planned, "stopped", progress)
        else:
            return reports.finished(planned, outcome, progress)


def _unreadable(error: HeadraceError) -> errors.StorageUnreadableError:
    """The error of an attempt that did not find a table or checkpoint which the flow has used before."""
    problem = "lacks a table or a checkpoint of the flow"
    if isinstance(error, errors.StorageAccessError):
        problem = "cannot be read"
    return errors.StorageUnreadableError(
        f"the storage {problem}: {error.summary}",
        location=error.location,
        facts=error.facts,
        remedies=("headrace doctor",),
        params={**error.params, "code": error.code},
    )


@dataclass
class Looks:
    """Looks at the storage for bookkeeping: one that fails has no answer, and is repeated with backoff.
    `flow`: the flow that looks; ``None`` for the update itself. `limit`: the number of failed looks in a row
    after which the error is raised; ``None`` for no limit."""

    update: str
    emit: Emitter
    flow: str | None = None
    limit: int | None = None
    _failed: dict[str, tuple[int, float]] = field(default_factory=dict, init=False)
    """The number of failed looks, and the time of the next one."""

    def ask(self, what: str, look: Callable[[], Found]) -> Found | None:
        """The answer of a look; ``None`` if it failed now, or failed before and is not repeated yet."""
        attempt, again_at = self._failed.get(what, (0, 0.0))
        if time.monotonic() < again_at:
            return None
        try:
            found = look()
        except (OSError, HeadraceError) as caught:
            error = _storage_error(what, caught)
            if error is None:
                raise
            attempt += 1
            if self.limit is not None and attempt >= self.limit:
                raise error from (None if error is caught else caught)
            wait_s = wait_before(attempt)
            self._failed[what] = (attempt, time.monotonic() + wait_s)
            _LOG.warning("%s: %s; the next look is in %.0f s", what, caught, wait_s)
            self.report(what, error, attempt, wait_s)
            return None
        self._failed.pop(what, None)
        return found

    def report(self, what: str, error: HeadraceError, attempt: int, wait_s: float) -> None:
        failed = LookFailed(
            update=self.update,
            flow=self.flow,
            what=what,
            error=error.to_dict(),
            attempt=attempt,
            wait_s=wait_s,
        )
        self.emit(failed)

    def repeat(
        self,
        what: str,
        call: Callable[[], Found],
        as_error: Callable[[Exception], HeadraceError],
        stop: StopSignal,
    ) -> Found:
        """The result of a call; after an error that can pass, it is called again with backoff."""
        attempt = 0
        while True:
            try:
                return call()
            except Exception as failure:
                error = as_error(failure)
                attempt += 1
                wait_s = wait_before(attempt)
                if stop.requested or not error.transient or attempt == self.limit:
                    raise
                self.report(what, error, attempt, wait_s)
                if stop.wait(wait_s):
                    raise

    def repeats(self, what: str) -> bool:
        return what in self._failed


def _storage_error(what: str, error: Exception) -> HeadraceError | None:
    if not isinstance(error, HeadraceError):
        return errors.StorageUnreadableError(
            f"the storage could not be read: {what}",
            facts=(f"the system's error: {error}",),
            remedies=("headrace doctor",),
            params={"what": what},
        )
    return error if error.transient or isinstance(error, errors.StorageUnwritableError) else None
