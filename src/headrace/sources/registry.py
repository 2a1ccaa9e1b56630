"""The kinds of sources (a new one is a line here), the checks of a flow's sources, and the ranges of
batches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from headrace.errors import HeadraceError, SourceLocation
from headrace.model.ranges import Position, RecordCoordinates, SourceRange, marks_of
from headrace.sources.kind import FlowRun, Guard, SourceKind
from headrace.sources.requests import StreamRead
from headrace.sources.source import Source
from headrace.state.checkpoint import CheckpointIdentity, SourceIdentity, corrupt, load_offsets, offsets_path
from headrace.storage.location import Location

KINDS: tuple[SourceKind, ...] = tuple(
    import_module(f"headrace.sources.{name}").KIND
    for name in (
        "kafka.kind",
        "delta.source",
        "files.source",
        "kinesis.kind",
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


class SourceGuards:
    """One guard for each kind of source that a flow reads."""

    def __init__(self, run: FlowRun) -> None:
        self._guards: dict[str, Guard] = {}
        for kind in dict.fromkeys(source.kind for source in run.sources):
            mine = [source for source in run.sources if source.kind == kind]
            self._guards[kind] = kind_of(kind).guard(run, mine)

    def open(self, positions: Mapping[int, Position]) -> None:
        for guard in self._guards.values():
            guard.open(positions)

    def begin(self, batch: int, ranges: Sequence[SourceRange]) -> tuple[SourceRange, ...]:
        """Complete the ranges of a batch before its rows are read; see `Guard.begin`."""
        found = [one for kind, guard in self._guards.items() for one in guard.begin(batch, _of(kind, ranges))]
        return _sorted(found)

    def finish(self, ranges: Sequence[SourceRange]) -> tuple[SourceRange, ...]:
        """Check the sources before the commit, and mark the ranges; see `Guard.check` and `Guard.finish`."""
        for kind, guard in self._guards.items():
            guard.check(_of(kind, ranges))
        found = [one for kind, guard in self._guards.items() for one in guard.finish(_of(kind, ranges))]
        return _sorted(found)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise the error that explains why the block failed, where a source explains it."""
        try:
            yield
        except HeadraceError:
            raise
        except Exception as error:
            for guard in self._guards.values():
                guard.explain(error)
            raise

    def committed(self) -> None:
        for guard in self._guards.values():
            guard.committed()

    def is_replay(self, batch: int) -> bool:
        """Whether the target's batch was made of the same input; see `Guard.is_replay`."""
        return all(guard.is_replay(batch) for guard in self._guards.values())

    def check_same_rows(self, batch: int) -> None:
        """Check that the batch would give the same rows again; see `Guard.check_same_rows`."""
        for guard in self._guards.values():
            guard.check_same_rows(batch)

    def close(self) -> None:
        for guard in self._guards.values():
            guard.close()


def _of(kind: str, ranges: Sequence[SourceRange]) -> list[SourceRange]:
    return [one for one in ranges if one.kind == kind]


def _sorted(ranges: Sequence[SourceRange]) -> tuple[SourceRange, ...]:
    return tuple(sorted(ranges, key=lambda one: one.index))


def load_ranges(
    checkpoint: Location,
    batch: int,
    sources: Sequence[SourceIdentity],
    before: Sequence[SourceRange] | None = None,
) -> tuple[SourceRange, ...]:
    """What a batch reads from each of its sources.

    A source without new data repeats its last position: its range is empty. `before`: the ranges of the batch
    before, if they are known.
    """
    ends = _load_positions(checkpoint, batch, sources)
    if before is not None:
        starts = {one.index: one.until for one in before}
    else:
        starts = _load_positions(checkpoint, batch - 1, sources) if batch > 0 else {}
    return tuple(
        SourceRange(
            index=source.index,
            kind=source.kind,
            identity=source.identity,
            start=kind_of(source.kind).batch_start(
                checkpoint, source, starts.get(source.index), ends[source.index]
            ),
            until=ends[source.index],
        )
        for source in sources
        if source.index in ends
    )


def read_back(checkpoint: Location, identity: CheckpointIdentity, batch: int) -> Mapping[str, Any]:
    """What a checkpoint has read in a batch by its own offset log, in the form of a commit."""
    ranges = load_ranges(checkpoint, batch, identity.sources)
    return {"checkpoint": identity.checkpoint, "batch": batch, "sources": [one.to_json() for one in ranges]}


def load_next_positions(
    checkpoint: Location, batch: int, sources: Sequence[SourceIdentity]
) -> dict[int, Position]:
    """Where the sources continue when everything before ``batch`` has been committed."""
    if offsets_path(checkpoint, batch).exists():
        starts = {one.index: one.start for one in load_ranges(checkpoint, batch, sources)}
        return {index: start for index, start in starts.items() if start is not None}
    return _load_positions(checkpoint, batch - 1, sources)


def committed_positions(metadata: Mapping[str, Any]) -> dict[int, Position]:
    return {one["index"]: kind_of(one["kind"]).position(one["until"]) for one in metadata["sources"]}


def committed_sources(metadata: Mapping[str, Any]) -> tuple[SourceIdentity, ...]:
    return tuple(map(SourceIdentity.from_json, metadata["sources"]))


def range_of(value: Mapping[str, Any]) -> SourceRange:
    kind = kind_of(value["kind"])
    return SourceRange(
        index=value["index"],
        kind=value["kind"],
        identity=value["identity"],
        start=None if value["from"] is None else kind.position(value["from"]),
        until=kind.position(value["until"]),
        marks=marks_of(value),
    )


def join_marks(kind: str, one: Mapping[str, Any], two: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The marks of two ranges that follow each other, as one; ``None`` if they stay apart."""
    return kind_of(kind).join_marks(one, two)


def _parsed(text: str) -> Any:
    """The value of a position; Spark asks sources for JSON, and does not insist."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _load_positions(
    checkpoint: Location, batch: int, sources: Sequence[SourceIdentity]
) -> dict[int, Position]:
    path = offsets_path(checkpoint, batch)
    offsets = load_offsets(checkpoint, batch)
    if len(offsets) != len(sources):
        count = ValueError(f"it has {len(offsets)} sources, and the flow has {len(sources)}")
        raise corrupt(path, count)
    try:
        return {
            source.index: kind_of(source.kind).position(_parsed(text))
            for source, text in zip(sources, offsets, strict=True)
            if text is not None
        }
    except ValueError as error:
        raise corrupt(path, error) from error
