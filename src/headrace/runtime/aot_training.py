"""A small run of what pipelines do, recorded for the AOT cache.

`aot.make_later` starts ``python -m headrace.runtime.aot_training FILE`` in the background. With ``--now``
it runs with normal priority.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from headrace.runtime import aot
from headrace.runtime.broker import Broker
from headrace.runtime.fetch import ensure_jars
from headrace.runtime.jars import JarCache, Java, find_java, locked_jars
from headrace.runtime.jvm import build_java_command, choose_heap
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession
from headrace.runtime.session import RunningSpark, SparkRequest, start_spark

_RECORD_END_S = 120.0  # the JVM writes the record when it ends
_CREATE_TIMEOUT_S = 600.0

_BATCHES_S = 6.0  # long enough for a few micro-batches, so that the record contains their code


def main(target: Path) -> None:
    """Makes the cache, unless another process is making it."""
    # The end of the recorded session must not start another process of this kind.
    os.environ[aot.VARIABLE] = "off"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if target.is_file():
            return
        target.with_suffix(f".attempt{time.time_ns()}").touch()
        make(find_java(), ensure_jars("spark"), target)
        for done in target.parent.glob(f"{target.stem}.attempt*"):
            done.unlink(missing_ok=True)


def make(java: Java, jars: Sequence[Path], target: Path) -> None:
    """Records a run, and makes the cache from the record."""
    with tempfile.TemporaryDirectory(prefix=aot.MAKING, dir=target.parent) as name:
        folder = Path(name)
        record = folder / "record"
        running = start_spark(
            SparkRequest("headrace-aot", {}, "local[2]", "1g", folder / "spark.log"),
            extra_options=("-XX:AOTMode=record", f"-XX:AOTConfiguration={record}"),
            end_timeout_s=_RECORD_END_S,
        )
        with running:
            _work(running, folder)
        unfinished = folder / "cache"
        command = [
            *build_java_command(java, jars, heap=choose_heap(2), log_file=folder / "create.log"),
            *("-XX:AOTMode=create", f"-XX:AOTConfiguration={record}", f"-XX:AOTCache={unfinished}"),
        ]
        subprocess.run(command, check=True, timeout=_CREATE_TIMEOUT_S, stdin=subprocess.DEVNULL)
        unfinished.replace(target)
        aot.prune(target)


def _work(running: RunningSpark, folder: Path) -> None:
    """Does what pipelines do: reads and writes tables, and streams files and topics into tables."""
    spark = running.spark
    _tables(spark, folder)
    # This must not download the broker's jars; the user may never need them.
    if not JarCache().missing(locked_jars("broker")):
        broker = Broker(folder / "broker", bound=True)
        try:
            _topic(spark, folder, broker)
        finally:
            broker.stop()


def _tables(spark: SparkSession, folder: Path) -> None:
    path = str(folder / "table")
    rows = spark.range(1000).select(
        F.col("id"), F.concat(F.lit("n"), F.col("id") % 10).alias("name"), F.current_timestamp().alias("at")
    )
    for batch in range(3):
        options = {"txnAppId": "training", "txnVersion": str(batch), "userMetadata": "{}"}
        rows.write.format("delta").mode("append").options(**options).save(path)
    spark.sql(f"CREATE TABLE facts USING delta LOCATION '{path}'")
    totals = spark.sql(
        "SELECT name, count(*) AS n, sum(id) AS total, max(at) AS last FROM facts GROUP BY name"
    )
    for _ in range(2):
        totals.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(
            str(folder / "view")
        )
    spark.read.format("delta").load(path).where("id > 10").orderBy("id").limit(5).collect()
    _stream(
        spark.readStream.format("delta").load(path), folder / "copy", folder / "copy-checkpoint", once=True
    )


def _topic(spark: SparkSession, folder: Path, broker: Broker) -> None:
    from confluent_kafka import Producer

    bootstrap = broker.start()
    broker.create_topic("training", 2)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(2000):
        producer.produce(
            "training", f'{{"id": {number}, "name": "n", "amount": 1.5}}'.encode(), key=str(number)
        )
    producer.flush(30)
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", "training")
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", "500")
        .load()
    )
    parsed = source.select(
        F.from_json(F.col("value").cast("string"), "id LONG, name STRING, amount DOUBLE").alias("row"),
        F.struct("topic", "partition", "offset", "timestamp", "key", "headers").alias("_source"),
    ).select("row.*", "_source")
    _stream(parsed, folder / "bronze", folder / "bronze-checkpoint", once=False)
    _stream(parsed, folder / "silver", folder / "silver-checkpoint", once=True)


def _stream(frame: DataFrame, table: Path, checkpoint: Path, *, once: bool) -> None:
    def write(batch: DataFrame, number: int) -> None:
        options = {"txnAppId": str(table), "txnVersion": str(number), "userMetadata": "{}"}
        batch.write.format("delta").mode("append").options(**options).save(str(table))

    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start() if once else writer.start()
    query.awaitTermination(_CREATE_TIMEOUT_S if once else _BATCHES_S)
    query.stop()


def _step_aside() -> None:
    """Lowers the priority of this process for cores and disk."""
    os.nice(19)
    if sys.platform == "linux":
        with contextlib.suppress(psutil.Error, OSError):
            psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


if __name__ == "__main__":
    if "--now" not in sys.argv:
        _step_aside()
    main(Path(sys.argv[1]))
