"""The demo's three tables in plain PySpark, once through.

``python -m bench.noop_side BOOTSTRAP TOPIC FOLDER with-gold|without-gold``
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.plain import raw, read_topic, start_spark

SALE = "id LONG, date DATE, name STRING, sales DECIMAL(12, 2)"


def main(bootstrap: str, topic: str, folder: Path, gold: str) -> None:
    from pyspark.sql import functions as F

    spark = start_spark("plain")
    bronze, silver = str(folder / "bronze"), str(folder / "silver")
    _once(raw(read_topic(spark, bootstrap, topic)), bronze, folder / "bronze-checkpoint")
    sale = F.from_json(F.col("value").cast("string"), SALE).alias("sale")
    sales = spark.readStream.format("delta").load(bronze)
    place = ["topic", "partition", "offset", "timestamp"]
    _once(sales.select(sale, *place).select("sale.*", *place), silver, folder / "silver-checkpoint")
    if gold == "with-gold":
        # A plain script does not know whether silver has changed.
        totals = spark.read.format("delta").load(silver).groupBy("date", "name")
        sums = totals.agg(F.sum("sales").alias("sales"), F.count("*").alias("count"))
        sums.write.format("delta").mode("overwrite").save(str(folder / "gold"))
    spark.stop()


def _once(frame: object, table: str, checkpoint: Path) -> None:
    from pyspark.sql import DataFrame

    assert isinstance(frame, DataFrame)
    writer = frame.writeStream.format("delta").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start(table).awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
