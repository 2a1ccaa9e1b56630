"""A Kinesis stream into a Delta table: Headrace, and the usual loop by hand, with the same Spark.

The loop asks for pages with boto3, keeps the last sequence numbers in its memory, and appends to Delta. Both
read the same records of a server on this machine (moto, in a process of its own). Such a server is slower
than AWS: "answers alone" is the time in which a loop gets all pages and drops them.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.results import expect, keep, ratio, rows_of, table

# The server is that of the tests.
sys.path.append(str(Path(__file__).parents[1] / "tests"))

from kinesis_server import KinesisServer, serve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STREAM = "clicks"
_SCHEMA = "id LONG, page STRING, country STRING, amount DOUBLE"
_PIPELINE = f"""\
import headrace as hr


@hr.table
def clicks():
    return hr.read_kinesis("{_STREAM}", format="json", schema="{_SCHEMA}")
"""


def _serve(ready: Connection) -> None:
    with serve() as server:
        ready.send(server.url)
        ready.recv()


@contextmanager
def _server() -> Iterator[KinesisServer]:
    """A server in another process, which does not share this one's interpreter lock."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,))
    process.start()
    try:
        yield KinesisServer(here.recv())
    finally:
        here.send(None)
        process.join(30)


def _put(server: KinesisServer, first: int, count: int) -> None:
    def click_of(id: int) -> dict[str, Any]:
        return {"id": id, "page": f"/item/{id % 997}", "country": "PT", "amount": id / 100}

    server.put(
        _STREAM, *((f"key-{id}", json.dumps(click_of(id)).encode()) for id in range(first, first + count))
    )


@dataclass
class Loop:
    """Reads the records that have arrived since its last turn, shard after shard."""

    client: Any
    last: dict[str, str] = field(default_factory=dict)  # the last sequence number of each shard

    def read(self) -> Iterator[list[Any]]:
        for shard in self.client.list_shards(StreamName=_STREAM)["Shards"]:
            name = shard["ShardId"]
            start = (
                {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": self.last[name]}
                if name in self.last
                else {"ShardIteratorType": "TRIM_HORIZON"}
            )
            iterator = self.client.get_shard_iterator(StreamName=_STREAM, ShardId=name, **start)[
                "ShardIterator"
            ]
            while True:
                page = self.client.get_records(ShardIterator=iterator, Limit=10_000)
                if page["Records"]:
                    self.last[name] = page["Records"][-1]["SequenceNumber"]
                yield page["Records"]
                iterator = page["NextShardIterator"]
                if not page["MillisBehindLatest"]:
                    break


def _append(spark: SparkSession, loop: Loop, folder: Path) -> None:
    from pyspark.sql import functions as F

    rows = [
        (one["Data"].decode(), one["PartitionKey"], one["SequenceNumber"], one["ApproximateArrivalTimestamp"])
        for page in loop.read()
        for one in page
    ]
    frame = spark.createDataFrame(rows, "data STRING, key STRING, sequence STRING, arrived TIMESTAMP")
    parsed = frame.withColumn("click", F.from_json("data", _SCHEMA)).select("click.*", *frame.columns)
    parsed.write.format("delta").mode("append").save(str(folder))


def _seconds(call: Callable[[], object]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


def _run(folder: Path) -> None:
    from headrace import Pipeline

    with Pipeline.load(folder) as pipeline:
        result = pipeline.run()
    if result.errors:
        raise SystemExit(str([error.to_dict() for error in result.errors]))


@click.command()
@click.option("--records", default=100_000, show_default=True, help="Records of a turn.")
@click.option("--shards", default=4, show_default=True)
@click.option("--turns", default=5, show_default=True, help="Measured, after one that warms up.")
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(records: int, shards: int, turns: int, quick: bool) -> None:
    """Rows a second from a Kinesis stream into a table, beside a loop by hand."""
    from headrace.runtime.session import open_spark

    records, turns = (2_000, 1) if quick else (records, turns)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, _server() as server:
        folder = Path(name)
        spec = {"name": "bench", "storage": "./lake", "database": "bench_kinesis", "kinesis": server.settings}
        (folder / "headrace.yml").write_text(
            json.dumps({**spec, "libraries": [{"file": "clicks.py"}]}), encoding="utf-8"
        )
        (folder / "clicks.py").write_text(_PIPELINE, encoding="utf-8")
        server.create(_STREAM, shards)
        running = open_spark("bench", memory="2g", shared=False)
        alone, loop = Loop(server.client), Loop(server.client)
        sides: dict[str, Callable[[], object]] = {
            "answers alone": lambda: [len(page) for page in alone.read()],
            "loop by hand": lambda: _append(running.spark, loop, folder / "by-hand"),
            "headrace": lambda: _run(folder),
        }
        found: dict[str, list[float]] = {side: [] for side in sides}
        for turn in range(1 + turns):
            _put(server, turn * records, records)
            for side in list(sides)[turn % 3 :] + list(sides)[: turn % 3]:
                found[side].append(_seconds(sides[side]))
        for one in (folder / "by-hand", folder / "lake/tables/bench_kinesis/clicks"):
            expect(one.name, rows_of(one), (1 + turns) * records)
        running.stop()
    medians = {side: statistics.median(seconds[1:]) for side, seconds in found.items()}
    click.echo(f"{records:,} records a turn, {shards} shards")
    rows = [(side, seconds, records / seconds) for side, seconds in medians.items()]
    table(("side", "seconds a turn", "rows a second"), rows)
    own = {side: seconds - medians["answers alone"] for side, seconds in medians.items()}
    by_hand = medians["loop by hand"]
    click.echo(
        f"headrace takes {ratio(medians['headrace'], by_hand):.2f} times as long as the loop by hand; "
        f"without the server's answers {own['headrace']:.2f} s and {own['loop by hand']:.2f} s"
    )
    keep("kinesis", {"records": records, "shards": shards, "seconds": found})


if __name__ == "__main__":
    main()
