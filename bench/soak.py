"""Runs three flows with table care for about an hour, and reports every measure that grows.

One flow appends a topic to a table, one applies the same topic as changes by key, with deletes, and one
streams from the first table. All run in one ``headrace run --continuous``, fed at a steady rate. The policies
have short times, so that compactions, vacuums and log cleanups come every few minutes. Every few seconds, the
files, the processes and the folders are measured. At the end, ``headrace verify`` must prove everything.

The run uses ``bench.soak_side`` instead of ``headrace``: it does each minute what ``headrace`` does each hour
or day.

A series grows if its slope over the second half is more than three times its standard error, and more than
5 % of its mean in an hour. Only the series of `_MAY_GROW` may grow.
"""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil

from bench.load import PARTITIONS, SCHEMA, Trickle, broker_in
from bench.many import batches
from bench.picture import Panel, Points, draw
from bench.processes import HEADRACE, await_, running
from bench.results import expect, keep, rows_of, table
from headrace.maintain.condition import small_files
from headrace.model.maintenance import TablePolicy
from headrace.runtime.jars import find_java
from headrace.storage.layout import locate
from headrace.storage.table_log import is_table
from headrace.storage.table_snapshot import load_snapshot

TOPIC = "soak"
FLOWS = ("orders", "customers", "large_orders")
_READY_S = 300.0
_SIDE = (sys.executable, "-m", "bench.soak_side")
_HEAP_S = 60.0
_BLOCKS = 12
_CARE = ("compacted", "vacuumed", "log")
_SPEC = """\
name: soak
storage: ./lake
libraries:
  - file: soak.py
kafka:
  bootstrap.servers: {bootstrap}
trigger: 1 second
configuration:
  spark.sql.streaming.minBatchesToRetain: "10"
maintenance:
  commits: 10
  small_files: 8
  vacuum_every: 1 minute
  retention: {retention}
  allow_short_retention: true
  log_retention: {retention}
"""
_CODE = f"""\
import headrace as hr
from headrace import spark


def records():
    return hr.read_kafka("{TOPIC}", format="json", schema="{SCHEMA}")


@hr.table
@hr.expect_or_quarantine("a sale", "id % 200 <> 0")
def orders():
    return records().select("id", "name", "sales", "_source.topic", "_source.partition", "_source.offset")


@hr.table
def large_orders():
    return spark.readStream.table("orders").where("sales > 50").select("id", "sales")


@hr.temporary_view
def changes():
    return records().selectExpr(
        "pmod(hash(id), 20000) AS customer", "id AS version", "name", "sales",
        "pmod(hash(id, 1), 50) = 0 AS deleted",
    )


hr.create_streaming_table(
    "customers", table_properties={{"pipelines.cdc.tombstoneGCThresholdInSeconds": "120"}}
)
hr.create_auto_cdc_flow(
    "customers", "changes", ["customer"], "version",
    apply_as_deletes="deleted", except_column_list=["deleted"],
)
"""
_MAY_GROW = {
    "MB of rows": "with the rows",
    "MB of the event log": "kept for 90 days",
    "MB of log files": "rotated at 20 MB",
    "MB of memory, JVM": "up to the heap's limit",
}


@dataclass(frozen=True)
class Slope:
    """How a series changes over the second half of a run.

    Args:
        mean: Its mean.
        per_hour: Its change in an hour.
        error: The standard error of the change.
    """

    mean: float
    per_hour: float
    error: float

    @property
    def grows(self) -> bool:
        return self.per_hour > 3 * self.error and self.per_hour > 0.05 * abs(self.mean)


@click.command()
@click.option("--minutes", default=45.0, show_default=True)
@click.option("--rate", default=200, show_default=True, help="Records a second.")
@click.option("--every", default=5.0, show_default=True, help="Seconds between two samples.")
@click.option(
    "--retention", default="2 minutes", show_default=True, help="Retention of old files and old commits."
)
@click.option("--picture", type=click.Path(path_type=Path), help="Where the SVG picture is written.")
@click.option("--folder", type=click.Path(path_type=Path), help="A folder that is kept; it must be new.")
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(
    minutes: float,
    rate: int,
    every: float,
    retention: str,
    picture: Path | None,
    folder: Path | None,
    quick: bool,
) -> None:
    """Report what grows in a long run of three flows with table care."""
    minutes = 2.0 if quick else minutes
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, broker_in() as broker:
        broker.create_topic(TOPIC, PARTITIONS)
        home = folder or Path(name)
        probe = soak(home, broker.start(), minutes * 60, rate, every, retention)
        verified = _verify(home)
    slopes = {key: slope(points) for key, points in probe.series.items()}
    rows = [
        (f"{panel}: {line}", one.mean, one.per_hour, one.error, _word(panel, line, one))
        for (panel, line), one in slopes.items()
    ]
    table(("series", "mean", "change in 1 h", "error", ""), rows)
    click.echo(f"care: {dict(probe.care)}")
    click.echo(verified["text"])
    keep(
        "soak",
        {
            "minutes": minutes,
            "rate": rate,
            "retention": retention,
            "verified": verified["proven"],
            "care": probe.care,
            "slopes": {" / ".join(key): {**vars(one), "grows": one.grows} for key, one in slopes.items()},
            "loads": probe.loads,
            "series": {" / ".join(key): _thin(points, 120) for key, points in probe.series.items()},
            "heap": probe.histograms,
        },
    )
    if picture is not None:
        draw(picture, probe.panels())
    if not verified["proven"]:
        raise SystemExit("`headrace verify` has not proven the tables")


