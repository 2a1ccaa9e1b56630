"""A Kafka cluster: the ids, partitions and offsets of its topics. No JVM."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import BrokerUnreachableError, HeadraceError, TopicNotFoundError, did_you_mean
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.ranges import NO_TIMESTAMP, RecordMark
from headrace.runtime.broker_record import find_in_shared
from headrace.runtime.kafka_client import ClientErrors, confluent, confluent_admin, connection_errors
from headrace.runtime.kafka_faults import find_fault
from headrace.sources.kafka.subscription import is_topic_name, matching

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from confluent_kafka.admin import AdminClient


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


T = TypeVar("T")

_CONNECT_S = 3.0
_PAUSE_S = 0.1
_PASSING = (
    *("LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID"),
    *("UNKNOWN_LEADER_EPOCH", "FENCED_LEADER_EPOCH"),
)

Offsets = dict[str, dict[int, int]]
"""By topic and partition."""


class KafkaCluster:
    """A Kafka cluster, asked through librdkafka; it connects on the first question, and serves all
    threads."""

    def __init__(
        self, connection: KafkaConnection, timeout_s: float = 10.0, *, asks_once: bool = False
    ) -> None:
        self.connection = connection
        self._timeout_s = timeout_s
        self._asks_once = asks_once
        self._silence: BrokerUnreachableError | None = None
        self._lock = threading.Lock()
        self._answered = False
        self._client_errors = ClientErrors(connection)
        self._client: AdminClient | None = None
        self.marks = RecordMarks(connection)
        """Reads the timestamps of its records."""

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str | None]:
        """The topic ids, which show that a topic was deleted and created again."""
        described = self._described(list(topics))
        return {name: None if topic is None else str(topic.topic_id) for name, topic in described.items()}

    def partitions(self, topics: Iterable[str]) -> dict[str, tuple[int, ...]]:
        names = list(dict.fromkeys(topics))
        for name in names:
            if not is_topic_name(name):
                raise TopicNotFoundError(
                    f"`{name}` is not a valid topic name",
                    remedies=("use letters, digits, `.`, `_` and `-` only",),
                    params={"topic": name},
                )
        described = self._described(names)
        if missing := [name for name in names if described[name] is None]:
            raise self._not_found(missing)
        return {name: tuple(sorted(one.id for one in described[name].partitions)) for name in names}

    def earliest(self, topics: Iterable[str]) -> Offsets:
        """The first offset of each partition that the cluster still holds."""
        return self._listed(topics, confluent_admin.OffsetSpec.earliest())

    def latest(self, topics: Iterable[str]) -> Offsets:
        """The offset after the last committed record of each partition."""
        return self._listed(topics, confluent_admin.OffsetSpec.latest())

    def offsets_since(self, moments: Offsets) -> Offsets:
        """The first offset of each partition at a moment or later (milliseconds); -1 for none."""
        return self._listed_at(
            {
                (topic, partition): confluent_admin.OffsetSpec.for_timestamp(moment)
                for topic, partitions in moments.items()
                for partition, moment in partitions.items()
            }
        )

    def matching(self, pattern: str) -> tuple[str, ...]:
        """The topics that Spark reads for a pattern."""
        self._connection_errors()
        return matching(pattern, self._names())

    def largest_record(self, topic: str) -> int | None:
        """The most bytes that the topic takes at once; ``None`` where the cluster does not tell."""
        value = self._setting(topic, "max.message.bytes")
        return None if value is None else int(value)

    def is_compacted(self, topic: str) -> bool | None:
        """Whether the topic is compacted; ``None`` if the cluster does not tell."""
        value = self._setting(topic, "cleanup.policy")
        return None if value is None else "compact" in value

    def _setting(self, topic: str, name: str) -> str | None:
        asked = [confluent_admin.ConfigResource(confluent_admin.ResourceType.TOPIC, topic)]
        try:
            futures = self._admin().describe_configs(asked, request_timeout=self._timeout_s)
            (found,) = [self._wait(future) for future in futures.values()]
            return str(found[name].value)
        except (confluent.KafkaException, HeadraceError, TimeoutError, KeyError):
            # A client that may read or write a topic may be forbidden to ask for its settings.
            return None

    def close(self) -> None:
        """Let go of all clients and their connections; a further question opens new ones."""
        with self._lock:
            self._client = None
        self.marks.close()

    def ping(self) -> None:
        try:
            self._check_connection()
        except (confluent.KafkaException, TimeoutError) as error:
            raise self._failed(error) from error

    def topics(self) -> tuple[str, ...]:
        """The names of all topics that are not Kafka's own."""
        return tuple(sorted(name for name in self._names() if not name.startswith("__")))

    def _names(self) -> tuple[str, ...]:
        try:
            self._check_connection()
            return tuple(self._admin().list_topics(timeout=self._timeout_s).topics)
        except (confluent.KafkaException, TimeoutError) as error:
            raise self._failed(error) from error

    def _described(self, topics: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if not topics:
            return found
        self._connection_errors()
        try:
            futures = self._admin().describe_topics(
                confluent.TopicCollection(topics), request_timeout=self._timeout_s
            )
            for name, future in futures.items():
                try:
                    found[name] = self._wait(future)
                except confluent.KafkaException as error:
                    code = error.args[0].code()
                    if code == confluent.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                        message = f"TOPIC_AUTHORIZATION_FAILED topic: {name}"
                        raise find_fault(self.connection, [message]) or self._failed(error) from error
                    if code != confluent.KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
                    found[name] = None
        except (confluent.KafkaException, TimeoutError) as error:
            raise self._failed(error) from error
        return found

    def _listed(self, topics: Iterable[str], spec: Any) -> Offsets:
        known = self.partitions(topics)
        return self._listed_at({(topic, one): spec for topic, ids in known.items() for one in ids})

    def _listed_at(self, specs: Mapping[tuple[str, int], Any]) -> Offsets:
        if not specs:
            return {}
        self._connection_errors()
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._list_once(specs)
            except (confluent.KafkaException, TimeoutError) as error:
                # A partition that was just created, or that is moving, has no leader for a moment.
                passes = isinstance(error, confluent.KafkaException) and error.args[0].name() in _PASSING
                if not passes or time.monotonic() > deadline:
                    raise self._failed(error) from error
            time.sleep(_PAUSE_S)

    def _list_once(self, specs: Mapping[tuple[str, int], Any]) -> Offsets:
        offsets: Offsets = {}
        futures = self._admin().list_offsets(
            {confluent.TopicPartition(*place): spec for place, spec in specs.items()},
            isolation_level=confluent.IsolationLevel.READ_COMMITTED,
            request_timeout=self._timeout_s,
        )
        for place, future in futures.items():
            offsets.setdefault(place.topic, {})[place.partition] = self._wait(future).offset
        return offsets

    def _admin(self) -> AdminClient:
        with self._lock:
            if self._client is None:
                self._client_errors = ClientErrors(self.connection)
                self._client = self._client_errors.open(confluent_admin.AdminClient)
            return self._client

    def _wait(self, future: Future[T]) -> T:
        try:
            return self._client_errors.wait(future, self._admin(), self._timeout_s)
        except HeadraceError:
            with self._lock:
                # Use a new client: this one keeps failing after an error.
                self._client = None
            raise

    def _check_connection(self) -> None:
        """Log in first: without a valid login, a request would only end at its timeout."""
        self._wait(self._admin().describe_cluster(request_timeout=self._timeout_s))

    def _connection_errors(self) -> None:
        """Raise at once if no broker listens: librdkafka would retry for the whole timeout."""
        if self._asks_once and self._silence is not None:
            raise self._silence
        if not self._answered:
            reasons = connection_errors(self.connection.bootstrap_servers, min(_CONNECT_S, self._timeout_s))
            if reasons:
                raise self.unreachable("; ".join(reasons))
            self._answered = True

    def _failed(self, error: BaseException) -> HeadraceError:
        return self._client_errors.explain(error) or self.unreachable(error)

    def unreachable(self, error: BaseException | str) -> BrokerUnreachableError:
        servers = self.connection.bootstrap_servers
        place = self.connection.place("bootstrap.servers")
        self._silence = BrokerUnreachableError(
            f"no Kafka broker answers at {servers}",
            location=place,
            facts=(f"Kafka's client reports: {error}",),
            remedies=(
                *(() if place is None else (f"start the broker, or correct bootstrap.servers at {place}",)),
                "check the connection:   headrace doctor",
            ),
            params={"bootstrap_servers": servers},
        )
        return self._silence

    def _not_found(self, topics: Sequence[str]) -> TopicNotFoundError:
        known, listed = self.topics(), " and ".join(f"`{topic}`" for topic in topics)
        remedies: list[str] = []
        for topic in topics:
            remedies += did_you_mean(topic, known, self.connection.create_topic_remedy(topic))
        facts, others = find_in_shared(topics, self.connection.broker)
        return TopicNotFoundError(
            f"the broker at {self.connection.bootstrap_servers} has no topic {listed}",
            facts=facts,
            remedies=[*others, *remedies],
            params={"topic": topics[0]} if len(topics) == 1 else {"topics": list(topics)},
        )
