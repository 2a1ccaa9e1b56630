"""Many flows in one process: memory and batch time of 1, 5 and 20, and what one bad flow does to the others.

Each flow has a topic of its own, two partitions and a trickle of records. A bad flow fails, hangs in a
task for ever, or is slow over each record; the others' batches are compared with those of the same
flows beside a good one, in the same run.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from bench.load import Trickle, broker_in
from bench.memory import TreeMemory
from bench.processes import HEADRACE, await_, running
from bench.results import expect, keep, quantile, ratio, rows_of, table

_READY_S = 300.0
_SPEC = """\
name: many
storage: ./lake
kafka: {{bootstrap.servers: "{bootstrap}"}}
trigger: {trigger}
"""
_FLOW = """

@hr.table
def t{number}():
    rows = hr.read_kafka("many-{number}", format="json", schema="id LONG, name STRING")
    return rows.select("id", "name", "_source.topic", "_source.partition", "_source.offset")
"""
_BAD = {
    "good": "\n\n@hr.table\ndef bad():\n    return hr.read_kafka('many-0').select('value')\n",
    "failing": (
        "\n\n@hr.table\ndef bad():\n"
        "    return hr.read_kafka('many-0').select(F.expr('string(raise_error(value))').alias('x'))\n"
    ),
    "hanging": (
        "\n\n@F.udf('string')\ndef hang(value):\n    time.sleep(100_000)\n"
        "\n\n@hr.table\ndef bad():\n    return hr.read_kafka('many-0').select(hang('value').alias('x'))\n"
    ),
    "slow": (
        "\n\n@F.udf('string')\ndef slow(value):\n    time.sleep(0.2)\n    return 'x'\n"
        "\n\n@hr.table\ndef bad():\n    return hr.read_kafka('many-0').select(slow('value').alias('x'))\n"
    ),
}


@click.command()
@click.option("--flows", default="1,5,20", show_default=True)
@click.option("--bad", default=",".join(_BAD), show_default=True, help="Beside the largest number of flows.")
@click.option("--rate", default=20, show_default=True, help="Messages a second for each topic.")
@click.option("--trigger", default="2 seconds", show_default=True)
@click.option("--warm-up", default=60, show_default=True)
@click.option("--seconds", default=60, show_default=True)
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(flows: str, bad: str, rate: int, trigger: str, warm_up: int, seconds: int, quick: bool) -> None:
    """Memory and batch time of many flows."""
    if quick:
        flows, warm_up, seconds = "1,3", 10, 15
    counts = [int(part) for part in flows.split(",")]
    produced: Counter[int] = Counter()
    found: list[dict[str, Any]] = []
    cases = [(count, None) for count in counts] + [(max(counts) - 1, kind) for kind in bad.split(",")]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, broker_in() as broker:
        for number in range(max(counts) + 1):
            broker.create_topic(f"many-{number}", 2)
        bootstrap = broker.start()
        for count, kind in cases:
            folder = Path(name) / f"{count}-{kind}"
            one = measure(folder, bootstrap, count, kind, rate, trigger, warm_up, seconds, produced)
            click.echo(f"{count} flows{f' and one {kind}' if kind else ''}: {one}")
            found.append({"flows": count, "bad": kind, **one})
    base = next((one["p50_s"] for one in found if one["bad"] == "good"), float("nan"))
    table(
        ("flows", "beside", "batch p50 s", "batch p95 s", "of good", "peak MB", "batches"),
        [
            (
                str(one["flows"]),
                one["bad"] or "",
                one["p50_s"],
                one["p95_s"],
                ratio(one["p50_s"], base) if one["bad"] else float("nan"),
                one["peak_mb"],
                one["batches"],
            )
            for one in found
        ],
    )
    keep("many", {"rate": rate, "trigger": trigger, "seconds": seconds, "runs": found})


def measure(
    folder: Path,
    bootstrap: str,
    count: int,
    bad: str | None,
    rate: int,
    trigger: str,
    warm_up: int,
    seconds: int,
    produced: Counter[int],
) -> dict[str, Any]:
    """Batches of the good flows, and the memory of the pipeline's processes.

    ``produced`` counts the records of each topic, which all cases read from the start.
    """
    (folder / "transformations").mkdir(parents=True)
    (folder / "headrace.yml").write_text(_SPEC.format(bootstrap=bootstrap, trigger=trigger))
    text = "import time\n\nimport headrace as hr\nfrom pyspark.sql import functions as F\n"
    text += "".join(_FLOW.format(number=number) for number in range(1, count + 1))
    text += _BAD[bad] if bad else ""
    (folder / "transformations" / "many.py").write_text(text)
    command = [*HEADRACE, "run", "--continuous", "--json", "--project", str(folder)]
    with ExitStack() as stack:
        trickles = (Trickle(bootstrap, f"many-{number}", rate) for number in range(count + 1))
        loads = [stack.enter_context(trickle) for trickle in trickles]
        process = stack.enter_context(running(command, folder.parent / f"{folder.name}.log"))
        memory = stack.enter_context(TreeMemory(lambda: [process.pid]))
        good = {f"t{number}" for number in range(1, count + 1)}
        await_(lambda: {flow for flow, *_ in batches(folder)} >= good, _READY_S, "a batch of each", process)
        time.sleep(warm_up)
        began = time.time()
        time.sleep(seconds)
        for number, load in enumerate(loads):
            load.stop()
            produced[number] += load.sent
        expected = {f"t{number}": produced[number] for number in range(1, count + 1)}
        tables = {flow: folder / "lake" / "tables" / "default" / flow for flow in expected}
        await_(
            lambda: all(rows_of(tables[flow]) >= records for flow, records in expected.items()),
            _READY_S,
            "the last records",
            process,
        )
    for flow, records in expected.items():
        expect(flow, rows_of(tables[flow]), records)
    measured = [took for flow, at, took in batches(folder) if flow in good and at >= began]
    return {
        "p50_s": round(quantile(measured, 0.5), 3),
        "p95_s": round(quantile(measured, 0.95), 3),
        "batches": len(measured),
        "peak_mb": memory.peak_mb,
    }


def batches(folder: Path) -> list[tuple[str, float, float]]:
    """Flow, moment and seconds of each committed batch."""
    from headrace import Pipeline

    with Pipeline.load(folder) as pipeline:
        committed = [one for one in pipeline.events() if one.level == "METRICS"]
    return [
        (str(one.flow), one.at.timestamp(), one.details["metrics"]["duration_ms"] / 1000)
        for one in committed
        if one.details["metrics"]["num_output_rows"]
    ]


if __name__ == "__main__":
    main()
