"""Compares table care on and off: the latency of batches, and the read times before and after a compaction.

Two pipelines, one with the default care and one without, process the same topics in turns. Each has a flow
that appends, and a flow that merges changes by key. The latency of a batch is the time from one commit to
the next while records are waiting: it includes compactions between two batches. Then both tables without
care, and a table with a day's commits that a script has written, are read before and after ``headrace
maintain``.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench import long_log
from bench.load import PARTITIONS, SCHEMA, broker_in, fill
from bench.processes import HEADRACE, await_, running, timed
from bench.results import expect, keep, quantile, ratio, table
from headrace.runtime.broker import Broker
from headrace.storage.layout import locate
from headrace.storage.table_snapshot import load_snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIDES = {"on": "{}", "off": "{compact: false, vacuum: false}"}
FLOWS = ("appended", "merged")
_RECORDS = 200
"""The records of a batch."""
_WARM_UP = 5
"""The first batches of each turn do not count."""
_READS = 5
_IDLE_S = 15.0
_ROUND_S = 7200.0
_SPEC = """\
name: care
storage: ./lake
libraries:
  - file: care.py
kafka:
  bootstrap.servers: {bootstrap}
database: care_{side}
maintenance: {policy}
"""
_CODE = f"""\
import headrace as hr


def records(topic):
    limit = {{"maxOffsetsPerTrigger": "{_RECORDS}"}}
    return hr.read_kafka(topic, format="json", schema="{SCHEMA}", options=limit)


@hr.table
def appended():
    return records("appended")


@hr.temporary_view
def changes():
    return records("merged").selectExpr("id % 20000 AS customer", "id AS version", "name", "sales")


hr.create_streaming_table("merged")
hr.create_auto_cdc_flow("merged", "changes", ["customer"], "version")
"""


@click.command()
@click.option("--commits", default=360, show_default=True, help="Commits of each flow and side.")
@click.option("--rounds", default=3, show_default=True, help="Turns of each side.")
@click.option("--day", default=1440, show_default=True, help="Commits that a script writes.")
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(commits: int, rounds: int, day: int, quick: bool) -> None:
    """Latency of batches with care and without, and files, bytes and read time before and after."""
    commits, rounds, day = (40, 1, 100) if quick else (commits, rounds, day)
    found: dict[str, dict[str, list[float]]] = {side: {flow: [] for flow in FLOWS} for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, broker_in() as broker:
        folder, bootstrap = Path(name), broker.start()
        for flow in FLOWS:
            broker.create_topic(flow, PARTITIONS)
        _write_pipelines(folder, bootstrap)
        for turn in range(rounds):
            for flow in FLOWS:
                records = commits // rounds * _RECORDS
                fill(bootstrap, flow, records, first=turn * records)
            # The sides take turns in running first, because the speed of the machine may change.
            for side in list(SIDES)[:: 1 if turn % 2 else -1]:
                for flow, gaps in _process(folder / side, commits // rounds * (turn + 1), records).items():
                    found[side][flow] += gaps
                    click.echo(f"turn {turn + 1}, care {side}, {flow}: p50 {quantile(gaps, 0.5):.2f} s")
        reads = _before_and_after(folder, broker, day)
    rows = []
    for flow in FLOWS:
        on, off = (found[side][flow] for side in SIDES)
        for share in (0.5, 0.99):
            with_, without = quantile(on, share), quantile(off, share)
            rows.append((f"{flow}, p{share * 100:.0f}", len(on), with_, without, ratio(with_, without)))
    table(("seconds from commit to commit", "commits", "care on", "care off", "on / off"), rows)
    heads = ("files", "MB", "seconds of an aggregate", "seconds of the first aggregate")
    pairs = itertools.chain(*((f"{head}, before", "after") for head in heads))
    table(("table", *pairs), [(name, *one) for name, one in reads.items()])
    keep("care", {"commits": commits, "rounds": rounds, "day": day, "seconds": found, "reads": reads})


def _write_pipelines(folder: Path, bootstrap: str) -> None:
    for side, policy in SIDES.items():
        (folder / side).mkdir()
        spec = _SPEC.format(bootstrap=bootstrap, side=side, policy=policy)
        (folder / side / "headrace.yml").write_text(spec)
        (folder / side / "care.py").write_text(_CODE)


def _process(home: Path, commits: int, records: int) -> dict[str, list[float]]:
    """Run until both flows have no lag; returns the seconds between the commits of each flow.

    Each flow must process exactly ``records`` records.
    """
    log = home.with_suffix(f".{commits}.log")
    command = [*HEADRACE, "run", "--continuous", "--json", "--project", str(home)]
    with running(command, log) as process:
        await_(lambda: _is_drained(log), _ROUND_S, "the last batch", process)
    gaps: dict[str, list[float]] = {}
    for flow in FLOWS:
        batches = [one for one in _batches(log) if one["flow"] == flow]
        expect(f"{home.name}, {flow}", sum(one["rows"] for one in batches), records)
        times = [one["at"] for one in batches][_WARM_UP:]
        gaps[flow] = [b - a for a, b in itertools.pairwise(times)]
    return gaps


def _batches(log: Path) -> Iterator[dict[str, Any]]:
    """The committed batches, from the output of a run."""
    for line in log.read_text().splitlines():
        if '"BatchCommitted"' in line:
            held = json.loads(line)
            yield {**held, "at": datetime.fromisoformat(held["at"]).timestamp()}


def _is_drained(log: Path) -> bool:
    """Whether no flow has committed for a while: not every event has a lag."""
    newest = {one["flow"]: one["at"] for one in _batches(log)}
    return all(flow in newest and time.time() - newest[flow] > _IDLE_S for flow in FLOWS)


def _before_and_after(folder: Path, broker: Broker, day: int) -> dict[str, tuple[float, ...]]:
    """Files, bytes and read times of tables without care, before and after ``headrace maintain``."""
    off, scripted = folder / "off", folder / "day"
    long_log.make(scripted, broker, day, _RECORDS)
    spec = (off / "headrace.yml").read_text().replace(SIDES["off"], SIDES["on"])
    (off / "headrace.yml").write_text(spec)
    folders = {flow: off / "lake" / "tables" / "care_off" / flow for flow in FLOWS}
    folders["a day's commits"] = long_log.table_of(scripted)
    before = {name: _read(folder) for name, folder in folders.items()}
    for home in (off, scripted):
        timed([*HEADRACE, "maintain", "--project", str(home)], folder / "maintain.log")
    after = {name: _read(folder) for name, folder in folders.items()}
    return {name: tuple(itertools.chain(*zip(before[name], after[name], strict=True))) for name in folders}


def _read(folder: Path) -> tuple[int, float, float, float]:
    """Files and MB of a table, the median time of an aggregate over it, and the first time."""
    from headrace.runtime.session import open_spark

    running_spark = open_spark("bench")
    try:
        spark: SparkSession = running_spark.spark
        spark.range(1000).selectExpr("sum(id)").collect()
        seconds = []
        for _ in range(1 + _READS):
            began = time.monotonic()
            rows = spark.read.format("delta").load(str(folder))
            rows.selectExpr("count(*)", "max(name)", "sum(length(name))").collect()
            seconds.append(time.monotonic() - began)
    finally:
        running_spark.stop()
    found = load_snapshot(locate(folder))
    return len(found.files), found.size_bytes / 1e6, statistics.median(seconds[1:]), seconds[0]


if __name__ == "__main__":
    main()
