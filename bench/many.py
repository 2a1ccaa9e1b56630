"""Many flows in one process: visible latency, memory, threads and processor time of 1, 20 and 100.

Each flow has a topic of its own, two partitions and a trickle of records. A record is visible when its
commit file is complete. With `--bad`, a flow fails, hangs in a task for ever, or is slow over each record;
the others' batches are compared with those of the same flows beside a good one, in the same run.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil
from confluent_kafka import Producer

from bench.latency import count_added, load_commits
from bench.load import broker_in, record
from bench.memory import TreeMemory
from bench.processes import HEADRACE, await_, running
from bench.results import expect, keep, quantile, ratio, rows_of, table

_READY_S = 600.0
_SPEC = """\
name: many
storage: ./lake
kafka: {{bootstrap.servers: "{bootstrap}"}}
{trigger}"""
_FLOW = """

@hr.table
def t{number}():
    rows = hr.read_kafka("many-{number}", format="json", schema="id LONG, name STRING")
    place = ["_source.topic", "_source.partition", "_source.offset", "_source.timestamp"]
    return rows.select("id", "name", *place)
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


@dataclass(frozen=True)
class Case:
    """One run: `flows` good flows, and `bad`, the kind of the flow beside them."""

    flows: int
    bad: str | None
    rate: float
    trigger: str
    warm_up: int
    seconds: int


class Trickles:
    """So many records a second into each topic, spread evenly, from one thread."""

    def __init__(self, bootstrap: str, topics: Sequence[str], rate: float) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2, "log_level": 0})
        self._topics, self._rate = topics, rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="trickles")
        self.sent = dict.fromkeys(topics, 0)

    def __enter__(self) -> Trickles:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        chance = random.Random(1)
        began, total = time.monotonic(), 0
        while not self._stop.wait(0.02):
            due = int((time.monotonic() - began) * self._rate * len(self._topics))
            for turn in range(total, due):
                number, index = divmod(turn, len(self._topics))
                topic = self._topics[index]
                self._producer.produce(topic, record(number, chance), key=str(number % 1000).encode())
                self.sent[topic] += 1
            total = max(total, due)
            self._producer.poll(0)
        self._producer.flush()


@click.command()
@click.option("--flows", default="1,20,100", show_default=True)
@click.option("--bad", default="", help=f"Kinds of a flow beside the good ones: {','.join(_BAD)}.")
@click.option("--beside", default=19, show_default=True, help="Good flows beside a bad one.")
@click.option("--rate", default=10.0, show_default=True, help="Messages a second for each topic.")
@click.option("--trigger", default="", help="The flows' trigger, for example `2 seconds`.")
@click.option("--warm-up", default=60, show_default=True)
@click.option("--seconds", default=60, show_default=True)
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(
    flows: str, bad: str, beside: int, rate: float, trigger: str, warm_up: int, seconds: int, quick: bool
) -> None:
    """Visible latency, memory and threads of many flows."""
    if quick:
        flows, beside, warm_up, seconds = "1,3", 2, 10, 15
    shared = (rate, trigger, warm_up, seconds)
    cases = [Case(int(part), None, *shared) for part in flows.split(",") if part]
    cases += [Case(beside, kind, *shared) for kind in bad.split(",") if kind]
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        for case in cases:
            with broker_in() as broker:
                for number in range(case.flows + 1):
                    broker.create_topic(f"many-{number}", 2)
                bootstrap, pid = broker.start(), broker.status().pid or 0
                one = measure(Path(name) / f"{case.flows}-{case.bad}", bootstrap, pid, case)
            click.echo(f"{case.flows} flows{f' and one {case.bad}' if case.bad else ''}: {one}")
            found.append({"flows": case.flows, "bad": case.bad, **one})
    base = next((one["p50_s"] for one in found if one["bad"] == "good"), float("nan"))
    facts = ("latency_p50_s", "latency_p99_s", "p50_s", "p95_s", "peak_mb", "threads", "connections")
    table(
        ("flows", "beside", *facts, "CPU ms a batch", "batches", "of good"),
        [
            (
                str(one["flows"]),
                one["bad"] or "",
                *(one[fact] for fact in facts),
                one["cpu_ms_a_batch"],
                one["batches"],
                ratio(one["p50_s"], base) if one["bad"] else float("nan"),
            )
            for one in found
        ],
    )
    keep("many", {"rate": rate, "trigger": trigger, "seconds": seconds, "runs": found})


