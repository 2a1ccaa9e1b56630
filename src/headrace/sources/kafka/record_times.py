"""The timestamps of single records: what tells a record from another one that got its offset later."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.model.connections import KafkaConnection
from headrace.sources.kafka.single_records import SingleRecords

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

Partition = tuple[str, int]
"""A topic and the number of a partition."""

Times = Mapping[int, int]
"""Timestamps in milliseconds, by offset."""

_AT_ONCE = 500
_POLL_S = 0.1
_NO_TIMESTAMP = 0
"""librdkafka's type of a timestamp that a record does not have."""


class RecordTimes:
    """Reads the timestamps of a cluster's records, with one consumer that stays open.

    The caller must do without a timestamp that cannot be read. No error is raised.

    Args:
        connection: The cluster.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._records = SingleRecords(connection, "times")
        self._lock = threading.Lock()

    def read(
        self, spans: Mapping[Partition, tuple[int, int]], timeout_s: float
    ) -> dict[Partition, dict[int, int]]:
        """The timestamps of the committed records within spans of offsets.

        Transaction markers, aborted records and compacted records have none.

        Args:
            spans: The first offset, and the offset after the last one, by partition.
            timeout_s: The longest that it may take, in seconds.

        Returns:
            The timestamps by partition. A partition that was not read to the end of its span is left out.
        """
        from confluent_kafka import KafkaException, TopicPartition

        if not spans:
            return {}
        found: dict[Partition, dict[int, int]] = {}
        with self._lock, contextlib.suppress(KafkaException, RuntimeError, HeadraceError):
            consumer = self._records.open()
            consumer.assign([TopicPartition(*place, first) for place, (first, _) in spans.items()])
            try:
                found = _read(consumer, spans, time.monotonic() + timeout_s)
            finally:
                consumer.unassign()
        return found

    def close(self) -> None:
        """Close the connection; `read` opens a new one."""
        with self._lock:
            self._records.close()


def _read(
    consumer: Consumer, spans: Mapping[Partition, tuple[int, int]], deadline: float
) -> dict[Partition, dict[int, int]]:
    times: dict[Partition, dict[int, int]] = {place: {} for place in spans}
    left = {place: end for place, (_, end) in spans.items()}
    while left and time.monotonic() < deadline:
        # `consume` alone would wait for its whole timeout unless so many records came.
        first = consumer.poll(_POLL_S)
        if first is None:
            continue
        for message in [first, *consumer.consume(_AT_ONCE, 0)]:
            place = (message.topic() or "", message.partition() or 0)
            if place in left and _take(message, left[place], times[place]):
                del left[place]
    return {place: found for place, found in times.items() if place not in left}


def _take(message: Message, end: int, times: dict[int, int]) -> bool:
    """Keep a record's timestamp; returns whether the span has ended."""
    offset = message.offset()
    if message.error() is not None or offset is None:
        # The partition has ended, or it does not hold the span's first offset any more.
        return True
    kind, timestamp_ms = message.timestamp()
    if offset < end and kind != _NO_TIMESTAMP:
        times[offset] = timestamp_ms
    return bool(offset >= end - 1)
