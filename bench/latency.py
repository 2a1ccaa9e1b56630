"""Visible latency: from the producer's timestamp to the Delta commit, for every record.

Each side streams the same topic content, parsed from JSON, into one Delta table. A record is visible
when its commit file is complete: the file's own modification time. The second part lets Headrace make
1,000 small commits as fast as it goes, and compares its batches after 50 and after 1,000.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.load import PARTITIONS, Trickle, broker_in, fill
from bench.memory import TreeMemory
from bench.pipelines import table_of, write_pipeline
from bench.processes import HEADRACE, await_, running
from bench.results import expect, keep, quantile, ratio, table
from headrace.runtime.broker import Broker

SIDES = ("plain", "expert", "headrace")
_READY_S = 180.0
_FIRST = 10


@dataclass(frozen=True)
class Commit:
    """One commit with rows: when it was complete, and when its records were produced."""

    version: int
    at: float
    produced: list[float]


@click.command()
@click.option("--rate", default=500, show_default=True, help="Messages a second.")
@click.option("--seconds", default=180, show_default=True, help="Measured, for each side and round.")
@click.option("--warm-up", default=60, show_default=True, help="Seconds before the measured ones.")
@click.option("--rounds", default=1, show_default=True)
@click.option("--sides", default=",".join(SIDES), show_default=True)
@click.option(
    "--commits", default=1000, show_default=True, help="Commits of the second part; 0: leave it out."
)
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(rate: int, seconds: int, warm_up: int, rounds: int, sides: str, commits: int, quick: bool) -> None:
    """Visible latency of plain, expert and Headrace streams."""
    if quick:
        seconds, warm_up, rounds, commits = 20, 15, 1, min(commits, 60)
    chosen = sides.split(",")
    found: dict[str, list[float]] = {side: [] for side in chosen}
    extra: dict[str, list[Any]] = {side: [] for side in chosen}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, broker_in() as broker:
        folder = Path(name)
        for turn in range(rounds):
            for side in chosen:
                latencies, facts = measure(side, broker, folder / f"{side}-{turn}", rate, warm_up, seconds)
                found[side] += latencies
                extra[side].append(facts)
                click.echo(f"{side}: p50 {quantile(latencies, 0.5):.2f} s, {facts}")
        growth = measure_growth(broker, folder / "growth", commits) if commits else None
    summary: dict[str, dict[str, Any]] = {
        side: {
            "records": len(values),
            "p50_s": quantile(values, 0.5),
            "p99_s": quantile(values, 0.99),
            "max_s": max(values, default=float("nan")),
            "rounds": extra[side],
        }
        for side, values in found.items()
    }
    ours = summary.get("headrace", {}).get("p50_s", float("nan"))
    table(
        ("side", "records", "p50 s", "p99 s", "max s", "Headrace's p50 / its p50"),
        [
            (s, v["records"], v["p50_s"], v["p99_s"], v["max_s"], ratio(ours, v["p50_s"]))
            for s, v in summary.items()
        ],
    )
    if growth is not None:
        click.echo(
            f"  batch after {growth['late']['around']} commits {growth['late']['median_s']:.3f} s, after "
            f"{growth['early']['around']} {growth['early']['median_s']:.3f} s: ratio {growth['ratio']:.2f}"
        )
    keep(
        "latency", {"rate": rate, "seconds": seconds, "warm_up": warm_up, "sides": summary, "growth": growth}
    )


def measure(
    side: str, broker: Broker, folder: Path, rate: int, warm_up: int, seconds: int
) -> tuple[list[float], dict[str, Any]]:
    """Latencies of all records of the measured seconds, and facts about the batches that held them."""
    topic = f"latency-{folder.name}"
    broker.create_topic(topic, PARTITIONS)
    folder.mkdir()
    command, place = _command(side, folder, broker.start(), topic)
    latencies, facts = watch(side, broker, topic, command, place, folder / "log", rate, warm_up, seconds)
    if side == "headrace":
        show_slow(folder / "pipeline", facts["began"])
    return latencies, facts


def show_slow(project: Path, began: float) -> None:
    """Print what the slowest percent of the batches consist of, as `headrace status --slow` does."""
    from rich.console import Console

    from headrace import Pipeline
    from headrace.cli.commands.status import slow_table

    with Pipeline.load(project) as pipeline:
        Console().print(slow_table(pipeline.slow_batches(datetime.fromtimestamp(began, UTC))))


def watch(
    side: str,
    broker: Broker,
    topic: str,
    command: list[str],
    place: Path,
    log: Path,
    rate: int,
    warm_up: int,
    seconds: int,
    measured: AbstractContextManager[None] | None = None,
) -> tuple[list[float], dict[str, Any]]:
    """Run a stream's process, and look at its table on this disk. `measured`: open in the measured time."""
    bootstrap, broker_pid = broker.start(), broker.status().pid or 0
    with running(command, log) as process, TreeMemory(lambda: [process.pid, broker_pid]) as memory:
        _await_first_commit(bootstrap, topic, place, process)
        with Trickle(bootstrap, topic, rate) as load:
            time.sleep(warm_up)
            with measured or nullcontext():
                began = time.time()
                time.sleep(seconds)
                ended = time.time()
        await_(lambda: count_added(place) >= load.sent + _FIRST, _READY_S, "the last record", process)
    commits = load_commits(place)
    expect(side, sum(len(one.produced) for one in commits), load.sent + _FIRST)
    latencies = [c.at - p for c in commits for p in c.produced if began <= p < ended]
    spans = [c.at for c in commits if began <= c.at < ended]
    gaps = [b - a for a, b in itertools.pairwise(spans)]
    facts = {
        "began": began,
        "batches": len(spans),
        "between_commits_p50_s": round(quantile(gaps, 0.5), 3),
        "between_commits_max_s": round(max(gaps, default=0.0), 3),
        "p99_s": round(quantile(latencies, 0.99), 3),
        "peak_mb": memory.peak_mb,
    }
    return latencies, facts


