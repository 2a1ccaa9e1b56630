"""Alerts of a pipeline: checked while an update runs, at its end, and by `headrace alerts check`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.alerts.check import AlertFile
from headrace.alerts.conditions import UNKNOWN, Facts, Finding
from headrace.errors import DatasetUnknownError, HeadraceError, did_you_mean, first_line
from headrace.model.event_forms import Emitter, Event
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.observe.event_log import EventLog
from headrace.observe.snapshot import Snapshot
from headrace.project.last_results import load_result
from headrace.state.checkpoint import find_checkpoints
from headrace.state.ledger import Ledger

if TYPE_CHECKING:
    from headrace.project.pipeline import Pipeline

_logger = logging.getLogger(__name__)

_CHECK_S = 15.0  # between two checks of a run
_END_S = 5.0  # the time that the end of an update waits for a check that has begun
_SHARE = 20  # A check may take this part of the time
_LOSS_AGE = timedelta(days=1)  # older losses are not told any more


def check_alerts(
    settings: ProjectSettings,
    update: str,
    emit: Emitter = lambda event: None,
    error: Mapping[str, Any] | None = UNKNOWN,
    file: AlertFile | None = None,
) -> list[Finding]:
    """Check the rules of a pipeline by what its storage says; tell the targets, the event log, and `emit`.
    `error`: why the update of this process has failed, ``None`` if it has not."""
    from headrace.project.pipeline import Pipeline

    with Pipeline(settings) as pipeline:

        def quality(over_s: float) -> Any:
            return pipeline.quality(since=datetime.now(UTC) - timedelta(seconds=over_s))

        facts = Facts(
            snapshot=_find_status(pipeline, error),
            database=settings.database,
            update_error=error,
            quality=cache(quality),
            losses=cache(partial(_find_losses, settings)),
            proof=partial(load_result, settings, settings.name, "proof"),
            disk=settings.storage.root.space,
        )

        def log(events: Sequence[Event]) -> None:
            if events:
                with EventLog(settings.storage, settings.name, update, redactor=settings.redactor) as table:
                    for event in events:
                        table(event)
                        emit(event)

        return (file or AlertFile(settings)).check(facts, log, update)


def _find_status(pipeline: Pipeline, error: Mapping[str, Any] | None) -> Snapshot | None:
    """The status; ``None`` if it cannot be read after a failed update, which is told in any case."""
    try:
        return pipeline.status()
    except (HeadraceError, OSError):
        if not error or error is UNKNOWN:
            raise
        return None


def check_datasets(settings: ProjectSettings, known: Iterable[TableName]) -> None:
    """Raise `DatasetUnknownError` if a rule names a dataset that the pipeline does not have."""
    names = {*known}
    for one in (one for rule in settings.alerts.rules for one in rule.datasets):
        if one not in names:
            short = [name.within(settings.database) for name in names]
            raise DatasetUnknownError(
                f"a rule of `alerts` names the dataset `{one.within(settings.database)}`, which the pipeline "
                "does not have",
                location=settings.places.get("alerts"),
                remedies=did_you_mean(one.within(settings.database), short),
                params={"name": str(one), "known": sorted(map(str, names))},
            )


@dataclass
class RunAlerts:
    """Checks the alerts during an update: every few seconds, and when it has ended. `emit`: tells those who
    watch the update; the event log is written here, as the update can begin after the first check."""

    settings: ProjectSettings
    update: str
    emit: Emitter
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._file = AlertFile(self.settings)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="headrace-alerts", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_END_S)
        failure: Any = UNKNOWN if error is not None and not isinstance(error, Exception) else None
        if isinstance(error, HeadraceError):
            failure = self.settings.redactor.error(error).to_dict()
        elif isinstance(error, Exception):
            failure = {"code": type(error).__name__, "summary": self.settings.redactor(first_line(error))}
        self._check(failure)

    def _run(self) -> None:
        pause_s = _CHECK_S
        while not self._stop.wait(pause_s):
            began = time.monotonic()
            self._check()
            pause_s = max(_CHECK_S, _SHARE * (time.monotonic() - began))

    def _check(self, failure: Any = UNKNOWN) -> None:
        try:
            check_alerts(self.settings, self.update, self.emit, failure, self._file)
        except Exception:
            # Alerts fail no run.
            _logger.warning("the alerts could not be checked", exc_info=True)


def _find_losses(settings: ProjectSettings) -> dict[str, list[Mapping[str, Any]]]:
    """The losses of the last day, by flow."""
    since = (datetime.now(UTC) - _LOSS_AGE).isoformat(timespec="seconds")
    storage, found = settings.storage, {}
    for dataset, flow, _ in find_checkpoints(storage):
        losses = Ledger(storage.ledger(dataset, flow), dataset, flow).losses()
        found[flow] = [one for one in losses if str(one.get("at", "")) >= since]
    return found
