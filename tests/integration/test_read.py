"""Tables as Spark makes them, read without Spark: what Spark sees is what a reader gets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headrace as hr
from headrace.errors import TableUnreadableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAPPED = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}


def test_renamed_columns_deleted_rows_and_earlier_versions(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a table"
    table = f"delta.`{path}`"
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in MAPPED.items())
    spark.sql(
        f"CREATE TABLE {table} (id LONG, `odd name` STRING, inner STRUCT<a: INT, `b c`: STRING>, day DATE,"
        f" amount DECIMAL(12, 2), at TIMESTAMP, tags ARRAY<STRING>, counts MAP<STRING, INT>)"
        f" USING delta PARTITIONED BY (day) TBLPROPERTIES ({listed})"
    )
    spark.sql(
        f"INSERT INTO {table} SELECT id, concat('n', id), named_struct('a', cast(id AS INT), 'b c', 'x'),"
        " date_add(date'2026-01-01', cast(id % 2 AS INT)), id * 1.5, timestamp'2026-01-01 00:00:00',"
        " array('t'), map('k', cast(id AS INT)) FROM range(0, 100, 1, 1)"
    )
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN `odd name` TO label")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN inner.a TO renamed")
    spark.sql(f"DELETE FROM {table} WHERE id % 3 = 0")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN at")
    assert any(path.rglob("deletion_vector*")), "the test is about deletion vectors"

    found = hr.read_delta(path)
    columns = ["id", "label", "inner", "day", "amount", "tags", "counts"]
    assert found.column_names == columns
    seen = spark.table(table).selectExpr(*columns[:-1], "map_entries(counts)[0].value AS counts").collect()
    rows = [{**row, "counts": dict(row["counts"])["k"]} for row in found.to_pylist()]
    assert sorted(rows, key=lambda row: row["id"]) == sorted(
        (row.asDict(recursive=True) for row in seen), key=lambda row: row["id"]
    )
    some = hr.read_delta(path, columns=["inner.renamed", "label"], where="inner['renamed'] IN (5, 6, 7)")
    assert sorted(some["inner.renamed"].to_pylist()) == [5, 7], "row 6 is deleted"
    assert hr.read_delta(path, version=1, where="id = 6", columns=["odd name"]).to_pylist() == [
        {"odd name": "n6"}
    ]


def test_a_table_that_the_reader_does_not_know_names_who_does(spark: SparkSession, tmp_path: Path) -> None:
    table = f"delta.`{tmp_path / 't'}`"
    spark.sql(
        f"CREATE TABLE {table} (id INT) USING delta TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    )
    spark.sql(f"INSERT INTO {table} VALUES (1)")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN id TYPE LONG")
    for where in (None, "id = 1"):
        with pytest.raises(TableUnreadableError) as raised:
            hr.read_delta(tmp_path / "t", where=where)
        assert f"headrace sql -e 'SELECT * FROM {table} LIMIT 20'" in raised.value.remedies[0]
