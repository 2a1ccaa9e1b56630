"""Coordinates of records, positions in sources, and the range of a source that one batch read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from zlib import crc32

PartType = Literal["STRING", "INT", "BIGINT"]
"""The SQL type of a part: names, the number of a partition, and the number of a record."""


@dataclass(frozen=True)
class CoordinatePart:
    name: str
    type: PartType


@dataclass(frozen=True)
class RecordCoordinates:
    """The parts that identify a record: a name (STRING), at most one partition (INT), and the record's number
    (BIGINT). Records of one name and partition are ordered by their numbers."""

    parts: tuple[CoordinatePart, ...]
    before_number: str = ""  # the words before the number; by default the name of its part

    def __post_init__(self) -> None:
        types = [part.type for part in self.parts]
        if types not in (["STRING", "BIGINT"], ["STRING", "INT", "BIGINT"]):
            raise ValueError(
                f"coordinates are one STRING, then INT or nothing, then BIGINT, not {types}: "
                "a kind with several names joins them into one"
            )

    @classmethod
    def of(cls, before_number: str = "", **types: PartType) -> RecordCoordinates:
        """Coordinates of part names with their types, in order."""
        return cls(tuple(CoordinatePart(name, kind) for name, kind in types.items()), before_number)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

    @property
    def source(self) -> str:
        return self.parts[0].name

    @property
    def partition(self) -> str | None:
        return next((part.name for part in self.parts if part.type == "INT"), None)

    @property
    def number(self) -> str:
        return self.parts[-1].name

    @property
    def types(self) -> dict[str, PartType]:
        return {part.name: part.type for part in self.parts}

    def describe(self, values: Mapping[str, Any]) -> str:
        """The coordinates of a record in words, such as ``orders/0 offset 7``; empty if it has none."""
        *above, number = (values.get(name) for name in self.names)
        if None in above:
            return ""
        place = "/".join(map(str, above))
        return place if number is None else f"{place}{self.before_number or f' {self.number}'} {number}"


RANGE_KEYS = frozenset({"index", "kind", "identity", "from", "until"})
"""The keys of a range in a commit that every kind of source has; the others are marks."""


class Position(Protocol):
    """How far a source was read. Each kind of source has a class of its own."""

    def to_json(self) -> Any: ...

    def to_text(self) -> str:
        """Its JSON as the source writes it: Spark compares positions as text."""
        return json.dumps(self.to_json(), separators=(",", ":"))

    def describe(self) -> str:
        """Where a flow continues, as words that follow the name of the source."""
        return f"at {json.dumps(self.to_json())}"

    def continues(self, ended: Position) -> bool:
        """Whether a batch that starts here continues exactly where another one ended. It may start with
        partitions that are new since."""
        return self == ended


@dataclass(frozen=True)
class OpaquePosition(Position):
    """A position whose content only Spark understands."""

    value: Any

    def to_json(self) -> Any:
        return self.value


@dataclass(frozen=True)
class SourceRange:
    index: int  # the number of the source in the query, as Spark counts from 0
    kind: str
    identity: Mapping[str, Any]  # identifies the source, also if another source has the same name later
    start: Position | None  # where the batch begins; ``None`` where the source does not say where it starts
    until: Position  # where the batch ends; holds every partition, not only those that moved
    # What the kind of source adds for later checks, by key of the commit's JSON.
    marks: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "kind": self.kind,
            "identity": dict(self.identity),
            "from": None if self.start is None else self.start.to_json(),
            "until": self.until.to_json(),
            **self.marks,
        }


def marks_of(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: mark for key, mark in value.items() if key not in RANGE_KEYS}


NO_TIMESTAMP = -1  # Kafka's timestamp of a record that has none


@dataclass(frozen=True)
class RecordMark:
    timestamp_ms: int
    crc: int | None = None  # the CRC-32 of key and value; ``None`` in a commit that has only the timestamp

    @classmethod
    def of(cls, timestamp_ms: int, key: bytes | None, value: bytes | None) -> RecordMark:
        crc = 0
        for part in (key, value):
            # The length separates key from value; -1 separates NULL from an empty value.
            crc = crc32((-1 if part is None else len(part)).to_bytes(8, "big", signed=True), crc)
            crc = crc32(part or b"", crc)
        return cls(timestamp_ms, crc)

    def is_other(self, now: RecordMark) -> bool:
        """Whether `now` is the mark of another record. Checksums are compared if both marks have one."""
        both = self.crc is not None and now.crc is not None
        return self.timestamp_ms != now.timestamp_ms or (both and self.crc != now.crc)

    def to_json(self) -> list[int]:
        return [self.timestamp_ms] if self.crc is None else [self.timestamp_ms, self.crc]
