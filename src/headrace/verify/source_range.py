"""The range of a source that one batch read, by its commit or the ledger."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from headrace.model.coordinates import RecordCoordinates

Position = Any
"""A position of a source, as the commit's JSON has it."""

Partition = tuple[Any, ...]
"""A record's coordinates without its number, such as topic and partition."""


def named(partition: Partition) -> str:
    """A partition, for people: ``sales/0``."""
    return "/".join(map(str, partition))


@dataclass(frozen=True)
class SourceRange:
    """What one batch read from one source of its query. Each kind of source has a subclass.

    The positions of a kind with coordinates have the next number of each partition, as
    ``{"<topic>": {"<partition>": <offset>}}``; another form overrides `offsets`. The other kinds have one
    position, which overrides `order_of`.
    """

    coordinates: ClassVar[RecordCoordinates | None] = None
    """The parts that identify a record of this kind; ``None`` if its records have no coordinates."""

    mark_names: ClassVar[tuple[str, ...]] = ()
    """The marks that the kind's reader reads, all of them JSON objects."""

    index: int  # the number of the source in the query, as Spark counts from 0
    kind: str
    identity: Mapping[str, Any]  # the ids of the source
    start: Position | None  # inclusive; ``None`` before the first batch of a source without a recorded start
    until: Position  # exclusive; has every partition, also without new records
    marks: Mapping[str, Any] = field(default_factory=dict)  # facts of the kind for later checks

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        """The range of a commit, or of an entry of the ledger; raises `TypeError` if it is damaged."""
        start = value["from"]
        marks = {name: mark for name in cls.mark_names if (mark := value.get(name)) is not None}
        for name, mark in marks.items():
            if not isinstance(mark, dict):
                raise TypeError(f"{mark!r} is not a mark {name}")
        return cls(
            index=int(value["index"]),
            kind=value["kind"],
            identity=value["identity"],
            start=None if start is None else cls.read_position(start),
            until=cls.read_position(value["until"]),
            marks=marks,
        )

    @classmethod
    def read_position(cls, value: Any) -> Position:
        if not isinstance(value, dict):
            raise TypeError(f"{value!r} is not a position")
        return value

    def offsets(self, position: Position | None) -> dict[Partition, int]:
        """The next number of each partition at a position; empty for a kind without coordinates."""
        if self.coordinates is None or position is None:
            return {}
        found: dict[Partition, Any] = {(): position}
        for part in self.coordinates.parts[:-1]:
            read = int if part.type == "INT" else str
            found = {(*key, read(name)): value for key, one in found.items() for name, value in one.items()}
        return {key: int(number) for key, number in found.items()}

    @property
    def starts(self) -> dict[Partition, int]:
        return self.offsets(self.start)

    @property
    def ends(self) -> dict[Partition, int]:
        """The offset after the last one of each partition."""
        return self.offsets(self.until)

    @property
    def spans(self) -> dict[Partition, tuple[int, int]]:
        """The offsets that were read of each partition, as ``(from, until)``."""
        starts = self.starts
        return {key: (starts.get(key, end), end) for key, end in self.ends.items()}

    def place(self, partition: Partition) -> dict[str, Any]:
        """A partition by the names of its parts, for findings."""
        names = () if self.coordinates is None else self.coordinates.names
        return dict(zip(names, partition, strict=False))

    def stream(self, partition: Partition) -> tuple[Partition, str | None]:
        """What a partition is a part of, such as its topic: the name and the id."""
        return partition[:1], self.id_of(partition)

    def id_of(self, partition: Partition) -> str | None:
        """The id of the stream of a partition at that time. Another id has other records."""
        return None

    def reads(self, partition: Partition) -> bool:
        return True

    @property
    def key(self) -> tuple[str, ...]:
        """The kind and the id of the whole source; by default its identity."""
        return (self.kind, json.dumps(self.identity, sort_keys=True))

    @property
    def variant(self) -> str | None:
        """What tells two sources of a query with one key apart, as long as a user does not change it."""
        return None

    @property
    def name(self) -> str:
        return " ".join(self.key)

    @property
    def table_id(self) -> str | None:
        return None

    def is_same_source(self, other: SourceRange) -> bool:
        """Whether both ranges are of one source; it may come to have more partitions."""
        shared = self.ends.keys() & other.ends.keys()
        is_same = self.kind == other.kind and self.key == other.key
        return is_same and all(self.id_of(key) == other.id_of(key) for key in shared)

    def marks_without(self, later: Iterable[SourceRange]) -> Mapping[str, Any]:
        """The marks of what is left of a merged entry of the ledger without some of its last batches."""
        return self.marks

    def order_of(self, position: Position | None) -> tuple[int, ...]:
        """What the positions of a kind without coordinates compare by; empty if they have no order."""
        return ()

    def is_end(self, position: Position | None) -> bool:
        if self.coordinates is not None:
            return self.offsets(position) == self.ends
        order = self.order_of(self.until)
        return self.order_of(position) == order if order else bool(position == self.until)


@dataclass(frozen=True)
class DeclaredRange:
    """The offsets of a partition that an opening or the ledger declares as lost, or as read again."""

    names: tuple[str, ...]  # the parts of the partition
    partition: Partition
    low: int
    high: int  # exclusive

    @property
    def place(self) -> dict[str, Any]:
        return dict(zip(self.names, self.partition, strict=True))


class Kinds:
    """The kinds of sources that commits and the ledger can name."""

    def __init__(self, ranges: Mapping[str, type[SourceRange]], other: type[SourceRange]) -> None:
        self._ranges = ranges
        self._other = other  # the ranges of a kind that is not known
        self.coordinates = [one.coordinates for one in ranges.values() if one.coordinates is not None]

    def read_range(self, value: Mapping[str, Any]) -> SourceRange:
        return self._ranges.get(value["kind"], self._other).parse(value)

    def find_coordinates(self, names: Collection[str]) -> RecordCoordinates | None:
        """The coordinates with the most parts, all of them among these names."""
        return _longest(one for one in self.coordinates if set(one.names) <= set(names))

    def read_declared(self, value: Mapping[str, Any]) -> DeclaredRange | None:
        """A declared range of offsets; ``None`` for another entry, such as a lost file."""
        found = _longest(one for one in self.coordinates if set(one.names[:-1]) <= value.keys())
        if found is None:
            return None
        *parts, _ = found.parts
        partition = tuple(
            int(value[part.name]) if part.type == "INT" else str(value[part.name]) for part in parts
        )
        return DeclaredRange(found.names[:-1], partition, int(value["from"]), int(value["until"]))


def _longest(several: Iterable[RecordCoordinates]) -> RecordCoordinates | None:
    return max(several, key=lambda one: len(one.parts), default=None)
