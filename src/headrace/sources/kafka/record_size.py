"""How large the records of a topic are, from a few of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.model.kafka_settings import KafkaConnection
from headrace.sources.kafka.single_records import SingleRecords

if TYPE_CHECKING:
    from confluent_kafka import Message

_PARTITIONS = 4
"""So many partitions speak for all of them."""

_RECORDS = 40
_ANSWER_S = 2.0
_OVERHEAD = 60
"""Bytes that a row needs beside key and value: coordinates, timestamp, lengths."""


class RecordSizes:
    """Takes samples of a cluster's records.

    It is an estimate for a limit: where no sample can be had, nobody is told, and nothing waits.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._records = SingleRecords(connection, "samples")

    def sample(self, positions: Mapping[str, Mapping[int, int]]) -> float | None:
        """Bytes of a record at these offsets, on average; ``None`` where none came in time.

        Args:
            positions: Offsets by topic and partition that hold a record, or are followed by one.
        """
        from confluent_kafka import KafkaException, TopicPartition

        places = [
            TopicPartition(topic, partition, offset)
            for topic, offsets in positions.items()
            for partition, offset in sorted(offsets.items())[:_PARTITIONS]
        ]
        if not places:
            return None
        sizes: list[int] = []
        ended: set[tuple[str | None, int | None]] = set()
        with contextlib.suppress(KafkaException, RuntimeError, HeadraceError):
            consumer = self._records.open()
            consumer.assign(places)
            deadline = time.monotonic() + _ANSWER_S
            while max(len(sizes), len(ended)) < len(places) and time.monotonic() < deadline:
                for message in consumer.consume(num_messages=_RECORDS, timeout=0.1):
                    if message.error() is None:
                        sizes.append(_size(message))
                    else:
                        ended.add((message.topic(), message.partition()))
            consumer.unassign()
        return sum(sizes) / len(sizes) if sizes else None

    def close(self) -> None:
        """Leave the cluster."""
        self._records.close()


def _size(message: Message) -> int:
    headers = message.headers() or []
    key, value = message.key(), message.value()
    return (
        _OVERHEAD
        + (len(key) if key else 0)
        + (len(value) if value else 0)
        + sum(len(name) + (len(content) if content else 0) for name, content in headers)
    )