class Probe:
    """Measures a running pipeline.

    Args:
        home: Its folder.
        process: The process of the run.
    """

    def __init__(self, home: Path, process: int) -> None:
        self._home = home
        self._root = psutil.Process(process)
        self._began = time.time()
        self._heap_at = 0.0
        self.series: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        self.loads: list[float] = []
        self.histograms: list[Sequence[str]] = []
        self.care: Counter[str] = Counter()

    def sample(self) -> None:
        """Measure everything once."""
        self.loads.append(os.getloadavg()[0])
        for (panel, line), value in itertools.chain(self._tables(), self._folders(), self._processes()):
            self.series[panel, line].append((time.time() - self._began, value))

    def add_events(self) -> None:
        """Add the time of each batch, and count what care was taken."""
        from headrace import Pipeline

        for flow, at, took in batches(self._home):
            self.series["seconds of a batch", flow].append((at - self._began, took))
        with Pipeline.load(self._home) as pipeline:
            for one in pipeline.events():
                if one.type == "operation_progress":
                    self.care.update(f"{one.dataset} {what}" for what in _CARE if what in one.details)
                    self.care[f"{one.dataset} failed"] += one.details["status"] == "FAILED"

    def panels(self) -> list[Panel]:
        """The series, one panel for each measure."""
        panels: dict[str, dict[str, Points]] = defaultdict(dict)
        for (panel, line), points in self.series.items():
            panels[panel][line] = _thin(points)
        return [Panel(title, lines) for title, lines in panels.items()]

    def _tables(self) -> Iterator[tuple[tuple[str, str], float]]:
        lake = self._home / "lake"
        for name in FLOWS:
            folder = lake / "tables" / "default" / name
            place = locate(str(folder))
            if not is_table(place):
                continue
            try:
                found = load_snapshot(place)
            except (OSError, ValueError):
                # Files were added or deleted while they were listed.
                continue
            stored = [one for one in _files(folder) if "_delta_log" not in one.parts]
            yield ("files of the table", name), len(found.files)
            yield ("small files", name), small_files(found, TablePolicy()).total()
            yield ("data files in the storage", name), len(stored)
            yield ("files of the log", name), sum(1 for _ in _files(folder / "_delta_log"))
            yield ("MB of rows", name), found.size_bytes / 1e6
            yield ("MB besides rows", name), _size(folder) / 1e6 - found.size_bytes / 1e6
        for name, folder in (
            ("quarantine", lake / "quarantine" / "default" / "orders"),
            ("tombstones", lake / "tombstones" / "default" / "customers"),
            ("events", lake / "events"),
        ):
            logged = sum("_delta_log" in one.parts for one in _files(folder))
            yield ("data files of other tables", name), sum(1 for _ in _files(folder)) - logged
            yield ("files of their logs", name), logged

    def _folders(self) -> Iterator[tuple[tuple[str, str], float]]:
        lake = self._home / "lake"
        for name in ("checkpoints", "ledger"):
            yield ("files of checkpoints and ledger", name), sum(1 for _ in _files(lake / name))
            yield ("kB of checkpoints and ledger", name), _size(lake / name) / 1e3
        yield ("MB of the event log", "events"), _size(lake / "events") / 1e6
        yield ("MB of log files", "logs"), _size(self._home / "logs") / 1e6
        yield ("MB of Spark's local files", "local"), sum(map(_size, self._scratch())) / 1e6

    def _processes(self) -> Iterator[tuple[tuple[str, str], float]]:
        for name, process in (("Python", self._root), ("JVM", self._jvm())):
            if process is None:
                continue
            yield (f"MB of memory, {name}", "resident"), process.memory_info().rss / 1e6
            yield ("open files", name), process.num_fds()
            yield ("threads", name), process.num_threads()
            if name == "JVM" and time.monotonic() - self._heap_at >= _HEAP_S:
                self._heap_at = time.monotonic()
                yield ("MB of memory, JVM", "live objects"), self._live_heap(process.pid) / 1e6

    def _jvm(self) -> psutil.Process | None:
        children = self._root.children(recursive=True)
        return next((one for one in children if "java" in one.name()), None)

    def _scratch(self) -> list[Path]:
        jvm = self._jvm()
        found = [] if jvm is None else [one for one in jvm.cmdline() if one.startswith("-Djava.io.tmpdir=")]
        return [Path(one.partition("=")[2]).parent for one in found]

    def _live_heap(self, pid: int) -> float:
        """The bytes of all reachable objects in the heap, after a full garbage collection."""
        tool = [str(find_java().executable), "-m", "jdk.jcmd/sun.tools.jcmd.JCmd", str(pid)]
        done = subprocess.run([*tool, "GC.class_histogram"], capture_output=True, text=True, check=True)
        lines = done.stdout.strip().splitlines()
        self.histograms = [*self.histograms[:1], lines[:40]]
        return float(lines[-1].split()[2])


