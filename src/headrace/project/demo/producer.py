"""Produces sales events, and adds them to a ledger; one that the broker does not acknowledge is a failure."""

from __future__ import annotations

import datetime
import itertools
import json
import logging
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from headrace.errors import DemoProducerError
from headrace.model.kafka_settings import KafkaConnection
from headrace.project.producing import produce
from headrace.sources.kafka.producer import Record
from headrace.storage.location import Location, open_delta

Key = tuple[str, str]  # a name and an ISO date


@dataclass(frozen=True)
class Entry:
    count: int
    sales: Decimal


@dataclass
class SalesLedger:
    """Counts and exact sums of the records that were sent. Only the producer's thread writes it; figures may
    be read meanwhile, sums after it has ended."""

    records: int = 0
    sales: Decimal = Decimal(0)
    entries: dict[Key, Entry] = field(default_factory=dict)  # what each name and date must come to

    def add(self, name: str, date: str, sales: Decimal) -> None:
        before = self.entries.get((name, date), Entry(0, Decimal(0)))
        self.entries[(name, date)] = Entry(before.count + 1, before.sales + sales)
        self.records += 1
        self.sales += sales

    @property
    def dates(self) -> int:
        return len({date for _, date in self.entries})

    @property
    def names(self) -> int:
        return len({name for name, _ in self.entries})


_COLOURS = ("amber", "black", "blue", "brass", "cream", "green", "grey", "oak", "red", "white")
_THINGS = ("bench", "bowl", "chair", "clock", "desk", "lamp", "mirror", "shelf", "stool", "vase")
NAMES = tuple(f"{colour} {thing}" for colour, thing in itertools.product(_COLOURS, _THINGS))
DATES = tuple((datetime.date(2026, 1, 1) + datetime.timedelta(days=day)).isoformat() for day in range(12))

REFUNDS = 12  # the number of sales that are negative; the pipeline rejects them at first
_TICK_S = 0.01
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sale:
    id: int
    date: str
    name: str
    sales: Decimal

    def to_json(self) -> bytes:
        """The record's value; the sum is written digit by digit, never through a float."""
        name = json.dumps(self.name)
        return f'{{"id": {self.id}, "date": "{self.date}", "name": {name}, "sales": {self.sales}}}'.encode()


def build_sales(records: int, seed: int = 7) -> Iterator[Sale]:
    """The same sales for the same seed. `REFUNDS` of them are negative, evenly distributed."""
    chance = random.Random(seed)
    refunds = {records * (2 * number + 1) // (2 * REFUNDS) for number in range(REFUNDS)}
    for number in range(1, records + 1):
        cents = chance.randrange(100, 10_000) * (-1 if number in refunds else 1)
        yield Sale(number, chance.choice(DATES), chance.choice(NAMES), Decimal(cents).scaleb(-2))


class SalesProducer:
    """Sends sales in a thread of its own. `pauses`: the numbers of records after which it waits."""

    def __init__(
        self, connection: KafkaConnection, topic: str, *, records: int, rate: int, pauses: Sequence[int] = ()
    ) -> None:
        self.ledger = SalesLedger()
        self.records = records
        self._topic = topic
        self._rate = rate
        self._connection = connection
        self._failure: str | None = None
        self._stop = threading.Event()
        self._pauses = {at: threading.Event() for at in sorted(pauses)}
        self._thread = threading.Thread(target=self._run, name="headrace-demo-producer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def go_on(self) -> None:
        """End the next pause, also if it has not started yet."""
        for over in self._pauses.values():
            if not over.is_set():
                over.set()
                return

    def finish(self) -> None:
        for over in self._pauses.values():
            over.set()

    def stop(self) -> None:
        self._stop.set()
        self.finish()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def done(self) -> bool:
        self.check()
        return self._thread.ident is not None and not self._thread.is_alive()

    def check(self) -> None:
        if self._failure is not None:
            raise DemoProducerError(
                f"the demo's producer could not write to topic {self._topic}: {self._failure}",
                remedies=("headrace demo",),
                params={"topic": self._topic},
            )

    def _run(self) -> None:
        try:
            sent = produce(
                self._sales(), self._connection, self._topic, name="the demo", show=_LOG.info, interval_s=10.0
            )
            if sent.unconfirmed:
                self._failure = f"{sent.unconfirmed} records were not acknowledged"
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"

    def _sales(self) -> Iterator[Record]:
        first, began = 0, time.monotonic()
        for number, sale in enumerate(build_sales(self.records)):
            if (over := self._pauses.get(number)) is not None:
                over.wait()
                first, began = number, time.monotonic()
            ahead_s = (number - first) / self._rate - (time.monotonic() - began)
            if (ahead_s > _TICK_S and self._stop.wait(ahead_s)) or self._stop.is_set():
                return
            self.ledger.add(sale.name, sale.date, sale.sales)
            yield Record(value=sale.to_json(), key=sale.name.encode(), line=sale.id)


@dataclass(frozen=True)
class ComparedRow:
    """One name and date of both sides; ``None`` if a side does not have it."""

    name: str
    date: str
    gold: Entry | None
    ledger: Entry | None

    @property
    def equal(self) -> bool:
        return self.gold == self.ledger


@dataclass(frozen=True)
class Comparison:
    """All rows of both sides, by date and name."""

    rows: tuple[ComparedRow, ...]
    doubled: tuple[Key, ...] = ()  # keys that gold holds in more than one row

    @property
    def differences(self) -> tuple[ComparedRow, ...]:
        return tuple(row for row in self.rows if not row.equal)

    @property
    def equal(self) -> bool:
        return bool(self.rows) and not self.differences and not self.doubled

    @property
    def total(self) -> Decimal:
        return sum((row.gold.sales for row in self.rows if row.gold is not None), Decimal(0))


def load_gold(table: Location) -> list[dict[str, Any]]:
    """The rows of the table, read without Spark."""
    import pyarrow
    from deltalake import QueryBuilder

    query = QueryBuilder().register("gold", open_delta(table))
    found = query.execute('SELECT name, date, sales, "count" FROM gold').read_all()
    rows: list[dict[str, Any]] = pyarrow.table(found).to_pylist()
    return rows


def compare(gold: Iterable[Mapping[str, Any]], ledger: Mapping[Key, Entry]) -> Comparison:
    """Compare both sides. `gold`: rows with ``name``, ``date``, ``sales`` and ``count``."""
    found: dict[Key, Entry] = {}
    doubled: list[Key] = []
    for row in gold:
        key = (str(row["name"]), str(row["date"]))
        if key in found:
            doubled.append(key)
        found[key] = Entry(int(row["count"]), Decimal(row["sales"]))
    keys = sorted(found.keys() | ledger.keys(), key=lambda key: (key[1], key[0]))
    rows = (ComparedRow(name, date, found.get((name, date)), ledger.get((name, date))) for name, date in keys)
    return Comparison(tuple(rows), tuple(doubled))
