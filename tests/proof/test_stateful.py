"""Queries that keep state: windows, deduplication and joins give an oracle's rows, also after SIGKILL."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from headrace.cli.main import run as run_command
from headrace.model.events import LateRowsDropped
from headrace.project.pipeline import Pipeline
from proof.driver import start
from proof.ledger import create_topic
from proof.shop import Shop

pytestmark = pytest.mark.usefixtures("spark")

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
DELAY_S = 10
NAMES = ("ada", "bob", "cyd")

WINDOWS = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

def clicks(topic="{topic}"):
    records = hr.read_kafka(topic, format="json", schema="id LONG, name STRING, at TIMESTAMP")
    return records.withWatermark("at", "10 seconds")

@hr.table
def windows():
    counts = clicks().groupBy(F.window("at", "10 seconds"), "name").count()
    return counts.select("window.start", "name", "count")
"""

OTHERS = """
@hr.table
def firsts():
    return clicks().dropDuplicatesWithinWatermark(["id"]).select("id", "name", "at")

@hr.table
def pairs():
    answers = clicks("{topic}-answers").select(F.col("id").alias("answered"), F.col("at").alias("later"))
    near = F.expr("id = answered AND later BETWEEN at AND at + INTERVAL 20 seconds")
    return clicks().join(answers, near, "leftOuter").select("id", "at", "later")

@hr.table
def totals():
    records = hr.read_kafka("{topic}", format="json", schema="id LONG, name STRING")
    return records.groupBy("name").agg(F.count("*").alias("clicks"), F.max("id").alias("last"))

@hr.materialized_view
def people():
    return spark.createDataFrame([("ada", 1), ("bob", 2)], "name STRING, number INT")

@hr.table
def looked_up():
    return clicks().join(spark.read.table("people"), "name", "left").select("id", "name", "number")
"""


@dataclass(frozen=True)
class Click:
    id: int
    name: str
    second: int

    @property
    def at(self) -> datetime:
        return BEGIN + timedelta(seconds=self.second)

    def to_bytes(self) -> bytes:
        return json.dumps({"id": self.id, "name": self.name, "at": self.at.isoformat()}).encode()


def clicks(first: int, last: int) -> list[Click]:
    """One click each second; every fifth comes twice."""
    found = [Click(second, NAMES[second % 3], second) for second in range(first, last)]
    return sorted([*found, *found[::5]], key=lambda one: one.second)


def produce(shop: Shop, made: Iterable[Click], topic: str | None = None) -> None:
    values = [(click.to_bytes(), number % shop.partitions) for number, click in enumerate(made)]
    shop.ledger.produce_values(topic or shop.topic, values)


def answers(made: Iterable[Click]) -> list[Click]:
    """Every even click is answered five seconds later, once."""
    even = {click for click in made if click.id % 2 == 0}
    return [Click(click.id, click.name, click.second + 5) for click in sorted(even, key=lambda one: one.id)]


def rows(shop: Shop, table: str) -> Counter[tuple[object, ...]]:
    held = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(shop.table(table)))
    found = pa.table(held.execute("SELECT * FROM t").read_all())
    return Counter(zip(*(found[name].to_pylist() for name in found.column_names), strict=True))


def closed_windows(made: list[Click], watermark: datetime) -> Counter[tuple[object, ...]]:
    counts: Counter[tuple[datetime, str]] = Counter()
    for click in made:
        counts[BEGIN + timedelta(seconds=click.second // 10 * 10), click.name] += 1
    return Counter(
        (window, name, count)
        for (window, name), count in counts.items()
        if window + timedelta(seconds=10) <= watermark
    )


def test_a_kill_leaves_every_stateful_query_with_an_oracle_s_rows(shop: Shop) -> None:
    # Each part of a state is a file for each batch.
    shop.spec["configuration"] = {"spark.sql.shuffle.partitions": "2"}
    shop.write(WINDOWS, OTHERS)
    other = f"{shop.topic}-answers"
    create_topic(shop.ledger.bootstrap, other, shop.partitions)
    made = clicks(0, 60)
    produce(shop, made)
    produce(shop, answers(made), other)
    with start(shop, pause=("windows/after-commit", 0)) as driver:
        driver.wait_at("after-commit")
        driver.kill("both")
        driver.wait_until_gone()
    assert is_unfinished(shop, "windows", 0)
    shop.run_well()
    # The batch that was replayed is in the table already; that it closes windows must not be forgotten.
    assert rows(shop, "windows") == closed_windows(made, made[-1].at - timedelta(seconds=DELAY_S))
    later = clicks(60, 120)
    made += later
    produce(shop, later)
    produce(shop, answers(later), other)
    batch = last_planned(shop, "pairs") + 1
    shop.fail_at("pairs/before-commit", batch)
    assert is_unfinished(shop, "pairs", batch)
    # What comes much later closes everything before it.
    flush = Click(10_000, "ada", 10_000)
    produce(shop, [flush])
    produce(shop, [flush], other)
    shop.run_well()
    assert rows(shop, "windows") == closed_windows(made, flush.at - timedelta(seconds=DELAY_S))
    assert rows(shop, "firsts") == Counter((c.id, c.name, c.at) for c in {*made, flush})
    answered = {click.id: click.at for click in answers(made)}
    pairs = Counter({row: n for row, n in rows(shop, "pairs").items() if row[0] != flush.id})
    assert pairs == Counter((click.id, click.at, answered.get(click.id)) for click in made)
    numbers = {"ada": 1, "bob": 2}
    looked_up = Counter((click.id, click.name, numbers.get(click.name)) for click in [*made, flush])
    assert rows(shop, "looked_up") == looked_up
    # Without a watermark the table has one row for each name, which batches replace.
    of = {name: [click.id for click in [*made, flush] if click.name == name] for name in NAMES}
    assert rows(shop, "totals") == Counter((name, len(ids), max(ids)) for name, ids in of.items())
    shop.verify()


def test_rows_that_come_too_late_are_counted_and_shown(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.write(WINDOWS)
    produce(shop, [Click(0, "ada", 0), Click(1, "bob", 100)])
    assert [flow.late for flow in shop.run_well().flows] == [0]
    produce(shop, [Click(2, "ada", 1), Click(3, "bob", 2), Click(4, "cyd", 3), Click(5, "ada", 101)])
    assert [flow.late for flow in shop.run_well().flows] == [3]
    assert [event.rows for event in late_events(shop)] == [3]
    produce(shop, [Click(6, "ada", 4)])
    shop.run_well()
    with Pipeline.load(shop.root) as pipeline:
        (windows,) = pipeline.status().datasets
    assert windows.flows[0].late == 4
    assert run_command(["status", "--project", str(shop.root)]) == 0
    assert "windows: dropped 4 late rows (older than the watermark)" in capsys.readouterr().out
    # The count of late rows lies beside the ledger's folds, and is none of them.
    assert "cannot be read" not in json.dumps(shop.verify().to_json(), default=str)


def late_events(shop: Shop) -> Iterator[LateRowsDropped]:
    return (event for event in shop.happened(LateRowsDropped) if isinstance(event, LateRowsDropped))


def last_planned(shop: Shop, flow: str) -> int:
    return max(numbers(shop.checkpoint(flow) / "offsets"))


def is_unfinished(shop: Shop, flow: str, batch: int) -> bool:
    """Whether Spark has planned the batch and not finished it: the run failed in the middle."""
    checkpoint = shop.checkpoint(flow)
    return batch in numbers(checkpoint / "offsets") and batch not in numbers(checkpoint / "commits")


def numbers(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.iterdir() if path.name.isdigit()} if folder.is_dir() else set()
