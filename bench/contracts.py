"""Expectations and drift: what they cost a flow, beside the same flow without them.

A topic of records with ten columns is read into a table of its own by each side in turn, in one JVM. The
first round is cold and does not count. One record of a hundred fails the condition of the side `rejected`.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from confluent_kafka import Producer

from bench.load import PARTITIONS, broker_in
from bench.results import expect, keep, ratio, table

SCHEMA = (
    "id LONG, customer STRING, amount DOUBLE, at TIMESTAMP, status STRING, country STRING, items INT, "
    "discount DOUBLE, paid BOOLEAN, note STRING"
)
CONDITIONS = {
    "an id": "id IS NOT NULL",
    "a customer": "length(customer) > 3",
    "an amount": "amount > 0",
    "a time": "at >= TIMESTAMP '2020-01-01'",
    "a status": "status IN ('new', 'paid', 'sent')",
    "a country": "country RLIKE '^[A-Z]{2}$'",
    "items": "items BETWEEN 1 AND 100",
    "a discount": "discount >= 0 AND discount < 1",
    "paid": "paid IS NOT NULL",
    "a note": "note <> ''",
}
SIDES = ("none", "accepted", "rejected", "evolve", "rescue")
_READ = 'hr.read_kafka("{topic}", format="json", schema="{schema}"{more})'
_CODE = """\
import headrace as hr


@hr.table
@hr.expect_all_or_quarantine({expectations})
def records_{name}():
    return {read}
"""


@click.command()
@click.option("--records", default=1_000_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--sides", default=",".join(SIDES), show_default=True)
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(records: int, rounds: int, sides: str, quick: bool) -> None:
    """Rows a second from Kafka to a table, without and with ten expectations, and with drift."""
    from headrace.runtime.session import open_spark

    records, rounds = (50_000, 1) if quick else (records, rounds)
    chosen = sides.split(",")
    seconds: dict[str, list[float]] = {side: [] for side in chosen}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, broker_in() as broker:
        broker.create_topic("contracts", PARTITIONS)
        bootstrap = broker.start()
        click.echo(f"writing {records:,} records")
        rejected = _fill(bootstrap, records)
        running = open_spark("bench")
        for turn in range(rounds + 1):
            for side in chosen:
                found = _measure(side, bootstrap, Path(name), turn, records, rejected)
                if turn:
                    seconds[side].append(found)
                click.echo(f"round {turn}, {side}: {records / found:,.0f} rows/s")
        running.stop()
    rates = {side: records / statistics.median(found) for side, found in seconds.items()}
    rows = [(side, rate, ratio(rate, rates.get("none", float("nan")))) for side, rate in rates.items()]
    table(("side", "rows/s", "it / none"), rows)
    keep("contracts", {"records": records, "rounds": rounds, "seconds": seconds, "rates": rates})


def _measure(side: str, bootstrap: str, root: Path, turn: int, records: int, rejected: int) -> float:
    """Run one side once; the seconds from the start of its query to its end."""
    from headrace import Pipeline
    from headrace.model.event_forms import Event
    from headrace.model.events import FlowStarted

    name = f"{side}_{turn}"
    folder = root / name
    _write(folder, side, name, bootstrap)
    started: list[float] = []

    def watch(event: Event) -> None:
        if isinstance(event, FlowStarted):
            started.append(time.monotonic())

    with Pipeline.load(folder) as pipeline:
        result = pipeline.run(emit=watch)
    ended = time.monotonic()
    if result.errors:
        raise SystemExit(str([error.to_dict() for error in result.errors]))
    expected = records - (rejected if side == "rejected" else 0)
    expect(side, sum(flow.rows for flow in result.flows), expected)
    return ended - started[0]


def _write(folder: Path, side: str, name: str, bootstrap: str) -> None:
    folder.mkdir()
    spec = (
        "name: bench\nstorage: ./lake\nlibraries:\n  - file: orders.py\n"
        f"kafka:\n  bootstrap.servers: {bootstrap}\n"
    )
    (folder / "headrace.yml").write_text(spec, encoding="utf-8")
    conditions: dict[str, str] = {}
    if side in ("accepted", "rejected"):
        conditions = dict(CONDITIONS)
    if side == "accepted":
        conditions["an amount"] = "amount > -1000"
    more = f', drift="{side}"' if side in ("evolve", "rescue") else ""
    read = _READ.format(topic="contracts", schema=SCHEMA, more=more)
    code = _CODE.format(expectations=repr(conditions), name=name, read=read)
    (folder / "orders.py").write_text(code, encoding="utf-8")


def _fill(bootstrap: str, records: int) -> int:
    """Write the records; the number of those with a negative amount."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "linger.ms": 50,
        "batch.num.messages": 20_000,
        "queue.buffering.max.messages": 500_000,
    }
    producer, chance, rejected = Producer(settings), random.Random(1), 0
    for number in range(records):
        negative = number % 100 == 50
        rejected += negative
        amount = (-1 if negative else 1) * chance.randrange(100, 10_000) / 100
        value = (
            f'{{"id": {number}, "customer": "customer-{number % 1000}", "amount": {amount}, '
            f'"at": "2026-01-{number % 28 + 1:02d}T08:00:00Z", "status": "paid", "country": "AT", '
            f'"items": {number % 9 + 1}, "discount": 0.1, "paid": true, "note": "sold"}}'
        )
        while True:
            try:
                producer.produce("contracts", value.encode(), key=str(number % 1000).encode())
                break
            except BufferError:
                producer.poll(0.2)
        if number % 5_000 == 0:
            producer.poll(0)
    producer.flush()
    return rejected


if __name__ == "__main__":
    main()
