"""The start of a batch's transaction on a table whose log has many files: milliseconds.

A flow with two commits a second has 10,000 files in the log of its table after three quarters of an hour, and
keeps them for 30 days. Here the files below the last checkpoint have no content: nobody reads them.
"Delta": a list of the log by Delta's own class; "ours": by the class that Headrace sets on a local disk;
"transaction": what a batch of Headrace does.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.results import expect, keep, ratio, rows_of, table
from headrace.runtime.session import open_spark
from headrace.sinks.delta.compaction import write_checkpoint
from headrace.sinks.delta.transaction import start_transaction
from headrace.storage.layout import locate
from headrace.storage.table_log import commit_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMES = 9
_COMMITS = 5


@click.command()
@click.option("--files", default="100,10000,100000", show_default=True)
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(files: str, quick: bool) -> None:
    """Milliseconds before a batch, by the number of files in the log of its table."""
    found: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as name,
        open_spark("busy-log", shared=False) as running,
    ):
        for count in map(int, ("1000" if quick else files).split(",")):
            found.append({"files": count, **measure(running.spark, Path(name) / str(count), count)})
    table(
        ("files", "Delta ms", "ours ms", "ours / Delta", "transaction ms"),
        [
            (one["files"], one["delta"], one["ours"], ratio(one["ours"], one["delta"]), one["transaction"])
            for one in found
        ],
    )
    keep("busy_log", {"runs": found})


def measure(spark: SparkSession, path: Path, files: int) -> dict[str, float]:
    where = locate(path)
    for _ in range(_COMMITS):
        spark.range(1).write.format("delta").mode("append").save(str(path))
    write_checkpoint(spark, where)
    for number in range(files):
        # Below the names from the checkpoint on, as those of older commits are.
        (path / "_delta_log" / f"{0:020d}.{number}.old").touch()
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    first = jvm.org.apache.hadoop.fs.Path(str(commit_file(where, _COMMITS - 1)))
    delta, ours = jvm.io.delta.storage.HDFSLogStore(conf), jvm.io.headrace.local.LocalLogStore(conf)
    taken = {
        "delta": _median_ms(lambda: delta.listFrom(first, conf)),
        "ours": _median_ms(lambda: ours.listFrom(first, conf)),
        "transaction": _median_ms(lambda: start_transaction(spark, where, "c")),
    }
    expect(str(files), rows_of(path), _COMMITS)
    return taken


def _median_ms(call: Callable[[], object]) -> float:
    taken = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken[1:])


if __name__ == "__main__":
    main()
