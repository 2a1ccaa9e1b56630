"""The kinds of sources: a new one is a folder, with a module that has `KIND`, and one line here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from headrace.errors import SourceLocation
from headrace.model.coordinates import RecordCoordinates
from headrace.sources.kind import SourceKind
from headrace.sources.source import Source
from headrace.sources.systems import StreamRead
from headrace.state.identity import SourceIdentity

KINDS: tuple[SourceKind, ...] = tuple(
    import_module(f"headrace.sources.{name}").KIND
    for name in (
        "kafka.kind",
        "delta.source",
        "files.source",
        "other.source",  # the first kind that knows a format opens it, and this one opens all
    )
)

_BY_NAME = {kind.name: kind for kind in KINDS}

RECORD = {name: type for kind in KINDS for name, type in kind.record.items()}
"""The fields of a record that the quarantine keeps, with their SQL types."""

STREAM_COORDINATES = tuple(
    dict.fromkeys(kind.source.coordinates for kind in KINDS if kind.source.coordinates is not None)
)
"""The coordinates that streams have as columns."""
COORDINATES = tuple(dict.fromkeys(kind.coordinates for kind in KINDS if kind.coordinates is not None))
"""The coordinates of all kinds, also those that only rejected records have."""


def kind_of(name: str) -> SourceKind:
    """The kind of a source, by the name that checkpoints and commits have."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ValueError(f"unknown kind of source: {name!r}") from None


def kind_for(format: str) -> SourceKind:
    """The kind of the sources that one of Spark's formats reads."""
    return next(kind for kind in KINDS if kind.opens(format))


def build_source(read: StreamRead) -> Source:
    return kind_for(read.format).build(read)


def load_source(value: Mapping[str, Any], location: SourceLocation) -> Source:
    """The source behind `Source.to_json`."""
    return kind_of(value["kind"]).source.from_json(value, location)


def widest_coordinates(
    names: Iterable[str], among: Iterable[RecordCoordinates] = COORDINATES
) -> RecordCoordinates | None:
    """The coordinates with the most parts, all of them among these names."""
    known = set(names)
    return max((one for one in among if known >= {*one.names}), key=lambda one: len(one.parts), default=None)


def _find_kind(record: Mapping[str, Any]) -> tuple[SourceKind, RecordCoordinates] | None:
    """The kind of a record of the quarantine, whose coordinates have the most parts."""
    known = ((kind, kind.coordinates) for kind in KINDS if kind.coordinates is not None)
    found = (one for one in known if one[1].describe(record))
    return max(found, key=lambda one: len(one[1].parts), default=None)


def describe_record(record: Mapping[str, Any]) -> str:
    """The coordinates of a record of the quarantine, in words; empty if it has none."""
    found = _find_kind(record)
    return "" if found is None else found[1].describe(record)


def show_record(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The command that prints a record, if one can."""
    found = _find_kind(record)
    command = None if found is None else found[0].show_record(record)
    return () if command is None else (f"print the record:   {command}",)


def describe_source(source: SourceIdentity) -> str:
    return kind_of(source.kind).describe(source)
