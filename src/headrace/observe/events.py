"""The event log: every event of an update as one JSON line, written as it happens and read back."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any

from headrace.errors import StorageUnwritableError
from headrace.model.events import Event
from headrace.model.names import TableName
from headrace.model.ranges import OpaquePosition, SourceRange
from headrace.storage.layout import Storage
from headrace.storage.location import Appender, Location

_SUFFIX = ".jsonl"
_TAIL_BYTES = 512 * 1024
_KEPT_S = 30 * 86_400
_LEAST_KEPT, _MOST_KEPT = 100, 5_000
"""The number of logs that are kept at any age, and the maximum number of logs."""

_logger = logging.getLogger(__name__)


class EventLog:
    """The log of one update; an emitter that several threads may call.

    Example:
        >>> with EventLog.open(storage, update) as log:  # doctest: +SKIP
        ...     log(event)
    """

    def __init__(self, file: Location, appender: Appender) -> None:
        self.file = file
        self.failure: OSError | None = None
        """The error that ended the log. The run continues without its log, and warns once."""
        self._appender: Appender | None = appender
        self._lock = threading.Lock()

    @classmethod
    def open(cls, storage: Storage, update: str) -> EventLog:
        """Open the log of an update.

        Raises:
            StorageUnwritableError: The storage cannot be written.
        """
        file = event_file(storage, update)
        return cls(file, file.append())

    def __call__(self, event: Event) -> None:
        line = json.dumps(event_to_json(event), ensure_ascii=False, default=str)
        with self._lock:
            if self.failure is not None or self._appender is None:
                return
            try:
                self._appender.write(line + "\n")
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
            if self._appender is not None:
                self._appender.close()
            self._appender = None


def event_to_json(event: Event) -> dict[str, Any]:
    """The event as JSON values: its name under ``event``, then its fields."""
    fields = {field.name: _to_json(getattr(event, field.name)) for field in dataclasses.fields(event)}
    return {"event": type(event).__name__, **fields}


def event_from_json(data: Mapping[str, Any]) -> Event | None:
    """The event of JSON values; ``None`` if this version does not have its type."""
    kind = _KINDS.get(str(data.get("event")))
    if kind is None:
        return None
    known = {field.name for field in dataclasses.fields(kind)}
    values = {name: value for name, value in data.items() if name in known}
    return kind(**{name: _decode(name, value) for name, value in values.items()})


def event_file(storage: Storage, update: str) -> Location:
    """The log of an update."""
    return storage.events / f"{update}{_SUFFIX}"


def read_events(file: Location) -> Iterator[Event]:
    """The events of one log, in order, without a last line that was not written whole."""
    return _parse(file.read_lines())


def read_last_events(file: Location) -> list[Event]:
    """The events at the end of a log, which can be very long; none if the log cannot be read."""
    try:
        with file.open() as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - _TAIL_BYTES))
            lines = stream.read().decode("utf-8", errors="replace").split("\n")
    except OSError:
        return []
    return list(_parse(lines[1:] if size > _TAIL_BYTES else lines))


def prune_events(storage: Storage) -> None:
    """Remove the logs of old updates: older than a month and not among the last ones, or too many.

    The log of a running update is kept, however old it is.
    """
    updates = list_updates(storage)
    too_many, old = updates[:-_MOST_KEPT], updates[-_MOST_KEPT:-_LEAST_KEPT]
    before = time.time() - _KEPT_S
    for update in (*too_many, *old):
        file = event_file(storage, update)
        try:
            if (update in too_many or file.modified() < before) and not file.is_in_use():
                file.delete()
        except (OSError, StorageUnwritableError) as error:
            _logger.warning("cannot remove an old event log: %s: %s", file, error)
            return


def list_updates(storage: Storage) -> list[str]:
    """The updates that have a log, oldest first; their ids begin with the time."""
    names = storage.events.list_files()
    return [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]


def _parse(lines: Iterable[str]) -> Iterator[Event]:
    for line in lines:
        try:
            event = event_from_json(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            # A line that is being written right now, or that another version wrote.
            continue
        if event is not None:
            yield event


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
    start = None if data["from"] is None else OpaquePosition(data["from"])
    return SourceRange(data["index"], data["kind"], data["identity"], start, OpaquePosition(data["until"]))


_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "at": datetime.fromisoformat,
    "dataset": _table,
    "views": lambda names: tuple(_table(name) for name in names),
    "ranges": lambda ranges: tuple(_range(data) for data in ranges),
}
