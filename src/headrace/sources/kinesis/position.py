"""Positions in a stream: the last record that was read of each shard, and the number of the next one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.model.ranges import Position, RecordCoordinates
from headrace.sources.parts import Part

COORDINATES: Final = RecordCoordinates.of(stream="STRING", shard="INT", record_number="BIGINT")
"""Sequence numbers of Kinesis have 186 bits and gaps, and several records of an aggregate share one. So the
records of a shard are numbered as they are read: from 0, without gaps."""


def shard_id(shard: int) -> str:
    """The id of a shard by its number, as Kinesis writes it."""
    return f"shardId-{shard:012d}"


@dataclass(frozen=True, kw_only=True)
class ShardPosition:
    sequence: str | None = None  # the sequence number of the last record that was read
    number: int = 0  # the number of the next record
    # Without a sequence number: the time from which the shard is read; ``None`` is its first record
    since_ms: int | None = None
    # The time up to which all records were read: Kinesis may delete what arrived before it
    seen_ms: int | None = None
    retention_ms: int | None = None  # the retention of the stream then
    closed: bool = False  # whether the shard was split or merged, and is read to its end
    skip: int = 0  # records after the sequence number that are skipped; only in parts of a range

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShardPosition:
        return cls(
            sequence=value.get("sequence"),
            number=int(value["number"]),
            since_ms=value.get("since"),
            seen_ms=value.get("seen"),
            retention_ms=value.get("retention"),
            closed=bool(value.get("closed", False)),
        )

    def to_json(self) -> dict[str, Any]:
        found = {
            "sequence": self.sequence,
            "number": self.number,
            "since": self.since_ms,
            "seen": self.seen_ms,
            "retention": self.retention_ms,
            "closed": self.closed or None,
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def first(self) -> int:
        """The number of the first record that is read."""
        return self.number + self.skip

    def has_moved(self, start: ShardPosition) -> bool:
        """Whether there is something to commit since a start: records, or the end of the shard."""
        return (self.sequence, self.number, self.closed) != (start.sequence, start.number, start.closed)


@dataclass(frozen=True)
class KinesisPosition(Position):
    """The positions of the shards of a stream, by the numbers of the shards."""

    stream: str
    shards: Mapping[int, ShardPosition] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> KinesisPosition:
        try:
            ((stream, shards),) = value.items()
            return cls(stream, {int(n): ShardPosition.from_json(one) for n, one in shards.items()})
        except (TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"not a position in Kinesis: {value!r}") from error

    def to_json(self) -> dict[str, Any]:
        return {self.stream: {str(shard): one.to_json() for shard, one in sorted(self.shards.items())}}

    def to_text(self) -> str:
        # Spark compares positions as text, and PySpark writes those of Python with spaces.
        return json.dumps(self.to_json())

    def with_shards(self, shards: Mapping[int, ShardPosition]) -> KinesisPosition:
        return replace(self, shards=shards)

    def start_of(self, shard: int) -> ShardPosition:
        """The position of a shard at the start of a range; nothing was read of a shard that joins in it."""
        return self.shards.get(shard, ShardPosition())

    def since(self, start: Position | None) -> Iterator[tuple[int, ShardPosition, ShardPosition]]:
        """The shards that have records in a range: the number, and the start and the end of these records."""
        before = start if isinstance(start, KinesisPosition) else KinesisPosition(self.stream)
        for shard, end in sorted(self.shards.items()):
            first = before.start_of(shard)
            if first.first < end.number:
                yield shard, first, end

    def count_since(self, start: Position | None) -> int:
        return sum(end.number - first.first for _, first, end in self.since(start))


@dataclass(frozen=True, kw_only=True)
class KinesisPart(Part):
    """Records of one shard, by their numbers."""

    stream: str
    shard: int

    @property
    def place(self) -> Mapping[str, Any]:
        return {"stream": self.stream, "shard": self.shard, "record_number": self.start}

    def __str__(self) -> str:
        shard = f"stream {self.stream}, shard {self.shard}"
        if self.is_record:
            return f"{shard}, record {self.start}"
        return f"{shard}, records {self.start} to {self.until - 1}"
