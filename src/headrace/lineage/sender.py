"""Sends OpenLineage's events of an update, on a thread of its own: a server that is down or slow neither
stops nor delays a run."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.errors import PackageMissingError, first_line
from headrace.model.event_forms import Emitter, Event
from headrace.model.events import BatchCommitted
from headrace.model.project import LineageSettings, ProjectSettings
from headrace.model.table_events import LineageFailed, LineageRestored
from headrace.plan.stages import Plan

if TYPE_CHECKING:
    from headrace.lineage.openlineage import LineageEvents

_logger = logging.getLogger(__name__)

Send = Callable[[Any], object]

_ANSWER_S = 5.0  # how long a server may take to answer
_CLOSE_S = 3.0  # how long the end of an update waits for the last events
_FIRST_WAIT_S, _MOST_WAIT_S = 1.0, 30.0  # the pauses between two attempts while a server does not answer
_MOST_EVENTS = 10_000  # the events of the update that wait to be looked at
_MOST_WAITING = 1_000  # OpenLineage's events that wait to be sent
_PATH = "api/v1/lineage"


def check_lineage(settings: ProjectSettings) -> None:
    """Check that the package is there, if the spec wants events: before a run, and without importing it."""
    if settings.lineage is not None and find_spec("openlineage") is None:
        raise PackageMissingError(
            "`lineage` in the spec needs the package openlineage-python, which is not installed",
            location=settings.places.get("lineage"),
            remedies=("pip install 'headrace[lineage]'", "or remove `lineage` from the spec"),
            params={"package": "openlineage-python"},
        )


@contextmanager
def sending_lineage(
    settings: ProjectSettings, update: str, plan: Plan | None, emit: Emitter
) -> Iterator[Emitter | None]:
    """A listener of the events of an update that sends OpenLineage's; ``None`` if the spec wants none."""
    if settings.lineage is None:
        yield None
        return
    with LineageSender(settings.lineage, settings, update, plan, emit) as sender:
        yield sender


class LineageSender:
    """A listener that several threads may call."""

    def __init__(
        self, to: LineageSettings, settings: ProjectSettings, update: str, plan: Plan | None, emit: Emitter
    ) -> None:
        self._to, self._settings, self._update, self._plan = to, settings, update, plan
        self._emit = emit
        self._condition = threading.Condition()
        self._events: deque[Event] = deque()
        self._waiting: deque[Any] = deque()
        self._lost = 0
        self._is_closing = self._is_failing = False
        self._next_s = 0.0  # when the next attempt may be made
        self._pause_s = _FIRST_WAIT_S
        self._send: Send | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-lineage", daemon=True)

    def __call__(self, event: Event) -> None:
        with self._condition:
            # The sums of batches may be incomplete; the ends of flows are not left out.
            if len(self._events) < _MOST_EVENTS or not isinstance(event, BatchCommitted):
                self._events.append(event)
                self._condition.notify()

    def __enter__(self) -> LineageSender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._is_closing = True
            self._condition.notify()
        self._thread.join(_CLOSE_S)
        left = len(self._waiting) + self._lost
        if left or self._thread.is_alive():
            _logger.warning("%s of the last OpenLineage events were not sent", left or "some")

    def _run(self) -> None:
        from headrace.lineage.openlineage import LineageEvents

        events = LineageEvents(self._to, self._settings, self._update, self._plan)
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._events or self._is_closing, self._rest_s())
                taken, is_last = [*self._events], self._is_closing
                self._events.clear()
            self._take(events, taken, is_last=is_last)
            if is_last or time.monotonic() >= self._next_s:
                self._flush()
            if is_last:
                return

    def _rest_s(self) -> float | None:
        return max(self._next_s - time.monotonic(), 0.0) if self._waiting else None

    def _take(self, events: LineageEvents, taken: list[Event], *, is_last: bool) -> None:
        made = [partial(events.of, one) for one in taken]
        made += [partial(events.close, datetime.now(UTC))] if is_last else []
        for make in made:
            try:
                self._waiting.extend(make())
            except Exception as error:
                # Lineage must not end a run, and the next events can be right.
                _logger.warning("an OpenLineage event could not be made: %s", first_line(error))
        while len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft()
            self._lost += 1

    def _flush(self) -> None:
        """Send what waits, until one fails; the next attempt is made after a pause."""
        while self._waiting:
            try:
                self._send = self._send or open_transport(self._to)
                self._send(self._waiting[0])
            except Exception as error:
                self._next_s = time.monotonic() + self._pause_s
                self._pause_s = min(2 * self._pause_s, _MOST_WAIT_S)
                self._report(error)
                return
            self._waiting.popleft()
            self._pause_s = _FIRST_WAIT_S
            self._report(None)

    def _report(self, error: Exception | None) -> None:
        """Say once that the events cannot be sent, and once that they are sent again."""
        if error is not None and not self._is_failing:
            reason = self._settings.redactor(f"{type(error).__name__}: {first_line(error)}")
            self._emit(LineageFailed(update=self._update, target=self._target, reason=reason))
        elif error is None and self._is_failing:
            lost, self._lost = self._lost, 0
            self._emit(LineageRestored(update=self._update, target=self._target, lost=lost))
        self._is_failing = error is not None

    @property
    def _target(self) -> str:
        return str(self._to.file) if self._to.url is None else self._to.url


def open_transport(to: LineageSettings) -> Send:
    """What sends an event: to a server, or to the end of a file."""
    if to.url is None:
        from openlineage.client.transport.file import FileConfig, FileTransport

        assert to.file is not None
        to.file.parent.mkdir(parents=True, exist_ok=True)
        return FileTransport(FileConfig(log_file_path=str(to.file), append=True)).emit
    from openlineage.client.transport.http import (
        ApiKeyTokenProvider,
        HttpConfig,
        HttpTransport,
        TokenProvider,
    )

    parts = urlsplit(to.url)
    config = HttpConfig(
        url=f"{parts.scheme}://{parts.netloc}",
        endpoint=parts.path.strip("/") or _PATH,
        timeout=_ANSWER_S,
        auth=TokenProvider({}) if to.api_key is None else ApiKeyTokenProvider({"apiKey": to.api_key}),
        retry={"total": 0},
    )
    return HttpTransport(config).emit
