"""Records for both sides: the same, from the same broker."""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

from headrace.runtime.broker import Broker

PARTITIONS = 4
FIELDS = ("id", "date", "name", "sales", "note")
SCHEMA = "id LONG, date DATE, name STRING, sales DECIMAL(12, 2), note STRING"


@contextmanager
def broker_in(folder: Path | None = None) -> Iterator[Broker]:
    """A broker of the benchmark's own, gone at the end with its data, also where SIGTERM is the end."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="headrace-bench-broker-", dir=folder) as name:
        broker = Broker(Path(name))
        broker.start()
        try:
            yield broker
        finally:
            broker.stop()


def record(number: int, chance: random.Random) -> bytes:
    """About 90 bytes of JSON."""
    cents = chance.randrange(100, 10_000)
    day = number % 28 + 1
    return (
        f'{{"id": {number}, "date": "2026-01-{day:02d}", "name": "name-{number % 1000:04d}", '
        f'"sales": {cents // 100}.{cents % 100:02d}, "note": "sold"}}'
    ).encode()


def fill(bootstrap: str, topic: str, records: int, first: int = 0) -> None:
    """Write so many records as fast as it goes; the first one has this number."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "batch.num.messages": 20_000,
            "queue.buffering.max.messages": 500_000,
        }
    )
    chance = random.Random(1)
    for number in range(first, first + records):
        while True:
            try:
                producer.produce(topic, record(number, chance), key=str(number % 1000).encode())
                break
            except BufferError:
                producer.poll(0.2)
        if number % 5_000 == 0:
            producer.poll(0)
    producer.flush()


class Trickle:
    """So many records a second, from a thread, each stamped by the producer's clock."""

    def __init__(self, bootstrap: str, topic: str, rate: float) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2, "log_level": 0})
        self._topic, self._rate = topic, rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="trickle")
        self.sent = 0

    def __enter__(self) -> Trickle:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        chance = random.Random(1)
        began = time.monotonic()
        while not self._stop.wait(0.005):
            due = int((time.monotonic() - began) * self._rate)
            for number in range(self.sent, due):
                self._producer.produce(self._topic, record(number, chance), key=str(number % 1000).encode())
            self.sent = max(self.sent, due)
            self._producer.poll(0)
        self._producer.flush()
