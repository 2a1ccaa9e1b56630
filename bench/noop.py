"""Time from the command to its end on a pipeline with nothing new: `headrace run` and a plain script.

Both have made the demo's three tables from the same topic before. The plain script recomputes gold,
for it does not know better; a second figure leaves gold out of it altogether.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import click

from bench.load import PARTITIONS, broker_in
from bench.processes import HEADRACE, timed
from bench.results import expect, keep, ratio, rows_of, table
from headrace.model.kafka_settings import KafkaConnection
from headrace.project.demo.producer import SalesProducer
from headrace.project.template.files import template_files


@click.command()
@click.option("--records", default=60_000, show_default=True)
@click.option("--times", default=5, show_default=True)
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(records: int, times: int, quick: bool) -> None:
    """Seconds of a run that has nothing to do."""
    if quick:
        records, times = 2_000, 1
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, broker_in() as broker:
        folder = Path(name)
        broker.create_topic("sales", PARTITIONS)
        bootstrap = broker.start()
        connection = KafkaConnection({"bootstrap.servers": bootstrap})
        producer = SalesProducer(connection, "sales", records=records, rate=1_000_000)
        producer.start()
        while not producer.done:
            time.sleep(0.1)
        for place, text in template_files("noop").items():
            file = folder / "pipeline" / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        plain = [sys.executable, "-m", "bench.noop_side", bootstrap, "sales", str(folder / "plain")]
        commands = {
            "headrace": [*HEADRACE, "run", "--project", str(folder / "pipeline")],
            "plain": [*plain, "with-gold"],
            "plain without gold": [*plain, "without-gold"],
        }
        environment = {"HEADRACE_BROKER_DIR": str(broker.directory), "HEADRACE_AOT": "use"}
        first = {side: timed(commands[side], folder / "log", environment) for side in ("headrace", "plain")}
        found: dict[str, list[float]] = {side: [] for side in commands}
        for _ in range(times):
            for side, command in commands.items():
                found[side].append(timed(command, folder / "log", environment))
        expect("headrace", rows_of(next((folder / "pipeline" / "lake" / "tables").glob("*/bronze"))), records)
        expect("plain", rows_of(folder / "plain" / "silver"), records)
    ours = statistics.median(found["headrace"])
    rows = [
        (side, statistics.median(s), min(s), ratio(ours, statistics.median(s))) for side, s in found.items()
    ]
    table(("nothing new", "median s", "min s", "Headrace / it"), rows)
    keep("noop", {"records": records, "first_s": first, "seconds": found})


if __name__ == "__main__":
    main()