def soak(home: Path, bootstrap: str, seconds: float, rate: int, every: float, retention: str) -> Probe:
    """Run the pipeline, and measure it."""
    home.mkdir(exist_ok=True)
    (home / "headrace.yml").write_text(_SPEC.format(bootstrap=bootstrap, retention=retention))
    (home / "soak.py").write_text(_CODE)
    command = [
        sys.executable,
        "-m",
        "bench.soak_side",
        "run",
        "--continuous",
        "--json",
        "--project",
        str(home),
    ]
    logs = {"HEADRACE_LOGS": str(home / "logs")}
    with Trickle(bootstrap, TOPIC, rate) as load, running(command, home / "run.log", logs) as process:
        tables = [locate(str(home / "lake" / "tables" / "default" / name)) for name in FLOWS]
        await_(lambda: all(map(is_table, tables)), _READY_S, "the first commits", process)
        probe = Probe(home, process.pid)
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            if process.poll() is not None:
                raise SystemExit(f"the run has ended: {(home / 'run.log').read_text()[-4000:]}")
            probe.sample()
            time.sleep(max(0.0, every - (time.monotonic() - began)))
        load.stop()
        await_(lambda: _orders(home) >= load.sent, _READY_S, "the last records", process)
    expect("orders", _orders(home), load.sent)
    probe.add_events()
    return probe


def _orders(home: Path) -> int:
    """The accepted and the rejected records of the flow that appends."""
    folders = (home / "lake" / place / "default" / "orders" for place in ("tables", "quarantine"))
    return sum(rows_of(folder) for folder in folders if (folder / "_delta_log").is_dir())


def slope(points: Points) -> Slope:
    """The slope of the second half, from the means of blocks, because neighbouring points are correlated."""
    half = max((at for at, _ in points), default=0.0) / 2
    later = [(at, value) for at, value in points if at >= half]
    size = max(len(later) // _BLOCKS, 1)
    means = [
        (sum(at for at, _ in part) / size, sum(value for _, value in part) / size)
        for start in range(0, len(later) - size + 1, size)
        if (part := later[start : start + size])
    ]
    if len(means) < 3:
        return Slope(math.nan, math.nan, math.nan)
    count = len(means)
    x0, y0 = (sum(one[i] for one in means) / count for i in (0, 1))
    spread = sum((x - x0) ** 2 for x, _ in means)
    rise = sum((x - x0) * (y - y0) for x, y in means) / spread
    rest = sum((y - y0 - rise * (x - x0)) ** 2 for x, y in means)
    return Slope(y0, rise * 3600, math.sqrt(rest / (count - 2) / spread) * 3600)


def _word(panel: str, line: str, one: Slope) -> str:
    if not one.grows:
        return ""
    if panel in _MAY_GROW and line != "live objects":
        return f"grows: {_MAY_GROW[panel]}"
    return "GROWS"


def _verify(home: Path) -> dict[str, Any]:
    done = subprocess.run(
        [*HEADRACE, "verify", "--project", str(home)], capture_output=True, text=True, check=False
    )
    return {"proven": done.returncode == 0, "text": done.stdout + done.stderr}


def _thin(points: Points, most: int = 400) -> Points:
    """At most ``most`` points: the means of neighbouring points."""
    size = math.ceil(len(points) / most) or 1
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [(part[0][0], sum(value for _, value in part) / len(part)) for part in parts]


def _files(folder: Path) -> Iterator[Path]:
    for name, _, files in os.walk(folder):
        for file in files:
            yield Path(name, file)


def _size(folder: Path) -> int:
    total = 0
    for file in _files(folder):
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue
    return total


if __name__ == "__main__":
    main()
