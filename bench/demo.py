"""`headrace demo` from outside: how long it takes, and the peak memory of all that it starts."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path

import click

from bench.memory import TreeMemory
from bench.processes import HEADRACE
from bench.results import expect, keep, rows_of, table


@click.command()
@click.option("--records", default=60_000, show_default=True)
@click.option("--rate", default=4_000, show_default=True)
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(records: int, rate: int, quick: bool) -> None:
    """Seconds and peak memory of the demo."""
    records = 12_000 if quick else records
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name) / "demo"
        options = ["--records", str(records), "--rate", str(rate), "--directory", str(folder)]
        began = time.monotonic()
        with (Path(name) / "log").open("w") as log:
            process = subprocess.Popen([*HEADRACE, "demo", *options], stdout=log, stderr=subprocess.STDOUT)
            with TreeMemory(lambda: [process.pid, *_broker(folder)]) as memory:
                process.wait()
        took = time.monotonic() - began
        click.echo((Path(name) / "log").read_text())
        if process.returncode != 0:
            raise SystemExit(f"the demo ended with {process.returncode}")
        expect("demo", rows_of(next(folder.glob("lake/tables/*/bronze"))), records)
    rows = [("seconds", took, 90), ("peak MB", memory.peak_mb, 3072)]
    table(("demo", "measured", "aim"), rows)
    table(("at the peak", "MB"), memory.parts.items())
    keep(
        "demo",
        {"records": records, "seconds": took, "peak_mb": memory.peak_mb} | {"peak_parts": memory.parts},
    )


def _broker(folder: Path) -> list[int]:
    """The broker is nobody's child."""
    try:
        return [int(json.loads((folder / ".headrace" / "broker" / "broker.json").read_text())["pid"])]
    except (OSError, ValueError, KeyError):
        return []


if __name__ == "__main__":
    main()
