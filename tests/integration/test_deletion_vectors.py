"""Deletion vectors: those of Spark, as `verify` reads them, and those that let Spark read few rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from headrace.sinks.delta.data_files import find_positions, list_files, position_columns
from headrace.sinks.delta.folding import SharedTable
from headrace.sinks.delta.table import delta_log
from headrace.sinks.delta.table_index import TableIndex
from headrace.sinks.delta.tombstones import Tombstones
from headrace.storage.layout import locate
from headrace.verify.coordinates import DeletedRows
from headrace.verify.delta_log import load_table_log
from headrace.verify.stored import StoredPath

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

    log = load_table_log(StoredPath.at(str(path)))
    deleted = DeletedRows()
    left: list[int] = []
    for file in log.active().values():
        ids = pq.ParquetFile(log.file_path(file.path).open()).read(columns=["id"]).column("id").to_numpy()
        left += np.delete(ids, deleted.load(log, file)).tolist() if file.vector else ids.tolist()
    assert sum(bool(file.vector) for file in log.active().values()) == 6
    assert sorted(left) == [row.id for row in spark.sql(f"SELECT id FROM {name} ORDER BY id").collect()]


def test_only_some_rows_are_read_and_none_that_is_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """Of two files, one with deleted rows; the third file is not read at all."""
    path = tmp_path / "t"
    for first in (0, 1_000, 2_000):
        rows = spark.range(first, first + 1_000, 1, 1)
        rows.write.format("delta").mode("append").option("delta.enableDeletionVectors", "true").save(
            str(path)
        )
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id IN (5, 6)").collect()
    tombstones = Tombstones(path=locate(tmp_path / "none"), keys=("id",))
    index = TableIndex(locate(path), ("id",), tombstones, SharedTable(), 0)
    snapshot = delta_log(spark, locate(path)).startTransaction().snapshot()
    index.files = {one.number: one for one in list_files(spark, snapshot)}
    located = spark.read.format("delta").load(str(path)).where("id IN (7, 9, 1999)")
    found = located.select("id", *position_columns()).toArrow()
    wanted = find_positions(found, index.files.values())
    seven = wanted[found["id"].to_pylist().index(7)]
    # The row before row 7 is deleted.
    asked = np.append(wanted, seven - np.uint64(1))
    read = index.rows_at(spark, snapshot, asked)
    assert sorted(row.id for row in read.collect()) == [7, 9, 1999]
    assert len(read.inputFiles()) == 2
    assert index.rows_at(spark, snapshot, asked[:0]).collect() == []
