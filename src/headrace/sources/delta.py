"""Delta tables as streaming sources: what their options mean, asked of Delta itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def starting_version(spark: SparkSession, table: Path, timestamp: str) -> int:
    """The version that a stream with ``startingTimestamp`` begins with, as Delta tells it.

    Args:
        spark: Any session; the text is read in its time zone, as Delta does.
        table: The table.
        timestamp: The option's value.
    """
    from pyspark.sql import functions as F

    jvm: Any = spark._jvm
    moment = spark.range(1).select(F.unix_micros(F.lit(timestamp).cast("timestamp"))).head()
    assert moment is not None
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(table))
    at = jvm.java.sql.Timestamp(moment[0] // 1000)
    at.setNanos((moment[0] % 1_000_000) * 1000)
    source = getattr(jvm.org.apache.spark.sql.delta.sources, "DeltaSource$")
    found = getattr(source, "MODULE$").getStartingVersionFromTimestamp(
        spark._jsparkSession, log, jvm.scala.Option.empty(), at, True
    )
    return int(found)
