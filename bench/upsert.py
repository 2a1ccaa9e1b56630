"""Changes by key: the time of a batch, beside an append and the usual MERGE in a foreachBatch function.

All sides read the same topic in one JVM: first one record for each key, then batches of random keys, of one
size after the other. The first batch of a size warms up: it builds the index of the keys, and is given apart.
The rate is that of the batches which end within 5 s: a record that waits for such a batch and is in the next
is visible within 10 s. "merge" has Delta's
default settings; "tuned merge" has deletion vectors and the settings of Headrace's session. "with feed": the
table has a change feed.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from confluent_kafka import Producer

from bench.load import PARTITIONS, broker_in
from bench.plain import read_topic
from bench.results import expect, keep, ratio, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "upsert"
SCHEMA = "id LONG, version LONG, customer STRING, amount DOUBLE, note STRING"
_CODE = {
    "append": """\
import headrace as hr


@hr.table
def records():
    return {read}
""",
    "auto cdc": """\
import headrace as hr


@hr.temporary_view
def changes():
    return {read}


hr.create_streaming_table("records", table_properties={{{properties}}})
hr.create_auto_cdc_flow("records", "changes", ["id"], "version"{more})
""",
}
_VISIBLE_S = 5.0
_FEED = "delta.enableChangeDataFeed"
_HISTORY = ', except_column_list=["version"], stored_as_scd_type=2'
_CODE["scd 2"] = _CODE["auto cdc"].replace("{more}", _HISTORY)
_CODE["auto cdc"] = _CODE["auto cdc without index"] = _CODE["auto cdc"].replace("{more}", "")
_CODE |= {f"{side} with feed": _CODE[side] for side in ("auto cdc", "scd 2")}


def headrace_side(
    spark: SparkSession, bootstrap: str, root: Path, side: str, topic: str = TOPIC
) -> Callable[[int, int], list[float]]:
    """A pipeline of Headrace; a call processes what the topic has, and gives the seconds of its batches.

    A call takes the records of a batch, and the number of records that the topic has had.
    """
    from headrace import Pipeline
    from headrace.model.event_forms import Event
    from headrace.model.events import BatchCommitted

    folder = root / re.sub(r"\W+", "_", side)
    folder.mkdir()
    # The catalog of the session is shared by the sides and sizes of a run.
    database = re.sub(r"\W+", "_", f"bench_{root.name}_{side}")
    spec = (
        "name: bench\nstorage: ./lake\nlibraries:\n  - file: records.py\n"
        f"kafka:\n  bootstrap.servers: {bootstrap}\n"
        f"database: {database}\n{'upsert: {index_memory: 0m}' if side.endswith('without index') else ''}\n"
    )
    (folder / "headrace.yml").write_text(spec, encoding="utf-8")

    processed = 0

    def run(records: int, produced: int) -> list[float]:
        nonlocal processed
        read = (
            f'hr.read_kafka("{topic}", format="json", schema="{SCHEMA}", '
            f'options={{"maxOffsetsPerTrigger": "{records}"}})'
        )
        properties = f'"{_FEED}": "true"' if side.endswith("with feed") else ""
        code = _CODE[side].format(read=read, properties=properties)
        (folder / "records.py").write_text(code, encoding="utf-8")
        found: list[float] = []

        def watch(event: Event) -> None:
            nonlocal processed
            if isinstance(event, BatchCommitted):
                found.append(event.duration_s)
                processed += event.rows

        with Pipeline.load(folder) as pipeline:
            result = pipeline.run(emit=watch)
        if result.errors:
            raise SystemExit(str([error.to_dict() for error in result.errors]))
        expect(side, processed, produced)
        return found

    return run


def _merge(spark: SparkSession, bootstrap: str, root: Path, side: str) -> Callable[[int, int], list[float]]:
    """The usual code: a foreachBatch function that keeps the newest record of each key, and merges it."""
    from pyspark.sql import Window, functions as F

    session = spark.newSession()
    folder, tuned = root / re.sub(r"\W+", "_", side), side.startswith("tuned")
    path = str(folder / "table")
    if not tuned:
        for name, value in _DEFAULTS.items():
            session.conf.set(name, value)
    session.sql(
        f"CREATE TABLE delta.`{path}` ({SCHEMA}) USING delta "
        f"TBLPROPERTIES (delta.enableDeletionVectors = {str(tuned).lower()}, "
        f"{_FEED} = {str(side.endswith('with feed')).lower()})"
    )
    newest = Window.partitionBy("id").orderBy(F.desc("version"))
    found: list[float] = []

    def write(rows: DataFrame, _: int) -> None:
        started = time.monotonic()
        rows.withColumn("n", F.row_number().over(newest)).where("n = 1").drop("n").createOrReplaceTempView(
            "s"
        )
        rows.sparkSession.sql(
            f"MERGE INTO delta.`{path}` t USING s ON t.id = s.id "
            "WHEN MATCHED AND s.version > t.version THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        found.append(time.monotonic() - started)

    def run(records: int, produced: int) -> list[float]:
        found.clear()
        topic = read_topic(session, bootstrap, TOPIC, records)
        parsed = topic.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("r")).select("r.*")
        query = (
            parsed.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        ends = json.loads(query.recentProgress[-1].sources[0].endOffset)[TOPIC]
        expect(side, sum(ends.values()), produced)
        return list(found)

    return run


def produce(bootstrap: str, keys: Any, version: int, topic: str = TOPIC) -> int:
    """Write one record for each key; the version of the last one."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "linger.ms": 50,
        "batch.num.messages": 20_000,
        "queue.buffering.max.messages": 500_000,
    }
    producer = Producer(settings)
    for key in keys:
        version += 1
        value = (
            f'{{"id": {key}, "version": {version}, "customer": "customer-{key % 1000}", '
            f'"amount": {version % 9973 / 100}, "note": "changed in version {version}"}}'
        )
        while True:
            try:
                producer.produce(topic, value.encode(), key=str(key).encode())
                break
            except BufferError:
                producer.poll(0.2)
        if version % 5_000 == 0:
            producer.poll(0)
    producer.flush()
    return version


