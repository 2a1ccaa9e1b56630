"""Time of `headrace status` and `headrace verify` on a demo's result, its broker running."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import click

from bench.processes import HEADRACE, timed
from bench.results import expect, keep, rows_of, table
from headrace.runtime.broker import Broker

AIMS = {"status": 1.0, "verify": 3.0}


@click.command()
@click.option("--records", default=60_000, show_default=True)
@click.option("--times", default=5, show_default=True)
@click.option("--directory", type=click.Path(path_type=Path), help="A demo's result; one is made by default.")
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(records: int, times: int, directory: Path | None, quick: bool) -> None:
    """Seconds of the commands that look at a pipeline."""
    records = 6_000 if quick else records
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        log = Path(name) / "log"
        demo = directory or Path(name) / "demo"
        if directory is None:
            timed([*HEADRACE, "demo", "--records", str(records), "--directory", str(demo)], log)
        broker = Broker(demo / ".demo" / "broker")
        broker.start()
        try:
            environment = {"HEADRACE_BROKER_DIR": str(broker.directory)}
            found = {
                verb: [
                    timed([*HEADRACE, verb, "--project", str(demo)], log, environment) for _ in range(times)
                ]
                for verb in AIMS
            }
        finally:
            broker.stop()
        expect("demo", rows_of(next(demo.glob("lake/tables/*/bronze"))), records)
    rows = [(verb, statistics.median(s), max(s), AIMS[verb]) for verb, s in found.items()]
    table(("command", "median s", "max s", "aim s"), rows)
    keep("tools", {"seconds": found})


if __name__ == "__main__":
    main()
