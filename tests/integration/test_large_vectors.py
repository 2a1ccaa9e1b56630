"""Many rows of one large data file are read by their positions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from headrace.increments.changes import find_change, snapshot_at
from headrace.sinks.delta.data_files import list_files, read_files, with_only_rows
from headrace.sinks.delta.key_index import positions
from headrace.storage.layout import locate

ROWS = 600_000


def test_many_rows_of_a_large_file_are_read_and_compared(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    vectors = "USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    spark.sql(f"CREATE TABLE delta.`{path}` {vectors} AS SELECT id FROM range(0, {ROWS}, 1, 1)")
    table = locate(str(path))
    snapshot = snapshot_at(spark, table, 0)
    (file,) = list_files(spark, snapshot)
    wanted = np.arange(0, ROWS, 10, dtype=np.int64)
    numbers = np.full(len(wanted), file.number, dtype=np.int64)
    chosen = with_only_rows(spark, table, {file.number: file}, positions(numbers, wanted))
    found = read_files(spark, table, snapshot, chosen.values())
    assert found.selectExpr("count(*)", "sum(id)").collect() == [(len(wanted), int(wanted.sum()))]
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id % 10 = 3")
    lost = find_change(table, 0, 1).lost(spark)
    assert lost is not None
    assert lost.selectExpr("count(*)", "min(id % 10)", "max(id % 10)").collect() == [(ROWS // 10, 3, 3)]
