"""Deletion vectors that Spark wrote, as `verify` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from headrace.verify.delta_log import load_table_log
from headrace.verify.vectors import DeletedRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_rows_left_are_those_that_spark_reads(spark: SparkSession, tmp_path: Path) -> None:
    """Deleted in two steps, over several files of partitions with unusual names, one file rewritten."""
    path = tmp_path / "a table"
    name = f"delta.`{path}`"
    day = "CASE id % 3 WHEN 0 THEN 'a b' WHEN 1 THEN 'x:y/%20' ELSE 'z' END"
    spark.range(0, 30_000, 1, 2).selectExpr("id", f"{day} AS day").write.format("delta").partitionBy(
        "day"
    ).option("delta.enableDeletionVectors", "true").save(str(path))
    spark.sql(f"DELETE FROM {name} WHERE id % 7 = 0").collect()
    spark.sql(f"DELETE FROM {name} WHERE id BETWEEN 1000 AND 1500 OR id = 29999").collect()
    spark.sql(f"UPDATE {name} SET id = id + 100000 WHERE id = 20000").collect()

    log = load_table_log(path)
    deleted = DeletedRows()
    left: list[int] = []
    for file in log.active().values():
        ids = pq.ParquetFile(log.file_path(file.path)).read(columns=["id"]).column("id").to_numpy()
        left += np.delete(ids, deleted.load(log, file)).tolist() if file.deletion_vector else ids.tolist()
    assert sum(file.deletion_vector is not None for file in log.active().values()) == 6
    assert sorted(left) == [row.id for row in spark.sql(f"SELECT id FROM {name} ORDER BY id").collect()]
