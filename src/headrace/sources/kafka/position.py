"""Positions in Kafka: the next offset of each partition."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.model.ranges import Position, RecordCoordinates
from headrace.sources.parts import Part


@dataclass(frozen=True)
class KafkaOffsets(Position):
    """The next offset to read, by topic and partition."""

    offsets: Mapping[str, Mapping[int, int]]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> KafkaOffsets:
        try:
            return cls({t: {int(p): int(o) for p, o in parts.items()} for t, parts in value.items()})
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not offsets of Kafka: {value!r}") from error

    def to_json(self) -> dict[str, Any]:
        # Spark compares positions as text, and writes topics and partitions in this order.
        return {
            topic: {str(partition): parts[partition] for partition in sorted(parts)}
            for topic, parts in sorted(self.offsets.items())
        }

    def continues(self, ended: Position) -> bool:
        return isinstance(ended, KafkaOffsets) and all(
            self.get(topic, partition) == offset for topic, partition, offset in ended
        )

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        for topic, parts in self.offsets.items():
            for partition, offset in parts.items():
                yield topic, partition, offset

    def get(self, topic: str, partition: int) -> int | None:
        return self.offsets.get(topic, {}).get(partition)

    def since(self, start: Position | None) -> Iterator[tuple[str, int, int, int]]:
        """The partitions that have moved since a start: topic, partition, first offset and end."""
        for topic, partition, end in self:
            first = start.get(topic, partition) or 0 if isinstance(start, KafkaOffsets) else 0
            if first < end:
                yield topic, partition, first, end

    def count_since(self, start: Position | None) -> int:
        return sum(end - first for _, _, first, end in self.since(start))


COORDINATES = RecordCoordinates.of(topic="STRING", partition="INT", offset="BIGINT")


def show_command(record: Mapping[str, Any]) -> str:
    at = f"--partition {record['partition']} --from {record['offset']} --limit 1"
    return f"headrace consume {shlex.quote(str(record['topic']))} {at}"


@dataclass(frozen=True, kw_only=True)
class KafkaPart(Part):
    """Records of one partition of a topic."""

    topic: str
    partition: int

    @property
    def place(self) -> Mapping[str, Any]:
        return {"topic": self.topic, "partition": self.partition, "offset": self.start}

    @property
    def remedies(self) -> Sequence[str]:
        return (f"print the record:   {show_command(self.place)}",)

    def __str__(self) -> str:
        partition = f"topic {self.topic}, partition {self.partition}"
        if self.is_record:
            return f"{partition}, offset {self.start}"
        return f"{partition}, offsets {self.start} to {self.until - 1}"
