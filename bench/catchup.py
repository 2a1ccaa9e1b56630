"""Catch-up: a topic of two million records into one table, warm, and the peak memory of it.

The sides: plain Structured Streaming as it comes (no limit: one batch), plain in batches of 500,000,
an expert's settings in the same batches, Headrace with its own defaults, and as a mark a batch job
that writes Parquet once. Each has a process and a JVM of its own, and runs twice in it; the second
run counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import click

from bench.load import PARTITIONS, broker_in, fill
from bench.memory import TreeMemory
from bench.pipelines import Content
from bench.results import expect, keep, ratio, table

SIDES = ("plain", "plain-batches", "expert", "headrace", "parquet")


@click.command()
@click.option("--records", default=2_000_000, show_default=True)
@click.option("--rounds", default=1, show_default=True)
@click.option("--sides", default=",".join(SIDES), show_default=True)
@click.option("--contents", default="json,raw", show_default=True)
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(records: int, rounds: int, sides: str, contents: str, quick: bool) -> None:
    """Rows a second from Kafka to a table."""
    records = 100_000 if quick else records
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, broker_in() as broker:
        broker.create_topic("catchup", PARTITIONS)
        bootstrap = broker.start()
        click.echo(f"writing {records:,} records")
        fill(bootstrap, "catchup", records)
        broker_pid = broker.status().pid or 0
        for number in range(rounds):
            for content in contents.split(","):
                for side in sides.split(","):
                    folder = Path(name) / f"{side}-{content}-{number}"
                    folder.mkdir()
                    one = _measure(side, cast("Content", content), bootstrap, folder, broker_pid)
                    for turn in ("cold", "warm"):
                        expect(f"{side} {content}, {turn}", one[turn]["rows"], records)
                    one |= {"side": side, "content": content, "rows_s": records / one["warm"]["seconds"]}
                    click.echo(f"{side} {content}: {one['rows_s']:,.0f} rows/s, {one['peak_mb']} MB")
                    found.append(one)
    _show(found)
    keep("catchup", {"records": records, "runs": found})


def _measure(side: str, content: Content, bootstrap: str, folder: Path, broker_pid: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.catchup_side", side, content, bootstrap, "catchup", str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        with TreeMemory(lambda: [process.pid, broker_pid]) as memory:
            out, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit((folder / "log").read_text()[-4000:])
    # The peak is that of both runs: memory that the first has taken is not given back.
    return {**json.loads(out.splitlines()[-1]), "peak_mb": memory.peak_mb, "peak_parts": memory.parts}


def _show(found: list[dict[str, Any]]) -> None:
    rows = []
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for one in found:
        key = (one["side"], one["content"])
        if key not in best or one["rows_s"] > best[key]["rows_s"]:
            best[key] = one
    for (side, content), one in best.items():
        ours = best.get(("headrace", content), {}).get("rows_s", float("nan"))
        cold = one["cold"]["rows"] / one["cold"]["seconds"]
        rows.append((side, content, one["rows_s"], cold, ratio(ours, one["rows_s"]), one["peak_mb"]))
    table(("side", "content", "rows/s warm", "rows/s cold", "Headrace / it", "peak MB"), rows)


if __name__ == "__main__":
    main()
