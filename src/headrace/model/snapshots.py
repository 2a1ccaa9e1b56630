"""The snapshots of a source, each with a version, and the records that a flow keeps of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Self

Version = int | float | str | date | datetime
"""The version of a snapshot; all versions of a source have one type."""

_TYPES: Mapping[type, str] = {
    int: "bigint",
    float: "double",
    str: "string",
    date: "date",
    datetime: "timestamp",
}
_PARSERS: Mapping[str, Callable[[str], Version]] = {
    "bigint": int,
    "double": float,
    "string": str,
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
}


def version_type(version: Version) -> str:
    kind = _TYPES.get(type(version))
    if kind is None:
        raise TypeError(type(version).__name__)
    return kind


def version_text(version: Version) -> str:
    """A version as text, from which `parse_version` makes the same value."""
    return version.isoformat() if isinstance(version, date) else str(version)


def parse_version(text: str, kind: str) -> Version:
    return _PARSERS[kind](text)


@dataclass(frozen=True)
class StoredSnapshots:
    name: str

    @property
    def is_path(self) -> bool:
        return "/" in self.name


@dataclass(frozen=True)
class SnapshotFunction:
    """A function that gets the last version, and returns the next snapshot with its version, or ``None``."""

    function: Callable[[Version | None], Any]

    @property
    def name(self) -> str:
        return f"{getattr(self.function, '__name__', 'function')}()"


Snapshots = StoredSnapshots | SnapshotFunction
"""Where a flow's snapshots come from."""


@dataclass(frozen=True, kw_only=True)
class SnapshotMarker:
    """A snapshot that a flow has to apply, or has applied."""

    version: Version
    after: Version | None
    # Which data it is: the folder and the version of a table, or a path; empty for a function.
    location: Mapping[str, Any]
    schema: Mapping[str, Any]  # its columns, as ``StructType.jsonValue()`` gives them

    def to_json(self) -> dict[str, Any]:
        return {
            "version": version_text(self.version),
            "type": version_type(self.version),
            "after": None if self.after is None else version_text(self.after),
            "location": dict(self.location),
            "schema": dict(self.schema),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        kind, after = value["type"], value["after"]
        return cls(
            version=parse_version(value["version"], kind),
            after=None if after is None else parse_version(after, kind),
            location=value["location"],
            schema=value["schema"],
        )
