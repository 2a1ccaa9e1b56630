"""Sends records to a topic at a rate, until they end or a signal stops it."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, RecordInvalidError
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.texts import counted
from headrace.runtime.processes import handling_signals
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.sources.kafka.producer import Delivered, Record, TopicProducer

_TICK_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Produced:
    delivered: Delivered
    seconds: float
    unconfirmed: int = 0  # records that were sent, but not acknowledged; they may be in the topic
    signal: int = 0  # the number of the signal that stopped it; 0 if all records were sent

    def to_json(self) -> dict[str, Any]:
        return {
            "records": self.delivered.records,
            "size_bytes": self.delivered.size,
            "unconfirmed": self.unconfirmed,
            "duration_s": round(self.seconds, 3),
            "interrupted": bool(self.signal),
            "partitions": [
                {"partition": partition, "records": one.records, "first": one.first, "last": one.last}
                for partition, one in sorted(self.delivered.partitions.items())
            ],
        }


def produce(
    records: Iterator[Record],
    connection: KafkaConnection,
    topic: str,
    *,
    name: str,
    has_header: bool = False,
    rate: float | None = None,
    show: Callable[[str], None],
    interval_s: float,
) -> Produced:
    """Send records until they end, or until SIGINT or SIGTERM; then wait for acknowledgements. A second
    signal stops waiting, and a third one ends the process. `has_header`: the first line of the file has the
    names of the fields. `show`: takes the progress as text."""

    def waiting(left: int) -> None:
        show(f"Waiting for the broker to acknowledge {counted(left, 'record')}; Ctrl-C again stops waiting")

    began = time.monotonic()
    largest = KafkaCluster(connection).largest_record(topic)
    with (
        _stoppable() as stop,
        TopicProducer(connection, topic, largest=largest, hurried=lambda: stop.hurried) as producer,
    ):
        try:
            _send_all(records, producer, stop, name, rate, show, interval_s)
        except RecordInvalidError as error:
            producer.flush()
            raise _counted(error, producer.delivered.records, has_header) from error
        except _Interrupted:
            # It came at the very end of a wait.
            pass
        producer.flush(waiting)
    return Produced(
        unconfirmed=producer.unconfirmed,
        delivered=producer.delivered,
        seconds=time.monotonic() - began,
        signal=stop.received,
    )


def _send_all(
    records: Iterator[Record],
    producer: TopicProducer,
    stop: _Stop,
    name: str,
    rate: float | None,
    show: Callable[[str], None],
    interval_s: float,
) -> None:
    began = time.monotonic()
    sent, shown = 0, began
    while not stop.received:
        if rate is not None:
            due = began + sent / rate
            while not stop.received and (left := due - time.monotonic()) > 0:
                producer.poll(0)
                stop.wait(min(left, _TICK_S))
        record = None
        with stop.at_once():
            record = next(records, None)
        if record is None:
            return
        producer.send(record.value, record.key, f"{name}:{record.line}", lambda: stop.received > 0)
        sent += 1
        now = time.monotonic()
        if now - shown >= interval_s:
            shown, delivered = now, producer.delivered.records
            show(f"{delivered:,} records, {delivered / (now - began):,.0f} a second")


def _counted(error: RecordInvalidError, delivered: int, has_header: bool) -> HeadraceError:
    """The error with the number of records that were delivered, so that they are not sent a second time."""
    line = int(error.params["line"])
    count = counted(delivered, "record")
    fact = f"{count} before it {'was' if delivered == 1 else 'were'} delivered"
    remedies = error.remedies
    if delivered and error.location is not None:
        path = Path(error.location.path)
        rest, file = (shlex.quote(one) for one in (f"{path.stem}-from-{line}{path.suffix}", str(path)))
        cut = f"tail -n +{line} {file}"
        if has_header:
            cut = f"(head -n 1 {file}; {cut})"
        remedies = (
            *remedies,
            f"correct the line, then write the lines from {line} on into a file:   {cut} > {rest}",
            f"and repeat the command with --file {rest}",
        )
    return error.with_(
        facts=(*error.facts, fact if delivered else "nothing was sent"),
        remedies=remedies,
        params={**error.params, "delivered": delivered},
    )


class _Interrupted(Exception):
    """A signal arrived while no record was waiting for an acknowledgement."""


class _Stop:
    """The signals that were received: checked between two records, or at once while waiting for input."""

    def __init__(self) -> None:
        self.received = 0
        self.hurried = False
        self._waiting = False
        self._event = threading.Event()

    def wait(self, seconds: float) -> None:
        self._event.wait(seconds)

    def request(self, number: int) -> None:
        self.hurried = self.received > 0
        self.received = number
        self._event.set()
        if self._waiting:
            raise _Interrupted

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Lets a signal interrupt the wait for input."""
        self._waiting = True
        try:
            yield
        except _Interrupted:
            pass
        finally:
            self._waiting = False


@contextmanager
def _stoppable() -> Iterator[_Stop]:
    """SIGINT and SIGTERM stop sending; a second signal stops waiting for the broker, a third ends the
    process."""
    stop = _Stop()

    def handle(number: int, otherwise: Callable[[], object]) -> None:
        if stop.hurried:
            otherwise()
        stop.request(number)

    with handling_signals(handle):
        yield stop
