"""How much the batches of a Kafka source read, to choose how much the next one may read."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError
from headrace.model.ranges import Position, SourceRange
from headrace.runtime.kafka_client import confluent
from headrace.sources.kafka.cluster import RecordMarks
from headrace.sources.kafka.facts import KafkaFacts
from headrace.sources.kafka.position import KafkaOffsets
from headrace.sources.limits import Meter, Taken
from headrace.state.facts import SourceFacts

if TYPE_CHECKING:
    from confluent_kafka import Message

KAFKA_MAX_OFFSETS_PER_TRIGGER: Final = 500_000
"""Records of a first batch: about 9 s cold and 2 to 4 s warm for JSON records of 90 bytes, measured."""

LEAST_RECORDS = 20
"""Records that every batch may take, unless they are too large."""

_FIRST_BYTES = 128 << 20
"""Bytes of a first batch: the cost of a record is not known yet."""

_BACKLOG = 20
"""Records from which on a backlog is worth a sample."""

_PARTITIONS = 4
"""So many partitions speak for all of them."""

_RECORDS = 40
_ANSWER_S = 2.0
_OVERHEAD = 60
"""Bytes that a row needs beside key and value: coordinates, timestamp, lengths."""


def first_limit(record_bytes: float | None) -> int:
    if record_bytes is None:
        return KAFKA_MAX_OFFSETS_PER_TRIGGER
    return max(1, int(min(_FIRST_BYTES / record_bytes, KAFKA_MAX_OFFSETS_PER_TRIGGER)))


class KafkaMeter(Meter):
    """Counts records; samples say how large those to come are, else the default limit applies."""

    counts_records = True
    least = LEAST_RECORDS

    def __init__(self, records: RecordMarks) -> None:
        self._records = records
        self.record_bytes = None

    def first_limit(self, facts: SourceFacts, position: Position | None) -> int:
        assert isinstance(facts, KafkaFacts)
        ends = KafkaOffsets(facts.latest)
        start = position if isinstance(position, KafkaOffsets) else KafkaOffsets(facts.earliest)
        backlog: dict[str, dict[int, int]] = {}
        count = 0
        for topic, partition, offset in start:
            left = (ends.get(topic, partition) or 0) - offset
            if left > 0:
                backlog.setdefault(topic, {})[partition] = offset
                count += left
        if count >= _BACKLOG:
            self.record_bytes = self._sample(backlog)
        return first_limit(self.record_bytes)

    def taken(self, one: SourceRange, limit: int, duration_s: float) -> Taken:
        assert isinstance(one.until, KafkaOffsets)
        amount = one.until.count_since(one.start)
        # A flow that keeps up has no records to come.
        if amount >= limit // 2:
            self.record_bytes = self._sample(one.until.offsets) or self.record_bytes
        return Taken(amount, duration_s, self.record_bytes)

    def _sample(self, positions: Mapping[str, Mapping[int, int]]) -> float | None:
        """Bytes of a record at these offsets, on average; ``None`` where none came in time."""
        places = [
            confluent.TopicPartition(topic, partition, offset)
            for topic, offsets in positions.items()
            for partition, offset in sorted(offsets.items())[:_PARTITIONS]
        ]
        if not places:
            return None
        sizes: list[int] = []
        ended: set[tuple[str | None, int | None]] = set()
        with (
            contextlib.suppress(confluent.KafkaException, RuntimeError, HeadraceError),
            self._records.consumer(places) as consumer,
        ):
            deadline = time.monotonic() + _ANSWER_S
            while max(len(sizes), len(ended)) < len(places) and time.monotonic() < deadline:
                for message in consumer.consume(num_messages=_RECORDS, timeout=0.1):
                    if message.error() is None:
                        sizes.append(_size(message))
                    else:
                        ended.add((message.topic(), message.partition()))
        return sum(sizes) / len(sizes) if sizes else None


def _size(message: Message) -> int:
    headers = message.headers() or []
    key, value = message.key(), message.value()
    return (
        _OVERHEAD
        + (len(key) if key else 0)
        + (len(value) if value else 0)
        + sum(len(name) + (len(content) if content else 0) for name, content in headers)
    )