def measure_growth(broker: Broker, folder: Path, commits: int) -> dict[str, Any]:
    """Batch times of Headrace after few and after many commits to one table."""
    topic = f"growth-{folder.name}"
    broker.create_topic(topic, PARTITIONS)
    bootstrap = broker.start()
    folder.mkdir()
    command, place = _command("headrace", folder, bootstrap, topic)
    with running(command, folder / "log") as process:
        _await_first_commit(bootstrap, topic, place, process)
        with Trickle(bootstrap, topic, 200) as load:
            await_(lambda: _last_version(place) >= commits + 30, 3600, f"{commits} commits", process)
        await_(lambda: count_added(place) >= load.sent + _FIRST, _READY_S, "the last record", process)
    measured = _batches(folder)
    expect("growth", sum(rows for rows, _ in measured), load.sent + _FIRST)
    durations = [seconds for _, seconds in measured]
    half = min(25, commits // 4)
    early, late = min(50, commits // 2), min(commits, len(durations) - half)
    sides = {
        name: {"around": around, "median_s": statistics.median(durations[around - half : around + half])}
        for name, around in (("early", early), ("late", late))
    }
    return {
        **sides,
        "ratio": sides["late"]["median_s"] / sides["early"]["median_s"],
        "batches": len(durations),
    }


def load_commits(place: Path) -> list[Commit]:
    """Every commit of the table's log with the timestamps of its rows."""
    found = []
    for file in sorted((place / "_delta_log").glob("[0-9]*.json")):
        produced: list[float] = []
        for line in file.read_text().splitlines():
            action = json.loads(line)
            # A compaction writes rows again that were visible before.
            if "add" in action and action["add"]["dataChange"]:
                rows = pq.read_table(place / unquote(action["add"]["path"]), columns=["timestamp"])
                micros = pc.cast(pc.cast(rows["timestamp"], "timestamp[us]"), "int64")
                produced += [value / 1e6 for value in micros.to_pylist()]
        if produced:
            found.append(Commit(int(file.stem), file.stat().st_mtime, produced))
    return found


def _command(side: str, folder: Path, bootstrap: str, topic: str) -> tuple[list[str], Path]:
    if side == "headrace":
        write_pipeline(folder / "pipeline", bootstrap, topic, "json")
        project = str(folder / "pipeline")
        return [*HEADRACE, "run", "--continuous", "--json", "--project", project], table_of(
            folder / "pipeline"
        )
    place = folder / "table"
    command = [HEADRACE[0], "-m", "bench.stream_side", side, bootstrap, topic]
    return [*command, str(place), str(folder / "checkpoint")], place


def _await_first_commit(bootstrap: str, topic: str, place: Path, process: subprocess.Popen[bytes]) -> None:
    """A few records through the whole side: what starts with them is not measured."""
    fill(bootstrap, topic, _FIRST)
    await_(lambda: count_added(place) >= _FIRST, _READY_S, "the first commit", process)


def _last_version(place: Path) -> int:
    return max((int(file.stem) for file in (place / "_delta_log").glob("[0-9]*.json")), default=-1)


def count_added(place: Path) -> int:
    """The rows that commits have added so far; those of compactions do not count."""
    total = 0
    for file in (place / "_delta_log").glob("[0-9]*.json"):
        for line in file.read_text().splitlines():
            if line.startswith('{"add"') and (added := json.loads(line)["add"])["dataChange"]:
                total += int(json.loads(added["stats"])["numRecords"])
    return total


def _batches(folder: Path) -> list[tuple[int, float]]:
    """Rows and seconds of each batch with rows."""
    from headrace import Pipeline

    with Pipeline.load(folder / "pipeline") as pipeline:
        metrics = [one.details["metrics"] for one in pipeline.events() if one.level == "METRICS"]
    return [(one["num_output_rows"], one["duration_ms"] / 1000) for one in metrics if one["num_output_rows"]]


if __name__ == "__main__":
    main()
