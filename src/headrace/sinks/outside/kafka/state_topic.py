"""The compacted topic with the state of a sink and with what its commits have recorded.

The record with the key `state` has the newest state, and `batch/<version>` has the metadata of one commit.
Versions rise with offsets, so the topic is read backwards from its end.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, TopicNotFoundError
from headrace.runtime.kafka_client import ClientErrors, confluent, confluent_admin, connection_errors
from headrace.sinks.outside.by_key import invalid
from headrace.sinks.outside.kafka.destination import LARGEST, Destination
from headrace.sinks.outside.stateful import SinkState

if TYPE_CHECKING:
    from confluent_kafka import Message
    from confluent_kafka.admin import AdminClient

STATE, BATCH = "state", "batch/"
"""The keys of the records."""
LARGEST_DOCUMENT = 10 * LARGEST

_MADE = {
    "cleanup.policy": "compact",
    # So that old records are soon compacted, which begins with a new segment.
    "segment.bytes": str(64 * LARGEST),
    "segment.ms": "86400000",
    "max.message.bytes": str(LARGEST_DOCUMENT),
}
_READ = {
    "group.id": "headrace-sink",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 20,
    "fetch.queue.backoff.ms": 0,
}
_ANSWER_S, _CONNECT_S, _POLL_S, _AT_ONCE = 10.0, 3.0, 0.05, 500
_PASSING = (-195, -193, -187)  # of a broker that is away: _TRANSPORT, _RESOLVE, _ALL_BROKERS_DOWN
_ABOUT_A_TOPIC = (
    *("UNKNOWN_TOPIC_OR_PART", "TOPIC_ALREADY_EXISTS"),
    # Of a topic that was created just now, or whose leader moves.
    *("_NOENT", "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION"),
)
_PREFIXED = "headrace- --resource-pattern-type prefixed"
_PENDING_S = 3.0
"""Seconds to wait for an open transaction. A working driver commits soon after its messages."""


class PendingTransactionError(Exception):
    """A transaction with records of the topic is open, so the newest state is unknown."""


class StateTopic:
    """The state topic of a sink, as its readers see it."""

    def __init__(self, destination: Destination) -> None:
        self.destination, self.name = destination, destination.state_topic

    @cached_property
    def _client(self) -> tuple[AdminClient, ClientErrors]:
        client_errors = ClientErrors(self.destination.connection)
        return client_errors.open(confluent_admin.AdminClient), client_errors

    def _ask(self, request: Callable[[AdminClient], Mapping[Any, Any]]) -> Any:
        """The answer of the cluster to a request; raises the coded errors."""
        connection = self.destination.connection
        if connection.is_embedded:
            raise self.destination.unavailable("the embedded broker is not running")
        # librdkafka would try for the whole time of the request.
        if reasons := connection_errors(connection.bootstrap_servers, _CONNECT_S):
            raise self.destination.unavailable("; ".join(reasons))
        admin, client_errors = self._client
        (future,) = request(admin).values()
        try:
            return client_errors.wait(future, admin, _ANSWER_S)
        except confluent.KafkaException as error:
            if error.args[0].name() in _ABOUT_A_TOPIC:
                raise
            raise client_errors.explain(error) or self.destination.unavailable(error.args[0].str()) from error
        except (HeadraceError, TimeoutError) as error:
            self.__dict__.pop("_client", None)  # it keeps failing after such an error
            raise (
                error if isinstance(error, HeadraceError) else self.destination.unavailable(str(error))
            ) from error

    def topic_id(self, topic: str) -> str | None:
        """The id of a topic, which a topic that was created again does not have; ``None`` without topic."""
        found = self._described(topic)
        return None if found is None else str(found.topic_id)

    def known_id(self, topic: str) -> str:
        if (found := self.topic_id(topic)) is None:
            raise TopicNotFoundError(
                f"sink {self.destination.spec.name.short}: the topic `{topic}` does not exist",
                remedies=(self.destination.connection.create_topic_remedy(topic),),
                params={"topic": topic},
            )
        return found

    def check_rights(self, topic: str) -> None:
        """Check that a topic may be written, if it exists."""
        found = self._described(topic)
        allowed = None if found is None else found.authorized_operations
        if allowed and not {confluent_admin.AclOperation.WRITE, confluent_admin.AclOperation.ALL} & {
            *allowed
        }:
            what = f"Kafka refuses the access: the topic {topic} may not be written"
            remedy = f"kafka-acls.sh --add --producer --topic {topic} --transactional-id {_PREFIXED} .."
            raise invalid(self.destination.spec, what, None, f"grant it:   {remedy}")

    def _described(self, topic: str) -> Any:
        asked, options = confluent.TopicCollection([topic]), {"include_authorized_operations": True}
        try:
            return self._ask(lambda admin: admin.describe_topics(asked, request_timeout=_ANSWER_S, **options))
        except confluent.KafkaException:
            return None

    def setting(self, topic: str, name: str) -> str | None:
        """A setting of a topic; ``None`` if the cluster does not tell."""
        asked = [confluent_admin.ConfigResource(confluent_admin.ResourceType.TOPIC, topic)]
        try:
            found = self._ask(lambda admin: admin.describe_configs(asked, request_timeout=_ANSWER_S))
            return str(found[name].value)
        except (confluent.KafkaException, HeadraceError, KeyError):
            return None

    def check(self) -> bool:
        """Check that the topic keeps the newest records for ever; false if it does not exist."""
        found = self._described(self.name)
        if found is None:
            return False
        if (count := len(found.partitions)) != 1:
            what = f"its state topic {self.name} has {count} partitions"
            raise invalid(self.destination.spec, what, "its records need one order", self._remedy)
        if (policy := self.setting(self.name, "cleanup.policy")) != "compact":
            shown = "is not known: the cluster refuses the question" if policy is None else f"is {policy}"
            what = f"the cleanup.policy of its state topic {self.name} {shown}"
            raise invalid(
                self.destination.spec,
                what,
                "only with the policy compact, the state of the flows is kept",
                f"kafka-configs.sh --alter --topic {self.name} --add-config cleanup.policy=compact",
                self._remedy,
            )
        return True

    @property
    def _remedy(self) -> str:
        return 'or name another topic, which a run creates:   options={"state_topic": ..}'

    def create(self) -> None:
        if self.check():
            return
        # Without a replication factor, the broker's own default holds.
        new = confluent_admin.NewTopic(self.name, num_partitions=1, replication_factor=-1, config=_MADE)
        try:
            self._ask(lambda admin: admin.create_topics([new], request_timeout=_ANSWER_S))
        except confluent.KafkaException:
            self.check()  # another driver was faster

    def load(self, first: int | None = None, last: int | None = None) -> Loaded:
        """The newest state, and the documents from the version `first` to `last`."""
        low, end = self._ends()
        back = 60
        while True:
            start = max(low, end - back)
            loaded = Loaded()
            for key, value in self._records(start, end):
                loaded.take(key, value, first, last)
            reaches = first is None or (loaded.lowest is not None and loaded.lowest <= first)
            if start == low or (loaded.state is not None and reaches):
                if loaded.owner not in (None, self.destination.key):
                    what = f"its state topic {self.name} belongs to the sink {loaded.owner}"
                    raise invalid(self.destination.spec, what, None, self._remedy)
                return loaded
            # Each commit has two records and the marker of its transaction.
            newest = 0 if first is None or loaded.state is None else loaded.state.version - first
            back = max(back * 8, 4 * newest)

    def first_version(self) -> int | None:
        """The version of the oldest document that the topic still has."""
        batches = (key for key, _ in self._records(*self._ends()) if key.startswith(BATCH))
        return next((int(key.removeprefix(BATCH)) for key in batches), None)

    def live_keys(self, topic: str) -> set[bytes]:
        """The keys of a topic whose newest message has a value."""
        held: set[bytes] = set()
        found = self._described(topic)
        for partition in () if found is None else found.partitions:
            for message in self._messages(topic, partition.id, *self._ends(topic, partition.id)):
                if (key := message.key()) is not None:
                    (held.discard if message.value() is None else held.add)(key)
        return held

    def versions_before(self, moment_ms: int) -> list[int]:
        """The versions whose documents were written before a moment."""
        found = []
        for key, value in self._records(*self._ends()):
            if key.startswith(BATCH) and value is not None:
                if value["timestamp"] >= moment_ms:
                    break
                found.append(int(key.removeprefix(BATCH)))
        return found

    def _ends(self, topic: str | None = None, partition: int = 0) -> tuple[int, int]:
        """The first offset of a partition, and the offset after its last record, even an uncommitted one."""
        specs = confluent_admin.OffsetSpec.earliest(), confluent_admin.OffsetSpec.latest()
        place = confluent.TopicPartition(topic or self.name, partition)
        deadline = time.monotonic() + _ANSWER_S
        while True:
            try:
                first, end = (self._offset(place, spec) for spec in specs)
                return first, end
            except confluent.KafkaException as error:
                if time.monotonic() > deadline:
                    raise self.destination.unavailable(error.args[0].str()) from error
                self.__dict__.pop("_client", None)  # it goes on without the leader of the topic
            time.sleep(_POLL_S)

    def _offset(self, place: Any, spec: Any) -> int:
        level = confluent.IsolationLevel.READ_UNCOMMITTED
        found = self._ask(
            lambda admin: admin.list_offsets({place: spec}, isolation_level=level, request_timeout=_ANSWER_S)
        )
        return int(found.offset)

    def _records(self, start: int, end: int) -> Iterator[tuple[str, Any]]:
        """The committed records between two offsets, with ``None`` for a tombstone."""
        for message in self._messages(self.name, 0, start, end):
            text = message.value()
            yield (message.key() or b"").decode(), None if text is None else json.loads(text)

    def _messages(self, topic: str, partition: int, start: int, end: int) -> Iterator[Message]:
        if start >= end:
            return
        client_errors = ClientErrors(self.destination.connection)
        consumer = client_errors.open(confluent.Consumer, dict(_READ))
        answer_at, pending_at = time.monotonic() + _ANSWER_S, math.inf
        try:
            consumer.assign([confluent.TopicPartition(topic, partition, start)])
            while True:
                found = consumer.poll(_POLL_S)
                for message in [] if found is None else [found, *consumer.consume(_AT_ONCE, 0)]:
                    error, is_last = message.error(), (message.offset() or 0) >= end
                    is_end = error is not None and error.code() == confluent.KafkaError._PARTITION_EOF
                    if is_last and (is_end or error is None):
                        return
                    if is_end:
                        # A transaction is open, or its markers are not written yet.
                        pending_at = min(pending_at, time.monotonic() + _PENDING_S)
                    elif error is None:
                        answer_at = time.monotonic() + _ANSWER_S
                        yield message
                    elif not error.retriable() and error.code() not in _PASSING:
                        raise client_errors.explain(error) or self.destination.unavailable(error.str())
                if time.monotonic() > pending_at:
                    raise PendingTransactionError
                if time.monotonic() > answer_at:
                    client_errors.check(silent=True)
                    raise self.destination.unavailable(client_errors.last or f"no message of {topic}")
        finally:
            consumer.close()


@dataclass
class Loaded:
    """The records of a state topic that were read."""

    state: SinkState | None = None
    owner: str | None = None  # the key of the sink whose state it is
    documents: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    lowest: int | None = None  # the lowest version that was read

    def take(self, key: str, value: Any, first: int | None, last: int | None) -> None:
        if value is None:
            return  # of a document that is no longer kept
        if key == STATE:
            self.owner = value.pop("sink")
            self.state = SinkState.of_json(value)
            return
        version = int(key.removeprefix(BATCH))
        self.lowest = version if self.lowest is None else min(self.lowest, version)
        if first is not None and version >= first and (last is None or version <= last):
            self.documents[version] = value
