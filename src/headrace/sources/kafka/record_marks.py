"""Reads the marks of single records: timestamp and checksum."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.ranges import NO_TIMESTAMP, RecordMark
from headrace.runtime.kafka_client import ClientErrors, confluent

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

Partition = tuple[str, int]
"""A topic and the number of a partition."""

Marks = Mapping[int, RecordMark]
"""Marks by offset."""

COMMITTED = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    # An offset that the broker does not hold is an error, and no reason to start elsewhere.
    "auto.offset.reset": "error",
}
"""Settings of consumers that read committed records between given offsets."""

_AT_ONCE = 500
_POLL_S = 0.1
_NO_TIMESTAMP = 0
"""librdkafka's type of a timestamp that a record does not have."""


class RecordMarks:
    """Reads the marks of a cluster's records; without an error, so the caller must do without a mark."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None

    def read(
        self, spans: Mapping[Partition, tuple[int, int]], timeout_s: float
    ) -> dict[Partition, dict[int, RecordMark]]:
        """The marks of the committed records within spans of offsets; markers and compacted records have
        none."""
        if not spans:
            return {}
        found: dict[Partition, dict[int, RecordMark]] = {}
        places = [confluent.TopicPartition(*place, first) for place, (first, _) in spans.items()]
        with (
            contextlib.suppress(confluent.KafkaException, RuntimeError, HeadraceError),
            self.consumer(places) as consumer,
        ):
            found = _read(consumer, spans, time.monotonic() + timeout_s)
        return found

    @contextlib.contextmanager
    def consumer(self, places: Sequence[confluent.TopicPartition]) -> Iterator[Consumer]:
        """The consumer of the cluster, which reads from these offsets within the block; others wait."""
        with self._lock:
            if self._consumer is None:
                settings: dict[str, Any] = {
                    **COMMITTED,
                    "group.id": "headrace-marks",
                    "fetch.wait.max.ms": 10,
                    "fetch.message.max.bytes": 65_536,
                    "queued.min.messages": 1,
                    "queued.max.messages.kbytes": 1024,
                    # By default a new assignment waits up to a second for its first fetch (measured).
                    "fetch.queue.backoff.ms": 0,
                }
                self._consumer = ClientErrors(self._connection).open(confluent.Consumer, settings)
            self._consumer.assign(places)
            try:
                yield self._consumer
            finally:
                self._consumer.unassign()

    def close(self) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None


def _read(
    consumer: Consumer, spans: Mapping[Partition, tuple[int, int]], deadline: float
) -> dict[Partition, dict[int, RecordMark]]:
    marks: dict[Partition, dict[int, RecordMark]] = {place: {} for place in spans}
    left = {place: end for place, (_, end) in spans.items()}
    while left and time.monotonic() < deadline:
        # `consume` alone would wait for its whole timeout unless so many records came.
        first = consumer.poll(_POLL_S)
        if first is None:
            continue
        for message in [first, *consumer.consume(_AT_ONCE, 0)]:
            place = (message.topic() or "", message.partition() or 0)
            if place not in left:
                continue
            if message.error() is None:
                ended = _take(message, left[place], marks[place])
            else:
                # The span was read if the partition ends after it. Other errors: the broker does not have
                # the span's first offset, or cannot be asked.
                ended = True
                if not _is_end(message, left[place]):
                    del marks[place]
            if ended:
                del left[place]
    return {place: found for place, found in marks.items() if place not in left}


def _is_end(message: Message, end: int) -> bool:
    """Whether a message says that the partition ends at `end` or later."""
    error = message.error()
    return (
        error is not None
        and error.code() == confluent.KafkaError._PARTITION_EOF
        and (message.offset() or 0) >= end
    )


def _take(message: Message, end: int, marks: dict[int, RecordMark]) -> bool:
    offset = message.offset() or 0
    if offset < end:
        kind, timestamp_ms = message.timestamp()
        at_ms = NO_TIMESTAMP if kind == _NO_TIMESTAMP else timestamp_ms
        marks[offset] = RecordMark.of(at_ms, message.key(), message.value())
    return offset >= end - 1
