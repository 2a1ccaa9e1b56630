"""Parts of a range of Kafka offsets."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.model.coordinates import RecordCoordinates
from headrace.model.ranges import SourceRange
from headrace.runtime.lazy_pyspark import DataFrame, F
from headrace.sources.kafka.cluster import Offsets
from headrace.sources.kafka.position import KafkaOffsets
from headrace.sources.parts import Part

COORDINATES = RecordCoordinates.of(topic="STRING", partition="INT", offset="BIGINT")


def show_command(record: Mapping[str, Any]) -> str:
    """The command that prints a record."""
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


def parts_of(one: SourceRange) -> list[KafkaPart]:
    """The records of a range, by partition."""
    assert isinstance(one.until, KafkaOffsets)
    return [
        KafkaPart(topic=topic, partition=partition, start=first, until=end, source=one.index)
        for topic, partition, first, end in one.until.since(one.start)
    ]


def range_of(one: SourceRange, parts: Sequence[Part]) -> SourceRange:
    """The offsets from the first to the last record of the parts, for each partition."""
    start: Offsets = {}
    until: Offsets = {}
    for part in parts:
        assert isinstance(part, KafkaPart)
        first, last = start.setdefault(part.topic, {}), until.setdefault(part.topic, {})
        first[part.partition] = min(part.start, first.get(part.partition, part.start))
        last[part.partition] = max(part.until, last.get(part.partition, part.until))
    return replace(one, start=KafkaOffsets(start), until=KafkaOffsets(until))


def leave_out(frame: DataFrame, records: Sequence[Part]) -> DataFrame:
    """The records of a source without some of them."""
    for one in records:
        if isinstance(one, KafkaPart):
            is_it = (F.col("topic") == one.topic) & (F.col("partition") == one.partition)
            frame = frame.where(~(is_it & (F.col("offset") == one.start)))
    return frame
