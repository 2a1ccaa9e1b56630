"""The event log: every event of an update as one JSON line, written as it happens and read back."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from headrace.model.events import Event
from headrace.model.names import TableName
from headrace.model.ranges import SourceRange
from headrace.state.files import hold, is_held, unwritable
from headrace.storage.layout import Storage

_KEPT_S = 30 * 86_400
_LEAST_KEPT, _MOST_KEPT = 100, 5_000
"""Logs that are kept however old they are, and in all."""

_logger = logging.getLogger(__name__)


class EventLog:
    """The log of one update; an emitter that several threads may call.

    Example:
        >>> with EventLog.open(storage, update) as log:  # doctest: +SKIP
        ...     log(event)
    """

    def __init__(self, file: Path, stream: IO[str]) -> None:
        self.file = file
        self.failure: OSError | None = None
        """Why nothing is written any more. A run goes on without its log, but not without a word."""
        self._stream = stream
        self._lock = threading.Lock()

    @classmethod
    def open(cls, storage: Storage, update: str) -> EventLog:
        """Open the log of an update.

        Raises:
            StorageUnwritableError: The storage's folder cannot be written.
        """
        file = storage.events / f"{update}.jsonl"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            return cls(file, hold(file.open("a", encoding="utf-8")))
        except OSError as error:
            raise unwritable(file, error) from error

    def __call__(self, event: Event) -> None:
        line = json.dumps(event_to_json(event), ensure_ascii=False, default=str)
        with self._lock:
            if self.failure is not None or self._stream.closed:
                return
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except OSError as error:
                # What watches the work must not stop the work.
                self.failure = error
                _logger.warning("events of this update are not logged any more: %s: %s", self.file, error)

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._stream.close()


def event_to_json(event: Event) -> dict[str, Any]:
    """The event as JSON values: its name under ``event``, then its fields."""
    fields = {field.name: _to_json(getattr(event, field.name)) for field in dataclasses.fields(event)}
    return {"event": type(event).__name__, **fields}


def event_from_json(data: Mapping[str, Any]) -> Event | None:
    """The event again; ``None`` for one that this version does not know."""
    kind = _KINDS.get(str(data.get("event")))
    if kind is None:
        return None
    known = {field.name for field in dataclasses.fields(kind)}
    values = {name: value for name, value in data.items() if name in known}
    return kind(**{name: _decode(name, value) for name, value in values.items()})


def read_events(file: Path) -> Iterator[Event]:
    """The events of one log, in order. A last line that was not written whole is left out."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                data = json.loads(line)
            except ValueError:
                continue
            event = event_from_json(data) if isinstance(data, dict) else None
            if event is not None:
                yield event


def prune_events(storage: Storage) -> None:
    """Remove the logs of updates that are long over: older than a month and not among the last, or too many.

    The log of an update that runs is kept, however old it is.
    """
    files = sorted(storage.events.glob("*.jsonl"))
    too_many, old = files[:-_MOST_KEPT], files[-_MOST_KEPT:-_LEAST_KEPT]
    before = time.time() - _KEPT_S
    for file in (*too_many, *old):
        try:
            if (file in too_many or file.stat().st_mtime < before) and not is_held(file):
                file.unlink()
        except OSError as error:
            _logger.warning("an old log of events is left: %s: %s", file, error)
            return


def list_updates(storage: Storage) -> list[str]:
    """The updates that have a log, oldest first; their ids begin with the time."""
    return sorted(file.stem for file in storage.events.glob("*.jsonl"))


def _all_kinds(kind: type[Event]) -> Iterator[type[Event]]:
    for below in kind.__subclasses__():
        yield below
        yield from _all_kinds(below)


_KINDS = {kind.__name__: kind for kind in _all_kinds(Event)}


def _to_json(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case TableName():
            return str(value)
        case SourceRange():
            return value.to_json()
        case tuple() | list():
            return [_to_json(item) for item in value]
        case Mapping():
            return {str(key): _to_json(item) for key, item in value.items()}
        case _:
            return value


def _decode(name: str, value: Any) -> Any:
    if value is None:
        return None
    return _DECODERS.get(name, _as_it_is)(value)


def _as_it_is(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _table(text: str) -> TableName:
    schema, _, name = text.partition(".")
    return TableName(schema, name)


def _range(data: Mapping[str, Any]) -> SourceRange:
    return SourceRange(data["index"], data["kind"], data["identity"], data["from"], data["until"])


_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "at": datetime.fromisoformat,
    "dataset": _table,
    "views": lambda names: tuple(_table(name) for name in names),
    "ranges": lambda ranges: tuple(_range(data) for data in ranges),
}
