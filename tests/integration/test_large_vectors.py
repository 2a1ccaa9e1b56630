"""Many rows of one large data file are read by their positions."""

from __future__ import annotations

from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.increments.changes import find_change, snapshot_at
from headrace.sinks.delta.data_files import list_files, read_files, with_only_rows
from headrace.sinks.delta.key_index import positions
from headrace.storage.layout import locate
from landing import Site

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


CURRENT = """
import headrace as hr
from headrace import spark

@hr.temporary_view
def changes():
    return spark.readStream.format("delta").load("SOURCE")

hr.create_streaming_table("current", table_properties={"delta.enableChangeDataFeed": "true"})
hr.create_auto_cdc_flow("current", "changes", ["id"], "at")
"""


@pytest.mark.proof
def test_a_batch_changes_many_rows_of_a_large_file(spark: SparkSession, tmp_path: Path) -> None:
    site, source = Site(tmp_path / "site"), tmp_path / "source"
    site.write(CURRENT.replace("SOURCE", str(source)))
    spark.sql(f"CREATE TABLE delta.`{source}` USING delta AS SELECT id, 0L AS at FROM range({ROWS})")
    site.run_well()
    path = site.storage.table(site.name("current"))
    spark.sql(f"OPTIMIZE delta.`{path}`")
    spark.sql(f"INSERT INTO delta.`{source}` SELECT id * 30, 1L FROM range({ROWS // 30})")
    site.run_well()
    table = deltalake.DeltaTable(path)
    counted = "SELECT count(*) AS n, count(DISTINCT id) AS ids, sum(at) AS changed FROM current"
    found = deltalake.QueryBuilder().register("current", table).execute(counted).read_all()
    assert pa.table(found).to_pylist() == [{"n": ROWS, "ids": ROWS, "changed": ROWS // 30}]
