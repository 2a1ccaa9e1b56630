"""A consumer for single records: it reads little ahead, and answers at once at the end of a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.model.kafka_settings import KafkaConnection
from headrace.runtime.kafka_client import ClientErrors

if TYPE_CHECKING:
    from confluent_kafka import Consumer


class SingleRecords:
    """Opens the consumer at the first use, and keeps it open."""

    def __init__(self, connection: KafkaConnection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._consumer: Consumer | None = None

    def open(self) -> Consumer:
        """The consumer; it reads committed records only."""
        from confluent_kafka import Consumer

        if self._consumer is None:
            settings: dict[str, Any] = {
                "group.id": f"headrace-{self._name}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                # An offset that the broker does not hold is an error, and no reason to start elsewhere.
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 10,
                "fetch.message.max.bytes": 65_536,
                "queued.min.messages": 1,
                "queued.max.messages.kbytes": 1024,
                # By default a new assignment waits up to a second for its first fetch (measured).
                "fetch.queue.backoff.ms": 0,
            }
            self._consumer = ClientErrors(self._connection).open(Consumer, settings)
        return self._consumer

    def close(self) -> None:
        """Close the connection; `open` opens a new one."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
