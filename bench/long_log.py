"""Measures each command on a table with 50,000 commits that has never been maintained: time and memory.

A first run makes the table. Then a script writes the records to the topic, and for each record what a batch
would write: a data file and a commit. The log has no checkpoint, so each reader has to read all commits until
Headrace has written one. Each command has a process and a JVM of its own.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer

from bench.load import broker_in
from bench.memory import TreeMemory
from bench.processes import HEADRACE, running, timed
from bench.results import expect, keep, rows_of, table
from headrace.model.ranges import RecordMark
from headrace.runtime.broker import Broker

TOPIC = "long"
_TIMEOUT_S = 3600.0
_KEPT = 100
"""The number of batches whose files are kept in Spark's checkpoint."""
_SPEC = """\
name: long
storage: ./lake
libraries:
  - file: records.py
kafka:
  bootstrap.servers: {bootstrap}
"""
_CODE = """\
import headrace as hr


@hr.table
def records():
    rows = hr.read_kafka("long", format="json", schema="id LONG, name STRING")
    return rows.select("id", "name", "_source.topic", "_source.partition", "_source.offset")
"""
_COMMANDS = {
    "status --tables": ("status", "--tables"),
    "read --limit 5": ("read", "records", "--limit", "5"),
    "verify": ("verify",),
    "run, nothing new": ("run",),
    "run, one more batch": ("run",),
    "maintain --dry-run": ("maintain", "--dry-run"),
    "maintain": ("maintain",),
    "status --tables, after": ("status", "--tables"),
    "verify, after": ("verify",),
    "run, one more batch, after": ("run",),
}


@click.command()
@click.option("--commits", default=50_000, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="A folder that is kept; it must be new.")
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(commits: int, folder: Path | None, quick: bool) -> None:
    """Seconds and memory of each command on a table with many commits."""
    commits = 500 if quick else commits
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, broker_in() as broker:
        home = folder or Path(name)
        began = time.monotonic()
        written = make(home, broker, commits)
        click.echo(f"{commits:,} commits, written in {time.monotonic() - began:.0f} s")
        for title, command in _COMMANDS.items():
            if "one more" in title:
                written.produce(1)
            found[title] = measure(home, *command)
            click.echo(f"{title}: {found[title]}")
        expect("the table", rows_of(table_of(home)), written.next)
    table(
        ("command", "seconds", "peak MB", "exit code"),
        [(title, one["seconds"], one["peak_mb"], one["exit_code"]) for title, one in found.items()],
    )
    keep("long_log", {"commits": commits, "commands": found})


def make(home: Path, broker: Broker, commits: int, rows: int = 1) -> Written:
    """Make a pipeline whose table has ``commits`` commits, each with one file of ``rows`` rows."""
    home.mkdir(exist_ok=True)
    broker.create_topic(TOPIC, 1)
    bootstrap = broker.start()
    (home / "headrace.yml").write_text(_SPEC.format(bootstrap=bootstrap))
    (home / "records.py").write_text(_CODE)
    written = Written(bootstrap)
    written.produce(rows)
    timed([*HEADRACE, "run", "--project", str(home)], home / "out.log")
    written.produce((commits - 1) * rows)
    write_log(home, written, rows)
    return written


def measure(home: Path, *command: str) -> dict[str, Any]:
    """The time and the memory of a command, and its exit code."""
    began = time.monotonic()
    started = running([*HEADRACE, *command, "--project", str(home)], home / "out.log")
    with started as process, TreeMemory(lambda: [process.pid]) as memory:
        process.wait(_TIMEOUT_S)
        took = time.monotonic() - began
    return {"seconds": round(took, 2), "peak_mb": memory.peak_mb, "exit_code": process.returncode}


