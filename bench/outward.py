"""Rows of a table into a cache, a search index, a web hook and a database: rows a second, and latency.

A table follows a topic by AUTO CDC, and each sink follows the table by its change feed; the web hook follows
the topic. "rows a second": of the large batches of a sink, without those of the table. "latency": from a
record in the topic until a reader of the system finds its row, in a continuous run, one record after the
other. All servers are on the loopback interface of this machine.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench.load import PARTITIONS, broker_in
from bench.results import keep, quantile, table
from bench.sinks import postgres_in
from bench.upsert import SCHEMA, TOPIC, produce

# The servers are those of the tests.
sys.path.append(str(Path(__file__).parents[1] / "tests"))

import psycopg
import redis

from hook_server import running_hook
from opensearch_server import missing_reason, running_opensearch
from redis_server import running_redis

_PIPELINE = """\
import headrace as hr


@hr.temporary_view
def changes():
    return hr.read_kafka("{topic}", format="json", schema="{schema}",
                         options={{"maxOffsetsPerTrigger": "{records}"}})


hr.create_streaming_table("current")
hr.create_auto_cdc_flow("current", "changes", ["id"], "version")
hr.create_sink("served", "{format}", {options})


@hr.append_flow(target="served", name="served")
def serve():
    return {source}
"""
_FEED, _TOPIC = 'hr.read_changes("current")', 'spark.readStream.table("changes")'
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class System:
    """A system: its format, the options of a sink, and whether a reader finds a version of the key 0."""

    format: str
    options: dict[str, str]
    finds: Callable[[int], bool]
    source: str = _FEED


@contextmanager
def _redis(folder: Path) -> Iterator[System]:
    with (
        running_redis(folder) as server,
        redis.Redis.from_url(server.address, decode_responses=True) as connection,
    ):

        def finds(version: int) -> bool:
            return f'"version":{version},' in str(connection.get("row:0"))

        yield System("redis", {"url": server.address, "prefix": "row:", "keys": "id"}, finds)


@contextmanager
def _opensearch(folder: Path) -> Iterator[System]:
    if (reason := missing_reason()) is not None:
        raise click.ClickException(reason)
    with running_opensearch(folder) as server:

        def finds(version: int) -> bool:
            status, found = server.try_call("GET", "rows-headrace-1/_doc/0")
            return status == 200 and bool(found["_source"]["version"] == version)

        yield System("opensearch", {"url": server.url, "index": "rows", "keys": "id"}, finds)


@contextmanager
def _http(folder: Path) -> Iterator[System]:
    with running_hook() as hook:

        def finds(version: int) -> bool:
            return any(f'"version":{version},'.encode() in one.body for one in hook.taken[-1000:])

        yield System("http", {"url": hook.url, "rows": "100"}, finds, _TOPIC)


@contextmanager
def _postgres(folder: Path) -> Iterator[System]:
    with postgres_in(folder) as address, psycopg.connect(address, autocommit=True) as connection:

        def finds(version: int) -> bool:
            found = connection.execute("SELECT to_regclass('served')").fetchone()
            asked = "SELECT 1 FROM served WHERE id = 0 AND version = %s"
            return found != (None,) and connection.execute(asked, [version]).fetchone() is not None

        options = {"url": address, "table": "served", "keys": "id", "create": "true"}
        yield System("postgres", options, finds)


_SYSTEMS = {"redis": _redis, "opensearch": _opensearch, "http": _http, "postgres": _postgres}


def measure(system: System, folder: Path, bootstrap: str, records: int, turns: int) -> dict[str, Any]:
    from headrace import Pipeline
    from headrace.model.events import BatchCommitted
    from headrace.run.stop import StopSignal

    (folder / "headrace.yml").write_text(
        "name: bench\nstorage: ./lake\nlibraries:\n  - file: served.py\n"
        f"kafka:\n  bootstrap.servers: {bootstrap}\ndatabase: bench_{system.format}\n",
        encoding="utf-8",
    )
    topic = f"{TOPIC}-{system.format}"
    code = _PIPELINE.format(topic=topic, schema=SCHEMA, records=records, **vars(system))
    (folder / "served.py").write_text(code, encoding="utf-8")
    batches: list[tuple[int, float]] = []

    def watch(event: Any) -> None:
        if isinstance(event, BatchCommitted) and event.flow == "served" and event.rows:
            batches.append((event.rows, event.duration_s or 0.0))

    version = 0
    for turn in range(1 + turns):
        if turn == 1:
            batches.clear()  # the first one warms up
        version = produce(bootstrap, range(records), version, topic)
        with Pipeline.load(folder) as pipeline:
            result = pipeline.run(emit=watch)
        if result.errors:
            raise SystemExit(str([error.to_dict() for error in result.errors]))
    latencies: list[float] = []
    stop = StopSignal()
    with Pipeline.load(folder) as pipeline:
        running = threading.Thread(target=lambda: pipeline.run(continuous=True, stop=stop))
        running.start()
        for _ in range(10 + 10 * turns):
            version = produce(bootstrap, [0], version, topic)
            started = time.monotonic()
            while not system.finds(version):
                if time.monotonic() - started > _TIMEOUT_S:
                    raise SystemExit(f"{system.format} has no row of version {version}")
                time.sleep(0.01)
            latencies.append(time.monotonic() - started)
        stop.request()
        running.join(_TIMEOUT_S)
    return {"batches": batches, "latencies": latencies[10:]}


@click.command()
@click.option("--records", default=20_000, show_default=True, help="Records of a batch.")
@click.option("--turns", default=4, show_default=True)
@click.option("--systems", default=",".join(_SYSTEMS), show_default=True)
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(records: int, turns: int, systems: str, quick: bool) -> None:
    """Rows a second and end-to-end latency of sinks in other systems."""
    from headrace.runtime.session import open_spark

    records, turns = (1_000, 1) if quick else (records, turns)
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, broker_in() as broker:
        Path(name).chmod(0o755)
        bootstrap = broker.start()
        running = open_spark("bench", memory="2g", shared=False)
        for one in systems.split(","):
            broker.create_topic(f"{TOPIC}-{one}", PARTITIONS)
            server, folder = Path(name) / f"{one}-server", Path(name) / one
            for each in (server, folder):
                each.mkdir()
            with _SYSTEMS[one](server) as system:
                found[one] = measure(system, folder, bootstrap, records, turns)
        running.stop()
    rows = []
    for one, measured in found.items():
        rows_in = sum(one for one, _ in measured["batches"])
        spent_s = sum(one for _, one in measured["batches"])
        latencies = sorted(measured["latencies"])
        seconds = spent_s / len(measured["batches"])
        rows.append((one, seconds, rows_in / spent_s, quantile(latencies, 0.5), quantile(latencies, 0.9)))
    click.echo(f"batches of {records:,} records")
    table(("system", "seconds a batch", "rows a second", "latency p50, s", "p90, s"), rows)
    keep("outward", {"records": records, **found})


if __name__ == "__main__":
    main()
