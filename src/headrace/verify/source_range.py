"""The range of a source that one batch read, by its commit or the ledger; multisets of offsets as spans."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from headrace.model.ranges import RecordCoordinates
from headrace.model.texts import counted

Offsets = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans of offsets, each from ``starts[i]`` up to ``ends[i]``, exclusive; none is empty."""

    starts: Offsets
    ends: Offsets

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Spans:
        """Build from ``(from, until)`` pairs; empty ones are dropped."""
        kept = np.array([pair for pair in pairs if pair[0] < pair[1]], dtype=np.int64).reshape(-1, 2)
        return cls(kept[:, 0], kept[:, 1])

    @classmethod
    def of_offsets(cls, offsets: Offsets) -> Spans:
        """Build from single offsets in any order; one that occurs twice lies in two spans."""
        if offsets.size == 0:
            return cls.of(())
        if np.any(np.diff(offsets) < 0):
            offsets = np.sort(offsets)
        breaks = np.flatnonzero(np.diff(offsets) != 1)
        firsts = np.concatenate(([0], breaks + 1))
        lasts = np.concatenate((breaks, [offsets.size - 1]))
        return cls(offsets[firsts], offsets[lasts] + 1)

    @classmethod
    def joined(cls, several: Sequence[Spans]) -> Spans:
        if not several:
            return cls.of(())
        return cls(
            np.concatenate([one.starts for one in several]), np.concatenate([one.ends for one in several])
        )

    @property
    def total(self) -> int:
        """How many offsets, counted as often as they occur."""
        return int((self.ends - self.starts).sum())

    def __bool__(self) -> bool:
        return self.starts.size > 0

    def pairs(self) -> list[tuple[int, int]]:
        order = np.argsort(self.starts, kind="stable")
        return list(zip(self.starts[order].tolist(), self.ends[order].tolist(), strict=True))

    def within(self, low: int | None, high: int | None) -> Spans:
        """The part from ``low`` up to ``high``, exclusive."""
        starts = self.starts if low is None else np.maximum(self.starts, low)
        ends = self.ends if high is None else np.minimum(self.ends, high)
        kept = starts < ends
        return Spans(starts[kept], ends[kept])

    def merged(self, reach: int = 0) -> Spans:
        """Each offset once; spans that touch become one, as do those at most ``reach`` apart."""
        if not self:
            return self
        order = np.argsort(self.starts, kind="stable")
        starts, ends = self.starts[order], np.maximum.accumulate(self.ends[order])
        breaks = np.flatnonzero(starts[1:] > ends[:-1] + reach)
        firsts = np.concatenate(([0], breaks + 1))
        lasts = np.concatenate((breaks, [starts.size - 1]))
        return Spans(starts[firsts], ends[lasts])

    def less(self, other: Spans) -> Spans:
        """The offsets that are not in the other one, each once."""
        layers = Layers.of(self, other)
        return layers.where((layers.counts[0] > 0) & (layers.counts[1] == 0))


@dataclass(frozen=True, eq=False)
class Layers:
    """Several multisets laid over each other and cut where any of them changes."""

    pieces: Spans  # the cuts, ascending and without overlap
    counts: tuple[Offsets, ...]  # for each layer, how often it holds the offsets of each piece

    @classmethod
    def of(cls, *layers: Spans) -> Layers:
        edges = np.unique(np.concatenate([array for one in layers for array in (one.starts, one.ends)]))
        pieces = Spans(edges[:-1], edges[1:])
        return cls(pieces, tuple(_depth(one, pieces.starts) for one in layers))

    def where(self, chosen: NDArray[np.bool_]) -> Spans:
        """The chosen pieces, those that touch joined."""
        return Spans(self.pieces.starts[chosen], self.pieces.ends[chosen]).merged()

    def repeated(self, counts: Offsets) -> Spans:
        """The pieces, each as often as its own of ``counts``."""
        most = int(counts.max(initial=0))
        return Spans.joined([self.where(counts >= times) for times in range(1, most + 1)])

    def times(self, counts: Offsets) -> int:
        """How many offsets there are when each piece holds its own ``counts`` times."""
        return int(((self.pieces.ends - self.pieces.starts) * counts).sum())


def _depth(spans: Spans, at: Offsets) -> Offsets:
    begun = np.searchsorted(np.sort(spans.starts), at, side="right")
    return (begun - np.searchsorted(np.sort(spans.ends), at, side="right")).astype(np.int64)


def spans_text(spans: Iterable[tuple[int, int]], shown: int = 20) -> str:
    """``offset 7``, ``offsets 7 to 9``, ``offsets 7, 10 to 12 and 3 more ranges``; ends are exclusive."""
    found = [(int(low), int(high)) for low, high in spans]
    words = [f"{low}" if high == low + 1 else f"{low} to {high - 1}" for low, high in found[:shown]]
    noun = "offset" if len(found) == 1 and found[0][1] == found[0][0] + 1 else "offsets"
    more = len(found) - shown
    if more > 0:
        return f"{noun} {', '.join(words)} and {counted(more, 'more range')}"
    return f"{noun} {', '.join(words)}"


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