class Written:
    """The records of the topic, and their marks."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
        self.marks: list[RecordMark] = []

    @property
    def next(self) -> int:
        """The offset of the next record."""
        return len(self.marks)

    def produce(self, number: int) -> None:
        """Write ``number`` more records."""
        for offset in range(self.next, self.next + number):
            value = json.dumps({"id": offset, "name": f"name-{offset:09d}"}).encode()
            at = int(time.time() * 1000)
            self._producer.produce(TOPIC, value, timestamp=at)
            self.marks.append(RecordMark.of(at, None, value))
            if offset % 1000 == 0:
                self._producer.poll(0)
                self._producer.flush()
        self._producer.flush()


def write_log(home: Path, written: Written, rows: int) -> None:
    """Write what a run would write: a file and a commit for each further batch, and Spark's checkpoint."""
    place = table_of(home)
    log = place / "_delta_log"
    version = max(int(file.stem) for file in log.glob("[0-9]*.json"))
    lines = (log / f"{version:020d}.json").read_text().splitlines()
    actions = {name: value for line in lines for name, value in json.loads(line).items()}
    info, transaction, added = actions["commitInfo"], actions["txn"], actions["add"]
    said = json.loads(info["userMetadata"])
    schema = pq.read_schema(place / added["path"])
    for batch in range(1, written.next // rows):
        version += 1
        first, end = batch * rows, (batch + 1) * rows
        data = [_row(offset) for offset in range(first, end)]
        path = f"part-00000-{batch:08d}-c000.snappy.parquet"
        pq.write_table(pa.Table.from_pylist(data, schema=schema), place / path)
        at = math.ceil(time.time() * 1000)
        said |= {"batch": batch, "input": rows, "accepted": rows}
        said["sources"][0] |= {
            "from": {TOPIC: {"0": first}},
            "until": {TOPIC: {"0": end}},
            "last": {TOPIC: {"0": [end - 1, *written.marks[end - 1].to_json()]}},
        }
        info |= {
            "timestamp": at,
            "readVersion": version - 1,
            "operationParameters": {**info["operationParameters"], "epochId": str(batch)},
            "userMetadata": json.dumps(said),
            "txnId": f"00000000-0000-4000-8000-{version:012d}",
        }
        size, nulls = (place / path).stat().st_size, dict.fromkeys(data[0], 0)
        stats = {"numRecords": rows, "minValues": data[0], "maxValues": data[-1], "nullCount": nulls}
        added |= {"path": path, "size": size, "modificationTime": at, "stats": json.dumps(stats)}
        transaction |= {"version": batch, "lastUpdated": at}
        new = ({"commitInfo": info}, {"txn": transaction}, {"add": added})
        text = "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in new)
        (log / f"{version:020d}.json").write_text(text)
    _write_checkpoint(home, written.next // rows - 1, rows)


def table_of(home: Path) -> Path:
    return home / "lake" / "tables" / "default" / "records"


def _row(offset: int) -> dict[str, Any]:
    # The names are ordered by the offset, so that the first and the last are the smallest and the largest.
    name = f"name-{offset:09d}"
    return {"id": offset, "name": name, "topic": TOPIC, "partition": 0, "offset": offset}


def _write_checkpoint(home: Path, newest: int, rows: int) -> None:
    """Write the entries that Spark would have kept in its offset log and its commit log."""
    checkpoint = next((home / "lake" / "checkpoints" / "default.records" / "records").iterdir())
    head = (checkpoint / "offsets" / "0").read_text().splitlines()[:2]
    commit = (checkpoint / "commits" / "0").read_text()
    for folder in ("offsets", "commits"):
        for file in (checkpoint / folder).iterdir():
            file.unlink()
    for batch in range(max(newest - _KEPT + 1, 0), newest + 1):
        until = json.dumps({TOPIC: {"0": (batch + 1) * rows}}, separators=(",", ":"))
        (checkpoint / "offsets" / str(batch)).write_text("\n".join([*head, until]))
        (checkpoint / "commits" / str(batch)).write_text(commit)


if __name__ == "__main__":
    main()
