"""Events as JSON: the lines of `headrace run --json`, and the fields of the log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from headrace.model import events, table_events
from headrace.model.counts import HistoryChanges, RowChanges
from headrace.model.event_forms import Event
from headrace.model.events import BatchWork
from headrace.model.names import TableName
from headrace.model.ranges import OpaquePosition, SourceRange
from headrace.observe.read import fields_to_json


def event_to_json(event: Event) -> dict[str, Any]:
    """The event as JSON values: its name under ``event``, then its fields."""
    return {"event": type(event).__name__, **fields_to_json(event)}


def event_from_json(data: Mapping[str, Any]) -> Event | None:
    """The event of JSON values; ``None`` if this version does not have its type."""
    kind = _KINDS.get(str(data.get("event")))
    if kind is None:
        return None
    known = {field.name for field in dataclasses.fields(kind)}
    values = {name: value for name, value in data.items() if name in known}
    return kind(**{name: _decode(name, value) for name, value in values.items()})


_KINDS: Mapping[str, type[Event]] = {
    name: kind
    for module in (events, table_events)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Event)
}


def _decode(name: str, value: Any) -> Any:
    if value is not None and name in _DECODERS:
        return _DECODERS[name](value)
    return tuple(value) if isinstance(value, list) else value


def _table(text: str) -> TableName:
    return TableName(*text.split(".", 1))


def _range(data: Mapping[str, Any]) -> SourceRange:
    start = None if data["from"] is None else OpaquePosition(data["from"])
    return SourceRange(data["index"], data["kind"], data["identity"], start, OpaquePosition(data["until"]))


_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "at": datetime.fromisoformat,
    "dataset": _table,
    "views": lambda names: tuple(map(_table, names)),
    "ranges": lambda ranges: tuple(map(_range, ranges)),
    "work": lambda work: BatchWork(**work),
    "changes": lambda changes: (HistoryChanges if "rows_added" in changes else RowChanges)(**changes),
}
