"""What was produced, written down apart from everything that Headrace writes or reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TIMEOUT_S = 30.0


def settings(bootstrap: str) -> dict[str, Any]:
    """A client's settings; it keeps silent about a broker that a test has stopped."""
    return {"bootstrap.servers": bootstrap, "log_level": 2}


@dataclass(frozen=True, order=True)
class Record:
    """One record as the broker acknowledged it."""

    topic: str
    partition: int
    offset: int
    value: bytes

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.offset

    @property
    def sale(self) -> dict[str, Any]:
        return dict(json.loads(self.value, parse_float=Decimal))


@dataclass(frozen=True)
class Transaction:
    """Records that count once they are committed, and never when they are aborted."""

    producer: Producer
    noted: list[Record]
    ledger: list[Record]

    def commit(self) -> None:
        self.producer.commit_transaction(TIMEOUT_S)
        self.ledger.extend(self.noted)

    def abort(self) -> None:
        self.producer.abort_transaction(TIMEOUT_S)


@dataclass
class ProducerLedger:
    """A producer, and every record that it has ever got acknowledged; its ids never repeat."""

    bootstrap: str
    records: list[Record] = field(default_factory=list)
    _next: int = 0

    def produce(self, topic: str, count: int, partitions: int) -> None:
        """Sales over all partitions of a topic."""
        producer = Producer({**settings(self.bootstrap), "linger.ms": 5})
        for _ in range(count):
            value = self._sale()
            producer.produce(
                topic, value, partition=self._next % partitions, on_delivery=self._note(self.records)
            )
        assert producer.flush(TIMEOUT_S) == 0

    def produce_raw(self, topic: str, value: bytes | None, partition: int = 0) -> Record:
        """One record as it is given."""
        return self.produce_values(topic, [(value, partition)])[0]

    def produce_values(self, topic: str, values: Iterable[tuple[bytes | None, int]]) -> list[Record]:
        """Records as they are given, each with its partition."""
        noted: list[Record] = []
        producer = Producer(settings(self.bootstrap))
        for value, partition in values:
            producer.produce(topic, value, partition=partition, on_delivery=self._note(noted))
        assert producer.flush(TIMEOUT_S) == 0
        self.records += noted
        return noted

    def begin(self, topic: str, count: int, partitions: int) -> Transaction:
        """Sales in a transaction that stays open."""
        producer = Producer({**settings(self.bootstrap), "transactional.id": f"{topic}-{self._next}"})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        noted: list[Record] = []
        for _ in range(count):
            value = self._sale()
            producer.produce(topic, value, partition=self._next % partitions, on_delivery=self._note(noted))
        producer.flush(TIMEOUT_S)
        return Transaction(producer, noted, self.records)

    def forget(self, lost: Callable[[Record], bool]) -> int:
        """Records that the broker dropped before anybody read them; returns how many."""
        kept = [record for record in self.records if not lost(record)]
        count = len(self.records) - len(kept)
        self.records = kept
        return count

    def _sale(self) -> bytes:
        self._next += 1
        cents = self._next * 37 % 100_000
        amount = f"{cents // 100}.{cents % 100:02d}"
        return f'{{"id": {self._next}, "name": "n{self._next % 7}", "sales": {amount}}}'.encode()

    def _note(self, into: list[Record]) -> Callable[[Any, Any], None]:
        def note(error: Any, message: Any) -> None:
            assert error is None, error
            into.append(Record(message.topic(), message.partition(), message.offset(), message.value()))

        return note


def recreate_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Delete a topic and create another of the same name."""
    admin = AdminClient(settings(bootstrap))
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    create_topic(bootstrap, topic, partitions)


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Create a topic as soon as one of the same name is wholly gone."""
    from confluent_kafka import KafkaError, KafkaException
    from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

    def being_deleted(error: BaseException) -> bool:
        return isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS

    admin = AdminClient(settings(bootstrap))
    for attempt in Retrying(
        retry=retry_if_exception(being_deleted),
        stop=stop_after_delay(TIMEOUT_S),
        wait=wait_fixed(0.05),
        reraise=True,
    ):
        with attempt:
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(TIMEOUT_S)


def expire(bootstrap: str, topic: str, before: dict[int, int]) -> None:
    """Let the broker drop records, as retention does."""
    admin = AdminClient(settings(bootstrap))
    places = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
    for future in admin.delete_records(places).values():
        future.result(TIMEOUT_S)


def end_offsets(bootstrap: str, topic: str, partitions: int) -> dict[int, int]:
    """The offset after the last record of each partition, as soon as each has a leader."""
    from confluent_kafka import KafkaException
    from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

    consumer = Consumer({**settings(bootstrap), "group.id": "test"})
    retrying = Retrying(
        retry=retry_if_exception_type(KafkaException),
        stop=stop_after_delay(TIMEOUT_S),
        wait=wait_fixed(0.05),
        reraise=True,
    )
    try:
        return {
            partition: retrying(consumer.get_watermark_offsets, TopicPartition(topic, partition), TIMEOUT_S)[
                1
            ]
            for partition in range(partitions)
        }
    finally:
        consumer.close()