_SIDES = {
    "append": headrace_side,
    "auto cdc": headrace_side,
    "auto cdc without index": headrace_side,
    "auto cdc with feed": headrace_side,
    "scd 2": headrace_side,
    "scd 2 with feed": headrace_side,
    "merge": _merge,
    "tuned merge": _merge,
    "tuned merge with feed": _merge,
}
_DEFAULTS = {"spark.sql.shuffle.partitions": "200", "spark.databricks.delta.snapshotPartitions": "50"}


@click.command()
@click.option("--keys", default=1_000_000, show_default=True)
@click.option(
    "--batch", default="20000", show_default=True, help="Records of a batch; several sizes by commas."
)
@click.option("--batches", default=5, show_default=True)
@click.option("--sides", default=",".join(_SIDES), show_default=True)
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(keys: int, batch: str, batches: int, sides: str, quick: bool) -> None:
    """Seconds of a batch that is applied by key, beside an append and a MERGE of one's own."""
    from headrace.runtime.session import open_spark

    keys, batch, batches = (10_000, "1000", 2) if quick else (keys, batch, batches)
    found: dict[int, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, broker_in() as broker:
        broker.create_topic(TOPIC, PARTITIONS)
        bootstrap = broker.start()
        # All sides have their tables and plans in one JVM; MERGE broadcasts the batch besides.
        running = open_spark("bench", memory="4g", shared=False)
        runs = {side: _SIDES[side](running.spark, bootstrap, Path(name), side) for side in sides.split(",")}
        version = produce(bootstrap, range(keys), 0)
        for side, run in runs.items():
            click.echo(f"load, {side}: {sum(run(keys, version)):.2f} s")
        for size in map(int, batch.split(",")):
            for turn in range(1 + batches):
                chosen = random.Random(turn).sample(range(keys), size)
                version = produce(bootstrap, chosen, version)
            found[size] = {}
            for side, run in runs.items():
                # A batch reads as many records of each partition as it has of them; sizes differ a little.
                found[size][side] = seconds = run(size, version)[: 1 + batches]
                shown = " ".join(f"{one:.2f}" for one in seconds[1:])
                click.echo(f"{size:,} records, {side}: first {seconds[0]:.2f} s, then {shown}")
        running.stop()
    for size, sized in found.items():
        medians = {side: statistics.median(seconds[1:]) for side, seconds in sized.items()}
        base, usual = (medians.get(side, float("nan")) for side in ("append", "merge"))
        rows = [
            (side, sized[side][0], one, ratio(one, base), ratio(usual, one)) for side, one in medians.items()
        ]
        click.echo(f"{size:,} records into {keys:,} keys")
        table(("side", "first batch", "seconds a batch", "it / append", "merge / it"), rows)
    rates = {
        side: max(
            (size / one for size in found if (one := statistics.median(found[size][side][1:])) <= _VISIBLE_S),
            default=0.0,
        )
        for side in sides.split(",")
    }
    click.echo(f"records a second, in batches of at most {_VISIBLE_S:.0f} s")
    table(("side", "records a second"), list(rates.items()))
    keep("upsert", {"keys": keys, "seconds": found, "rates": rates})


if __name__ == "__main__":
    main()
