"""The kinds of sources: a new one is a folder of its own, and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import SourceLocation
from headrace.sources.delta.source import DeltaKind
from headrace.sources.files.source import FilesKind
from headrace.sources.kafka.kind import KafkaKind
from headrace.sources.kind import SourceKind
from headrace.sources.other.source import OtherKind
from headrace.sources.source import Source
from headrace.sources.systems import StreamRead
from headrace.state.identity import SourceIdentity

_KINDS: tuple[SourceKind, ...] = (KafkaKind(), DeltaKind(), FilesKind(), OtherKind())
"""The first kind that knows a format opens it."""

_BY_NAME = {kind.name: kind for kind in _KINDS}


def kind_of(name: str) -> SourceKind:
    """The kind of a source, by the name that checkpoints and commits have.

    Raises:
        ValueError: No kind has this name.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ValueError(f"unknown kind of source: {name!r}") from None


def kind_for(format: str) -> SourceKind:
    """The kind of the sources that one of Spark's formats reads."""
    return next(kind for kind in _KINDS if kind.opens(format))


def build_source(read: StreamRead) -> Source:
    """The source of a streaming read.

    Raises:
        UsageError: The read's options cannot be used.
    """
    return kind_for(read.format).build(read)


def load_source(value: Mapping[str, Any], location: SourceLocation) -> Source:
    """The source behind `Source.to_json`."""
    return kind_of(value["kind"]).source.from_json(value, location)


def describe_source(source: SourceIdentity) -> str:
    """A source that was read, in words."""
    return kind_of(source.kind).describe(source)
