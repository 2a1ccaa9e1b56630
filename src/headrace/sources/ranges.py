"""What each batch reads: Spark's offset log, understood by the kind of each source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.model.ranges import Position, SourceRange, marks_of
from headrace.sources.registry import kind_of
from headrace.state.identity import CheckpointIdentity, SourceIdentity, corrupt
from headrace.state.offset_log import load_offsets, offsets_path
from headrace.storage.location import Location


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
    """Where a commit says that each source ended."""
    return {one["index"]: kind_of(one["kind"]).position(one["until"]) for one in metadata["sources"]}


def committed_sources(metadata: Mapping[str, Any]) -> tuple[SourceIdentity, ...]:
    return tuple(map(SourceIdentity.from_json, metadata["sources"]))


def range_of(value: Mapping[str, Any]) -> SourceRange:
    """A range from its JSON in a commit."""
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
