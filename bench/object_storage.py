"""What a storage in a bucket costs, beside plain Structured Streaming on the same server.

The server is versitygw on this disk, and a proxy counts the requests and adds a delay to each: S3 Standard
answers small requests after about 20 ms. Both sides stream the same records from the same broker into one
Delta table, the plain side with Hadoop's client and Delta's own settings for S3.

Prices: S3 Standard, us-east-1, https://aws.amazon.com/s3/pricing/ (requests only, without storage).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest

from bench.latency import watch
from bench.load import PARTITIONS, broker_in, fill
from bench.pipelines import write_pipeline
from bench.processes import HEADRACE, timed
from bench.results import expect, keep, quantile, ratio, table
from headrace.runtime.broker import Broker

# The server and the proxy are those of the tests.
sys.path.append(str(Path(__file__).parents[1] / "tests"))

from s3_proxy import S3Proxy
from versitygw import MISSING, find_versitygw, running_versitygw

SIDES = ("plain", "headrace")
PARTS = ("stream", "commands", "catch-up")
_PER_1000 = {"GET": 0.0004, "HEAD": 0.0004, "DELETE": 0.0, "DELETE-MANY": 0.0, "ABORT": 0.0}
_PER_1000_OTHERS = 0.005  # PUT, COPY, POST, LIST
_DAY_S = 86_400


@click.command()
@click.option("--delay-ms", default=20, show_default=True, help="Added to each request.")
@click.option("--rate", default=500, show_default=True, help="Messages a second.")
@click.option("--seconds", default=180, show_default=True, help="Measured, for each side.")
@click.option("--warm-up", default=60, show_default=True, help="Seconds before the measured ones.")
@click.option("--records", default=2_000_000, show_default=True, help="Of the catch-up; 0: leave it out.")
@click.option("--sides", default=",".join(SIDES), show_default=True)
@click.option("--parts", default=",".join(PARTS), show_default=True, help="The commands need the stream.")
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(
    delay_ms: int, rate: int, seconds: int, warm_up: int, records: int, sides: str, parts: str, quick: bool
) -> None:
    """Requests, dollars, latency and catch-up in object storage."""
    if quick:
        seconds, warm_up, records = 20, 10, min(records, 50_000)
    if find_versitygw() is None:
        click.echo(f"left out: {MISSING}")
        return
    chosen, wanted = sides.split(","), parts.split(",")
    found: dict[str, dict[str, Any]] = {side: {} for side in chosen}
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as name,
        broker_in() as broker,
        running_versitygw(Path(name) / "s3") as server,
        S3Proxy(server.url) as proxy,
        pytest.MonkeyPatch.context() as patch,
    ):
        server.reach(patch, proxy.url)
        proxy.delay_s = delay_ms / 1000
        folder, bucket = Path(name), server.make_bucket()
        disk = folder / "s3" / "data" / bucket
        for side in chosen if "stream" in wanted else ():
            found[side] |= stream(side, broker, folder, bucket, disk, proxy, rate, warm_up, seconds)
            click.echo(f"{side}: {found[side]}")
        has_commands = "headrace" in chosen and {"stream", "commands"} <= {*wanted}
        commands = time_commands(folder, proxy) if has_commands else {}
        if records and "catch-up" in wanted:
            broker.create_topic("catchup", PARTITIONS)
            fill(broker.start(), "catchup", records)
            for side in chosen:
                found[side] |= catch_up(side, broker, folder, bucket, records)
    show(found, commands)
    keep("object_storage", {"delay_ms": delay_ms, "rate": rate, "sides": found, "commands": commands})


def stream(
    side: str,
    broker: Broker,
    folder: Path,
    bucket: str,
    disk: Path,
    proxy: S3Proxy,
    rate: int,
    warm_up: int,
    seconds: int,
) -> dict[str, Any]:
    """The requests, their price and the latency of a stream of small batches."""
    topic, project = f"stream-{side}", folder / side
    broker.create_topic(topic, PARTITIONS)
    if side == "headrace":
        write_pipeline(project, broker.start(), topic, "json", storage=f"s3://{bucket}/headrace")
        command = [*HEADRACE, "run", "--continuous", "--json", "--project", str(project)]
        place = disk / "headrace" / "tables" / "default" / "records"
    else:
        command = [HEADRACE[0], "-m", "bench.stream_side", side, broker.start(), topic]
        command += [f"s3a://{bucket}/{side}/{part}" for part in ("table", "checkpoint")]
        place = disk / side / "table"
    requests: Counter[str] = Counter()
    folders: Counter[str] = Counter()
    latencies, facts = watch(
        side,
        broker,
        topic,
        command,
        place,
        folder / f"{side}.log",
        rate,
        warm_up,
        seconds,
        counting(proxy, requests, folders),
    )
    cost = sum(number * _PER_1000.get(kind, _PER_1000_OTHERS) / 1000 for kind, number in requests.items())
    return {
        "requests": dict(requests),
        "requests_by_folder": dict(folders),
        "batches": facts["batches"],
        "requests_per_batch": ratio(requests.total(), facts["batches"]),
        "dollars_per_day": cost * _DAY_S / seconds,
        "p50_s": quantile(latencies, 0.5),
        "p99_s": quantile(latencies, 0.99),
    }


@contextmanager
def counting(proxy: S3Proxy, requests: Counter[str], folders: Counter[str]) -> Iterator[None]:
    proxy.clear()
    yield
    requests.update(proxy.count())
    # Behind the bucket and the side: tables, checkpoints, events, leases, ..
    folders.update("/".join(one.path.split("/")[2:3]) for one in proxy.requests)


def catch_up(side: str, broker: Broker, folder: Path, bucket: str, records: int) -> dict[str, Any]:
    """The seconds for a whole topic, in a process that has done it once before."""
    work = folder / f"catchup-{side}"
    work.mkdir()
    lake = f"{'s3' if side == 'headrace' else 's3a'}://{bucket}/catchup-{side}"
    command = [sys.executable, "-m", "bench.catchup_side", side, "json", broker.start(), "catchup"]
    with (work / "log").open("wb") as log:
        done = subprocess.run([*command, str(work), lake], stdout=subprocess.PIPE, stderr=log, check=False)
    if done.returncode != 0:
        raise SystemExit((work / "log").read_text()[-4000:])
    one = json.loads(done.stdout.splitlines()[-1])["warm"]
    expect(f"{side}, catch-up", one["rows"], records)
    found = {"catch_up_s": one["seconds"]}
    if side == "headrace":
        verify = [*HEADRACE, "verify", "--project", str(work / "warm")]
        found["verify_s"] = timed(verify, work / "log")
    return found


def time_commands(folder: Path, proxy: S3Proxy) -> dict[str, dict[str, float]]:
    """The seconds and requests of commands, after the stream, each for the second time."""
    project, log, found = ["--project", str(folder / "headrace")], folder / "commands.log", {}
    engine = {"HEADRACE_ENGINE": "on", "HEADRACE_ENGINE_DIR": str(folder / "engines")}
    commands: dict[str, tuple[str, dict[str, str]]] = {
        "status": ("status", {}),
        "events": ("events", {}),
        "plan": ("plan", {}),
        "plan, with an engine": ("plan", engine),
    }
    try:
        for what, (name, environment) in commands.items():
            for _ in range(2):
                proxy.clear()
                seconds = timed([*HEADRACE, name, *project], log, environment)
                found[what] = {"seconds": seconds, "requests": proxy.count().total()}
    finally:
        timed([*HEADRACE, "engine", "stop"], log, engine)
    return found


def show(found: dict[str, dict[str, Any]], commands: dict[str, dict[str, float]]) -> None:
    rows = []
    for side, one in found.items():
        names = ("requests_per_batch", "batches", "dollars_per_day", "p50_s", "p99_s", "catch_up_s")
        rows.append((side, *(one.get(name, float("nan")) for name in names)))
    head = ("side", "requests a batch", "batches", "$ a day", "p50 s", "p99 s", "catch-up s")
    table(head, rows)
    for one in found.values():
        if "verify_s" in one:
            click.echo(f"  headrace verify of the catch-up: {one['verify_s']:.1f} s")
    for name, one in commands.items():
        click.echo(f"  headrace {name}: {one['seconds']:.2f} s, {one['requests']:.0f} requests")


if __name__ == "__main__":
    main()
