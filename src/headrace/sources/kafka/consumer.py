"""Records of a topic as they lie there, for people and scripts; no group is joined or left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import BrokerUnreachableError, ConsumeFailedError, OffsetUnknownError
from headrace.model.kafka_settings import KafkaConnection
from headrace.runtime.kafka_client import ClientErrors, confluent, connection_errors
from headrace.sources.kafka.cluster import COMMITTED, KafkaCluster

if TYPE_CHECKING:
    from confluent_kafka import Consumer

Start = Literal["earliest", "latest"] | int | datetime
"""From the first or behind the last record, from an offset on, or from a moment on."""

_POLL_S = 0.2
_SILENCE_S = 10.0
_CONNECT_S = 3.0
_MANY = 500
"""Records that are fetched from the client at once."""

_GROUP = "headrace-consume"
"""librdkafka wants a name. Nothing is committed and nobody joins, so the broker never hears of it."""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    topic: str
    partition: int
    offset: int
    timestamp: datetime | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class Span:
    first: Mapping[int, int]
    end: Mapping[int, int]  # behind the last; what comes later is read only by who follows

    @property
    def is_empty(self) -> bool:
        return all(self.first[partition] >= end for partition, end in self.end.items())


class TopicReader:
    def __init__(self, connection: KafkaConnection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self._cluster = KafkaCluster(connection)
        self._client_errors = ClientErrors(connection)
        self._heard_at = 0.0

    def find_span(self, start: Start, partitions: Sequence[int] = ()) -> Span:
        """Where to begin and to end in each partition, as the topic is now."""
        cluster = self._cluster
        there = cluster.partitions([self._topic])[self._topic]
        wanted = tuple(dict.fromkeys(partitions)) or there
        if unknown := [one for one in wanted if one not in there]:
            raise OffsetUnknownError(
                f"topic `{self._topic}` has no partition {unknown[0]}",
                facts=(f"its partitions: {', '.join(map(str, there))}",),
                remedies=(
                    f"read partition {there[0]}:   headrace consume {self._topic} --partition {there[0]}",
                ),
                params={"topic": self._topic, "partition": unknown[0], "partitions": list(there)},
            )
        earliest = cluster.earliest([self._topic])[self._topic]
        latest = cluster.latest([self._topic])[self._topic]
        end = {one: latest[one] for one in wanted}
        match start:
            case "earliest":
                first = {one: earliest[one] for one in wanted}
            case "latest":
                first = end
            case datetime():
                # The first record of each partition that is as young as that, or younger
                at_ms = int(start.timestamp() * 1000)
                found = cluster.offsets_since({self._topic: dict.fromkeys(end, at_ms)})[self._topic]
                first = {one: offset if offset >= 0 else end[one] for one, offset in found.items()}
            case _:
                held = {one: (earliest[one], latest[one]) for one in wanted}
                first = self._offsets_from(start, held)
        return Span(first, end)

    def read(self, span: Span, *, follow: bool = False) -> Iterator[TopicRecord]:
        end = dict(span.end)
        left = {one for one in end if follow or span.first[one] < end[one]}
        if not left:
            return
        self._heard_at = time.monotonic()
        with self._assigned({one: span.first[one] for one in left}) as consumer:
            while left:
                messages = consumer.consume(_MANY, _POLL_S)
                if messages:
                    self._heard_at = time.monotonic()
                else:
                    self._check_broker()
                for message in messages:
                    partition = message.partition()
                    if (error := message.error()) is not None:
                        # The end of a partition: what is left before `end` are transaction markers.
                        if self._is_end(error) and not follow:
                            left.discard(partition)
                        continue
                    if not follow and message.offset() >= end[partition]:
                        left.discard(partition)
                        continue
                    yield _record(message)
                    if not follow and message.offset() + 1 >= end[partition]:
                        left.discard(partition)

    def _check_broker(self) -> None:
        """Make sure now and then that a silent broker is there; Kafka's client would wait for it for ever."""
        self._client_errors.check()
        if time.monotonic() - self._heard_at < _SILENCE_S:
            return
        if reasons := connection_errors(self._connection.bootstrap_servers, _CONNECT_S):
            raise self._cluster.unreachable("; ".join(reasons))
        self._heard_at = time.monotonic()

    def _offsets_from(self, offset: int, held: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        if all(offset < first or offset > end for first, end in held.values()):
            places = [
                f"partition {one} holds offsets {first} to {end - 1}"
                if end > first
                else f"partition {one} is empty, its next offset is {end}"
                for one, (first, end) in held.items()
            ]
            raise OffsetUnknownError(
                f"topic `{self._topic}` does not have the offset {offset}",
                facts=places[:8],
                remedies=(f"read from the start:   headrace consume {self._topic} --from earliest",),
                params={"topic": self._topic, "offset": offset},
            )
        # Each partition has its own record at an offset; a shorter partition is read from its end.
        return {one: max(first, min(offset, end)) for one, (first, end) in held.items()}

    @contextmanager
    def _assigned(self, first: Mapping[int, int]) -> Iterator[Consumer]:
        self._client_errors = ClientErrors(self._connection)
        consumer = self._client_errors.open(confluent.Consumer, {**COMMITTED, "group.id": _GROUP})
        try:
            places = [confluent.TopicPartition(self._topic, one, offset) for one, offset in first.items()]
            consumer.assign(places)
            yield consumer
        finally:
            consumer.close()

    def _is_end(self, error: Any) -> bool:
        """Whether an event says that a partition has ended."""
        if error.code() == confluent.KafkaError._PARTITION_EOF:
            return True
        passing = (
            confluent.KafkaError._TRANSPORT,
            confluent.KafkaError._RESOLVE,
            confluent.KafkaError.GROUP_AUTHORIZATION_FAILED,
        )
        if error.code() in passing or error.retriable():
            return False
        raise self._failed(error)

    def _failed(self, error: Any) -> ConsumeFailedError | BrokerUnreachableError:
        if error.code() in (
            confluent.KafkaError._ALL_BROKERS_DOWN,
            confluent.KafkaError._TIMED_OUT,
            confluent.KafkaError._TRANSPORT,
        ):
            return self._cluster.unreachable(error.str())
        return ConsumeFailedError(
            f"topic `{self._topic}` on {self._connection.bootstrap_servers} cannot be read",
            facts=(f"Kafka's client reports: {error.str()}",),
            remedies=("check the connection:   headrace doctor",),
            params={"topic": self._topic, "reason": error.name()},
        )


def _record(message: Any) -> TopicRecord:
    kind, at_ms = message.timestamp()
    return TopicRecord(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp=None if kind == 0 else datetime.fromtimestamp(at_ms / 1000, UTC),
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
    )
