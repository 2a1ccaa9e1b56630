"""The transactional producer of a sink, which all flows of a process share."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from headrace.runtime.kafka_client import ClientErrors, confluent
from headrace.sinks.outside.kafka.destination import LARGEST, Destination
from headrace.sinks.outside.kafka.state_topic import (
    BATCH,
    LARGEST_DOCUMENT,
    STATE,
    PendingTransactionError,
    StateTopic,
)
from headrace.sinks.outside.stateful import SinkState, SinkTransaction

if TYPE_CHECKING:
    from confluent_kafka import Producer

Found = TypeVar("Found")

_KEPT_MS = 30 * 86_400_000
"""How long the topic keeps the ranges of a batch. The storage keeps them, too."""
_EVERY = 1000
"""The number of commits after which old documents are removed."""
_ANSWER_S = 30.0
_OF_A_ROW = ("MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "RECORD_LIST_TOO_LARGE", "_UNKNOWN_PARTITION")
_PURGED = ("_PURGE_QUEUE", "_PURGE_INFLIGHT")
_FENCED = ("_FENCED", "_FATAL", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE")
_FENCED_TEXT = "another driver has taken over its transactions, or the transaction has lasted too long"
_SETTINGS: Mapping[str, Any] = {
    # Keys land on the partitions of Java's clients, as with Spark's writer.
    "partitioner": "murmur2_random",
    "transaction.timeout.ms": 300_000,
    "message.max.bytes": LARGEST_DOCUMENT,
    "topic.metadata.propagation.max.ms": 10_000,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 256 * 1024,
    "delivery.report.only.error": True,
}


@dataclass(kw_only=True)
class KafkaTransaction(SinkTransaction):
    """A transaction of the producer, which fences those of other drivers."""

    channel: Channel
    producer: Producer
    state: SinkState
    kept: SinkState | None = None

    def clear(self) -> None:
        """Delete all keys of a topic that follows a change feed: the new feed lacks keys that were
        deleted before. The messages of other topics stay, and their readers get all rows again."""
        destination = self.channel.destination
        if destination.is_row and destination.rows.is_feed and destination.topic is not None:
            for key in self.channel.topic.live_keys(destination.topic):
                self.send(destination.topic, key, None)

    def record(self, state: SinkState, document: Mapping[str, Any]) -> None:
        topic, old = self.channel.topic, []
        if state.version % _EVERY == 0:
            old = topic.versions_before(int(time.time() * 1000) - _KEPT_MS)
        for version in old:
            self.send(topic.name, f"{BATCH}{version}".encode(), None)
        self.send(topic.name, f"{BATCH}{state.version}".encode(), json.dumps(document).encode())
        self.keep(state)

    def keep(self, state: SinkState) -> None:
        """Make a state the newest one."""
        text = json.dumps({**state.kept(), "sink": self.channel.destination.key})
        self.send(self.channel.topic.name, STATE.encode(), text.encode())
        self.kept = state

    def send(self, topic: str, key: bytes | None, value: bytes | None, **more: Any) -> None:
        while True:
            try:
                self.producer.produce(topic, value, key, **more)
                return
            except BufferError:
                self.producer.poll(0.05)
            except confluent.KafkaException as error:
                raise self._refused(error.args[0], key) from error

    def flush(self) -> None:
        """Wait until the brokers have the messages; raises the error of the first one that they refuse."""
        destination, failed = self.channel.destination, self.channel.failed
        left, waiting = len(self.producer) + 1, self.producer.flush(_ANSWER_S)
        while 0 < waiting < left:
            left, waiting = waiting, self.producer.flush(_ANSWER_S)
        if failed:
            raise self._refused(*failed[0])
        if waiting:
            raise destination.unavailable(f"{waiting} messages are not confirmed")

    def _refused(self, error: Any, key: bytes | None) -> Exception:
        """The error for a message that is refused, or for a client that cannot send it."""
        if error.name() in _OF_A_ROW:
            return self.channel.destination.refused(f"Kafka refuses a row: {error.str()}", key)
        return confluent.KafkaException(error)  # type: ignore[no-any-return]


@dataclass(eq=False)
class Channel:
    """The producer of a sink. Its newest state is kept in memory: as long as the producer is not fenced, no
    other driver has written to the sink."""

    destination: Destination
    topic: StateTopic
    state: SinkState | None = None
    largest: int = LARGEST  # the most bytes of a message
    failed: list[tuple[Any, bytes | None]] = field(default_factory=list)
    _producer: Producer | None = None
    _client_errors: ClientErrors | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def of(cls, destination: Destination) -> Channel:
        """The channel of this process; two would fence each other."""
        key = repr((sorted(destination.connection.settings.items()), destination.transactional_id))
        with _opening:
            found = _channels.get(key)
            if found is None:
                found = _channels[key] = cls(destination, StateTopic(destination))
            # A newer query can have other columns.
            found.destination = found.topic.destination = destination
            return found

    @contextmanager
    def transaction(self, *, creates: bool = False) -> Iterator[KafkaTransaction]:
        """A transaction, which commits at the end of the context and is aborted after an error. `creates`:
        whether a missing state is the first one."""
        with self._lock, self._explained():
            producer = self._open()
            state = self.state or (SinkState() if creates else None)
            if state is None:
                raise self.destination.unavailable(f"{self.topic.name} has lost the state of the sink")
            self.failed.clear()
            producer.begin_transaction()
            transaction = KafkaTransaction(channel=self, producer=producer, state=state)
            try:
                yield transaction
            except confluent.KafkaException:
                raise
            except BaseException:
                self._abort(producer)
                raise
            producer.commit_transaction(_ANSWER_S)
            self.state = transaction.kept or self.state

    def read(self, look: Callable[[], Found]) -> Found:
        """What a look at the state topic finds, after the open transaction of a driver that has ended, or
        that stands still, was ended."""
        try:
            return look()
        except PendingTransactionError:
            with self._lock, self._explained():
                self.close()
                self._open()
                return look()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise the coded errors of the client. Whether a commit without an answer has happened, only the
        state topic knows: it is read again."""
        try:
            yield
        except PendingTransactionError as error:
            raise self.destination.unavailable("a transaction of another driver is open") from error
        except confluent.KafkaException as error:
            fault = None if self._client_errors is None else self._client_errors.explain(error)
            self.close()
            reason = error.args[0]
            text = _FENCED_TEXT if reason.name() in _FENCED else reason.str()
            raise fault or self.destination.unavailable(text) from error

    def _abort(self, producer: Producer) -> None:
        try:
            producer.abort_transaction(_ANSWER_S)
        except confluent.KafkaException:
            self.close()

    def close(self) -> None:
        """Drop the producer. The next one fences it, and reads the state again."""
        with self._lock:
            if self._producer is not None:
                with suppress(confluent.KafkaException):
                    self._producer.purge()
            self._producer = self.state = self._client_errors = None

    def _open(self) -> Producer:
        if self._producer is None:
            topic = self.destination.topic
            limit = None if topic is None else self.topic.setting(topic, "max.message.bytes")
            self.largest = LARGEST if limit is None else int(limit)
            batch = {"batch.size": min(self.largest, 1_000_000)}  # larger ones would be refused as a whole
            own = {"transactional.id": self.destination.transactional_id, "on_delivery": self._delivered}
            settings = {**_SETTINGS, **batch, **self.destination.producer_settings, **own}
            self._client_errors = ClientErrors(self.destination.connection)
            producer = self._client_errors.open(confluent.Producer, settings)
            # Ends the open transaction of a driver before, and fences it.
            producer.init_transactions(_ANSWER_S)
            self.state = self.topic.load().state
            self._producer = producer
        return self._producer

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and error.name() not in _PURGED:
            self.failed.append((error, message.key()))


_channels: WeakValueDictionary[str, Channel] = WeakValueDictionary()
_opening = threading.Lock()
