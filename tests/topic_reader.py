"""What a reader with `isolation.level=read_committed` sees of a topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from waiting import until

_SETTINGS: dict[str, Any] = {
    "group.id": "tests",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "log_level": 2,
}


def read_topic(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Message]:
    """All messages of a topic, by partition and offset."""
    settings = {**_SETTINGS, "bootstrap.servers": bootstrap, "isolation.level": isolation}
    consumer = Consumer(settings)
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        left, found = set(partitions), []
        consumer.assign([TopicPartition(topic, one, 0) for one in partitions])

        def has_ended() -> bool:
            for message in consumer.consume(1000, 0.05):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise KafkaException(error)
            return not left

        until(has_ended, f"{topic} is read", 60)
    finally:
        consumer.close()
    return sorted(found, key=lambda one: (one.partition(), one.offset()))


def values(bootstrap: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    return [(one.key(), one.value()) for one in read_topic(bootstrap, topic)]


def newest(bootstrap: str, topic: str) -> dict[bytes | None, bytes]:
    """The value of each key as a table of the topic has it: a message without a value deletes its key."""
    found = dict(values(bootstrap, topic))
    return {key: value for key, value in found.items() if value is not None}


def state_topic(bootstrap: str, topic: str) -> str:
    """The topic with the state of the sink that sends to a topic."""
    (name,) = _states(bootstrap, topic)
    return name


def _states(bootstrap: str, topic: str) -> Iterator[str]:
    consumer = Consumer({**_SETTINGS, "bootstrap.servers": bootstrap})
    try:
        yield from (
            one for one in consumer.list_topics(timeout=30).topics if one.startswith(f"{topic}.headrace-")
        )
    finally:
        consumer.close()
