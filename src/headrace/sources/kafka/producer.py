"""Records into a topic: each delivery confirmed by the broker, counted, and never repeated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headrace.errors import ProduceFailedError
from headrace.model.kafka_settings import KafkaConnection
from headrace.runtime.kafka_client import ClientErrors

if TYPE_CHECKING:
    from confluent_kafka import Producer

_LARGEST = 1_048_576
"""What Kafka takes by default."""
_LEAST, _MOST = 1000, 1_000_000_000
"""What librdkafka lets us choose from."""

_DELIVERY_S = 120
"""As long as Kafka's own clients try to deliver a record."""

_POLL_S = 0.1
_LONG_S = 2.0
_NAMED = 5
"""Refused records that an error names."""


@dataclass
class Landed:
    """Where records of one partition went."""

    records: int
    first: int  # the offset of the first of ours; records of others can lie between
    last: int


@dataclass
class Delivered:
    """What the broker has acknowledged."""

    records: int = 0
    size: int = 0
    partitions: dict[int, Landed] = field(default_factory=dict)

    def add(self, partition: int, offset: int, size: int) -> None:
        self.records += 1
        self.size += size
        landed = self.partitions.get(partition)
        if landed is None:
            self.partitions[partition] = Landed(1, offset, offset)
        else:
            landed.records += 1
            landed.first, landed.last = min(landed.first, offset), max(landed.last, offset)


class TopicProducer:
    """Sends records to one topic; the broker writes each once, also where a request is repeated."""

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        *,
        largest: int | None = None,
        hurried: Callable[[], bool] = lambda: False,
    ) -> None:
        from confluent_kafka import Producer

        self.topic = topic
        self.delivered = Delivered()
        self.unconfirmed = 0
        """Records that were sent and that nobody waited for."""
        self._hurried = hurried
        self._servers = connection.bootstrap_servers
        self._failed: list[str] = []
        self._reason = ""
        self._last = ""
        settings = {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 20,
            # A batch that is too large is refused whole, with the records that are not.
            "message.max.bytes": max(_LEAST, min(largest or _LARGEST, _MOST)),
            "message.timeout.ms": _DELIVERY_S * 1000,
        }
        self._producer: Producer = ClientErrors(connection).open(Producer, settings)

    def __enter__(self) -> TopicProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, Exception):
            # Ctrl-C does not wait for records that were not acknowledged yet.
            self._producer.purge()

    def send(self, value: bytes, key: bytes | None, name: str, stopping: Callable[[], bool]) -> None:
        """Send one record; waits where too many are on their way."""
        from confluent_kafka import KafkaException

        size = len(value) + len(key or b"")
        entered = partial(self._enter, name, size)
        while True:
            self.check()
            try:
                self._producer.produce(self.topic, value=value, key=key, on_delivery=entered)
            except BufferError:
                if stopping():
                    return
                self._producer.poll(_POLL_S)
            except KafkaException as error:
                self._fail(name, error.args[0].str())
                self.check()
            else:
                self._last = name
                self._producer.poll(0)
                return

    def poll(self, timeout_s: float) -> None:
        """Take in what the broker has acknowledged meanwhile."""
        self._producer.poll(timeout_s)
        self.check()

    def flush(self, on_wait: Callable[[int], None] = lambda left: None) -> None:
        """Wait until every record has been acknowledged, or nobody waits any more."""
        began, told = time.monotonic(), False
        while (left := self._producer.flush(_POLL_S)) and not self._hurried():
            if not told and time.monotonic() - began > _LONG_S:
                told = True
                on_wait(left)
        self.unconfirmed = left
        self.check()

    def check(self) -> None:
        if not self._failed:
            return
        # What was sent behind it is delivered, or not: what is said of it has to be the last word.
        while self._producer.flush(_POLL_S) and not self._hurried():
            pass
        failed, count = self._failed, self.delivered.records
        others = "" if len(failed) == 1 else f", nor {', '.join(failed[1:_NAMED])}"
        others += f" and {len(failed) - _NAMED:,} more" if len(failed) > _NAMED else ""
        raise ProduceFailedError(
            f"{failed[0]} was not delivered to topic {self.topic} on {self._servers}{others}",
            facts=(
                f"the broker reports: {self._reason}",
                f"{count:,} {'record was' if count == 1 else 'records were'} delivered"
                + (f": all others up to {self._last}" if count else ""),
            ),
            remedies=_REMEDIES.get(self._reason, ("headrace doctor",)),
            params={
                "topic": self.topic,
                "reason": self._reason,
                "delivered": count,
                "failed": len(failed),
                "last_sent": self._last,
            },
        )

    def _enter(self, name: str, size: int, error: Any, message: Any) -> None:
        if error is not None:
            self._fail(name, error.str())
        else:
            self.delivered.add(message.partition(), message.offset(), size)

    def _fail(self, name: str, reason: str) -> None:
        self._failed.append(name)
        self._reason = self._reason or reason


_REMEDIES = {
    "Broker: Message size too large": ("raise the topic's max.message.bytes, or split the record",),
    "Broker: Topic authorization failed": ("allow this user to WRITE to the topic",),
}