def measure(folder: Path, bootstrap: str, broker_pid: int, case: Case) -> dict[str, Any]:
    """Latencies and batches of the good flows; memory, threads and connections of the processes."""
    (folder / "transformations").mkdir(parents=True)
    trigger = f"trigger: {case.trigger}\n" if case.trigger else ""
    (folder / "headrace.yml").write_text(_SPEC.format(bootstrap=bootstrap, trigger=trigger))
    text = "import time\n\nimport headrace as hr\nfrom pyspark.sql import functions as F\n"
    text += "".join(_FLOW.format(number=number) for number in range(1, case.flows + 1))
    text += _BAD[case.bad] if case.bad else ""
    (folder / "transformations" / "many.py").write_text(text)
    command = [*HEADRACE, "run", "--continuous", "--json", "--project", str(folder)]
    topics = [f"many-{number}" for number in range(case.flows + 1)]
    good = [f"t{number}" for number in range(1, case.flows + 1)]
    tables = {flow: folder / "lake" / "tables" / "default" / flow for flow in good}
    with ExitStack() as stack:
        process = stack.enter_context(running(command, folder.parent / f"{folder.name}.log"))
        memory = stack.enter_context(TreeMemory(lambda: [process.pid]))
        load = stack.enter_context(Trickles(bootstrap, topics, case.rate))
        await_(lambda: all(count_added(one) for one in tables.values()), _READY_S, "a batch of each", process)
        time.sleep(case.warm_up)
        began, before = time.time(), _used([process.pid, broker_pid])
        time.sleep(case.seconds)
        ended, after = time.time(), _used([process.pid, broker_pid])
        facts = _shape(process.pid, int(bootstrap.rpartition(":")[2]))
        load.__exit__()
        expected = {flow: load.sent[f"many-{flow[1:]}"] for flow in good}
        await_(
            lambda: all(count_added(tables[flow]) >= records for flow, records in expected.items()),
            _READY_S,
            "the last records",
            process,
        )
    for flow, records in expected.items():
        expect(flow, rows_of(tables[flow]), records)
    commits = [commit for place in tables.values() for commit in load_commits(place)]
    latencies = [c.at - moment for c in commits for moment in c.produced if began <= moment < ended]
    measured = [took for flow, at, took in batches(folder) if flow in good and began <= at < ended]
    return {
        "latency_p50_s": round(quantile(latencies, 0.5), 3),
        "latency_p99_s": round(quantile(latencies, 0.99), 3),
        "p50_s": round(quantile(measured, 0.5), 3),
        "p95_s": round(quantile(measured, 0.95), 3),
        "batches": len(measured),
        "cpu": {kind: round(seconds - before[kind], 1) for kind, seconds in after.items()},
        "cpu_ms_a_batch": round(1000 * (sum(after.values()) - sum(before.values())) / max(1, len(measured))),
        "peak_mb": memory.peak_mb,
        "parts": memory.parts,
        **facts,
    }


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _used(pids: Sequence[int]) -> dict[str, float]:
    """The processor seconds so far of Java and Python below the first process, and of the other ones."""
    found = {"java": 0.0, "python": 0.0, "broker": 0.0}
    for number, pid in enumerate(pids):
        for process in _tree(pid):
            with suppress(psutil.NoSuchProcess):
                kind = "broker" if number else "java" if "java" in process.name() else "python"
                found[kind] += sum(process.cpu_times()[:4])
    return found


def _shape(pid: int, port: int) -> dict[str, int]:
    """The threads of the processes, and their connections to the broker."""
    found = {"threads": 0, "connections": 0}
    for process in _tree(pid):
        with suppress(psutil.NoSuchProcess):
            found["threads"] += process.num_threads()
            remotes = [one.raddr.port for one in process.net_connections() if one.raddr]
            found["connections"] += remotes.count(port)
    return found


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
