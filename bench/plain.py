"""Spark as one starts it without Headrace: PySpark's own launcher, default or an expert's settings.

Both sides use the same Java.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bench.java import make_java_home
from headrace.runtime.fetch import ensure_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Side = Literal["plain", "expert"]

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
EXPERT = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.properties.defaults.checkpointInterval": "100",
    "spark.sql.streaming.noDataProgressEventInterval": "60000",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1280m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
}


def s3_settings() -> dict[str, str]:
    """Hadoop's client of S3 for the server that the environment names, as one sets it up."""
    return {
        "spark.hadoop.fs.s3a.endpoint": os.environ["AWS_ENDPOINT_URL_S3"],
        "spark.hadoop.fs.s3a.endpoint.region": os.environ["AWS_REGION"],
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }


def start_spark(side: Side, *, s3: bool = False) -> SparkSession:
    """A session of PySpark's own making. `s3`: whether it reads and writes in a bucket."""
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(make_java_home(_scratch("java")))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        **DELTA,
        # On the class path, and not in `spark.jars`, which copies them at each start.
        "spark.driver.extraClassPath": os.pathsep.join(
            map(str, ensure_jars("spark", *(("s3",) if s3 else ())))
        ),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(_scratch("warehouse")),
        **(EXPERT if side == "expert" else {}),
        **(s3_settings() if s3 else {}),
    }
    builder = SparkSession.builder.master("local[*]").appName(f"bench-{side}")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read_topic(spark: SparkSession, bootstrap: str, topic: str, limit: int | None = None) -> DataFrame:
    """The topic as a stream."""
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
    )
    return (reader.option("maxOffsetsPerTrigger", limit) if limit else reader).load()


def raw(records: DataFrame) -> DataFrame:
    """The topic as it is: what a bronze table holds."""
    return records.select("key", "value", "topic", "partition", "offset", "timestamp", "headers")


def parsed(records: DataFrame, schema: str) -> DataFrame:
    """Typed columns from JSON, with each record's place."""
    from pyspark.sql import functions as F

    sale = F.from_json(F.col("value").cast("string"), schema).alias("sale")
    return records.select(sale, "topic", "partition", "offset", "timestamp").select(
        "sale.*", "topic", "partition", "offset", "timestamp"
    )


def _scratch(name: str) -> Path:
    """A folder that goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix=f"headrace-bench-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
