"""Changes by key in tables of several sizes, and over many batches.

Each table is filled with one SQL statement, then batches of random keys come from Kafka. The first batch
builds the index of the keys. At the end the table is read whole, and again after it was rewritten without the
deleted rows.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.load import PARTITIONS, broker_in
from bench.results import keep, ratio, table
from bench.upsert import headrace_side, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EDGE = 10


@click.command()
@click.option("--keys", default="1000000,5000000,20000000", show_default=True)
@click.option("--batch", default=20_000, show_default=True, help="Records of a batch.")
@click.option("--batches", default=8, show_default=True)
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(keys: str, batch: int, batches: int, quick: bool) -> None:
    """Seconds of a batch by the number of keys; the first batches beside the last; the cost of reading."""
    from headrace.runtime.session import open_spark

    keys, batch, batches = ("10000,30000", 1_000, 3) if quick else (keys, batch, batches)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, broker_in() as broker:
        bootstrap = broker.start()
        running = open_spark("bench")
        for count in map(int, keys.split(",")):
            topic = f"upsert-{count}"
            broker.create_topic(topic, PARTITIONS)
            root = Path(name) / str(count)
            root.mkdir()
            one = _measure(running.spark, bootstrap, root, topic, count, batch, batches)
            click.echo(str(one))
            found.append(one)
        running.stop()
    base = found[0]["batch_s"]
    table(
        (
            "keys",
            "fill s",
            "first batch s",
            "index MB",
            "batch s",
            "of first size",
            "last / first",
            "read / optimised",
        ),
        [
            (
                f"{one['keys']:,}",
                one["fill_s"],
                one["first_s"],
                one["index_mb"],
                one["batch_s"],
                ratio(one["batch_s"], base),
                ratio(one["last_s"], one["early_s"]),
                ratio(one["read_s"], one["read_optimised_s"]),
            )
            for one in found
        ],
    )
    keep("upsert_sizes", {"batch": batch, "batches": batches, "sizes": found})


def _measure(
    spark: SparkSession, bootstrap: str, root: Path, topic: str, count: int, batch: int, batches: int
) -> dict[str, Any]:
    from headrace.sinks.delta.key_index import BYTES_PER_KEY

    run = headrace_side(spark, bootstrap, root, "auto cdc", topic)
    version = produce(bootstrap, [0], 0, topic)
    run(batch, version)
    path = next(root.glob("*/lake/tables/*/records"))
    started = time.monotonic()
    spark.sql(
        f"INSERT INTO delta.`{path}` SELECT id, 0 AS version, concat('customer-', id % 1000) AS customer, "
        "id % 9973 / 100 AS amount, 'as filled' AS note, "
        "named_struct('value', CAST(0 AS BIGINT), 'partition', CAST(0 AS BIGINT), 'source', '', "
        f"'position', CAST(0 AS BIGINT)) AS _sequence FROM range(1, {count}, 1, 4)"
    )
    filled = time.monotonic() - started
    for turn in range(batches):
        version = produce(bootstrap, random.Random(turn).sample(range(count), batch), version, topic)
    first, *seconds = run(batch, version)[:batches]
    read = _read(spark, path)
    spark.sql(f"REORG TABLE delta.`{path}` APPLY (PURGE)")
    spark.sql(f"OPTIMIZE delta.`{path}`")
    return {
        "keys": count,
        "fill_s": filled,
        "first_s": first,
        "index_mb": count * BYTES_PER_KEY / 2**20,
        "batch_s": statistics.median(seconds),
        "early_s": statistics.median(seconds[:_EDGE]),
        "last_s": statistics.median(seconds[-_EDGE:]),
        "read_s": read,
        "read_optimised_s": _read(spark, path),
        "seconds": seconds,
    }


def _read(spark: SparkSession, path: Path) -> float:
    """Seconds for one pass over all columns, the best of three."""
    found = []
    for _ in range(3):
        started = time.monotonic()
        # Delta cannot write a table with deletion vectors to Spark's "noop" sink.
        spark.read.format("delta").load(str(path)).selectExpr("bit_xor(xxhash64(*))").collect()
        found.append(time.monotonic() - started)
    return min(found)


if __name__ == "__main__":
    main()
