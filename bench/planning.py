"""How long `headrace plan` takes for many datasets: chains of five tables, half in SQL, half in Python."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from bench.processes import HEADRACE
from bench.results import keep, quantile, table

_SPEC = "name: planning\nstorage: ./lake\nlibraries: [{glob: {include: transformations/**}}]\n"
_CHAIN = 5
_SQL = """\
CREATE STREAMING TABLE a{n} AS SELECT id, name, amount, at FROM STREAM read_files(
  'landing', format => 'json', schema => 'id LONG, name STRING, amount DOUBLE, at TIMESTAMP');
CREATE STREAMING TABLE b{n} (CONSTRAINT amounts EXPECT (amount > 0)) AS
SELECT *, CAST(at AS DATE) AS day FROM STREAM a{n} WHERE id IS NOT NULL;
CREATE MATERIALIZED VIEW c{n} AS SELECT day, name, sum(amount) AS amount FROM b{n} GROUP BY day, name;
CREATE MATERIALIZED VIEW d{n} AS SELECT c.*, avg(amount) OVER (PARTITION BY name) AS mean FROM c{n} c;
CREATE MATERIALIZED VIEW e{n} AS SELECT name, max(amount) AS best FROM d{n} GROUP BY name;
"""
_PYTHON = """\
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

SCHEMA = "id LONG, name STRING, amount DOUBLE, at TIMESTAMP"


@hr.table
def a{n}():
    return hr.read_files("landing", format="json", schema=SCHEMA).select("id", "name", "amount", "at")


@hr.table
@hr.expect("amounts", "amount > 0")
def b{n}():
    return spark.readStream.table("a{n}").where("id IS NOT NULL").withColumn("day", F.to_date("at"))


@hr.materialized_view
def c{n}():
    return spark.read.table("b{n}").groupBy("day", "name").agg(F.sum("amount").alias("amount"))


@hr.materialized_view
def d{n}():
    return spark.read.table("c{n}").withColumn("mean", F.expr("avg(amount) OVER (PARTITION BY name)"))


@hr.materialized_view
def e{n}():
    return spark.read.table("d{n}").groupBy("name").agg(F.max("amount").alias("best"))
"""


def write_pipeline(folder: Path, datasets: int) -> None:
    """Write a pipeline with a number of datasets; the number is a multiple of the length of a chain."""
    (folder / "transformations").mkdir(parents=True)
    (folder / "landing").mkdir()
    (folder / "landing" / "1.json").write_text('{"id": 1, "name": "a", "amount": 1.0}\n')
    (folder / "headrace.yml").write_text(_SPEC)
    for number in range(datasets // _CHAIN):
        text, suffix = (_SQL, "sql") if number % 2 else (_PYTHON, "py")
        (folder / "transformations" / f"chain_{number}.{suffix}").write_text(text.format(n=number))


@click.command()
@click.option("--datasets", default="5,100", show_default=True)
@click.option("--runs", default=3, show_default=True)
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(datasets: str, runs: int, quick: bool) -> None:
    """Time of `headrace plan`, and of plans in one process."""
    counts = [5] if quick else [int(part) for part in datasets.split(",")]
    found: list[dict[str, Any]] = []
    for count in counts:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
            write_pipeline(Path(name), count)
            commands = [_command(Path(name)) for _ in range(1 if quick else runs)]
            found.append(
                {"datasets": count, "plan_s": round(quantile(commands, 0.5), 2), **_warm(Path(name))}
            )
    table(
        ("datasets", "headrace plan s", "first in a process s", "again s"),
        [(str(one["datasets"]), one["plan_s"], one["first_s"], one["again_s"]) for one in found],
    )
    keep("planning", {"runs": found})


def _command(folder: Path) -> float:
    began = time.monotonic()
    subprocess.run([*HEADRACE, "plan", "--project", str(folder)], check=True, capture_output=True)
    return time.monotonic() - began


def _warm(folder: Path) -> dict[str, float]:
    """The time of the first plan of a process, which starts Spark, and of the third one."""
    from headrace import Pipeline

    times = []
    with Pipeline.load(folder) as pipeline:
        for _ in range(3):
            began = time.monotonic()
            pipeline.plan()
            times.append(time.monotonic() - began)
    return {"first_s": round(times[0], 2), "again_s": round(times[-1], 2)}


if __name__ == "__main__":
    main()
