"""Columns that are renamed, dropped and widened in tables with rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace.errors import HeadraceError
from headrace.project.pipeline import Pipeline

SPEC = (
    "name: shop\ndatabase: {}\nstorage: ./lake\nlibraries: \n  - file: tables/a.py\n  - file: tables/b.sql\n"
)
BEFORE = """
import headrace as hr

@hr.table
def orders():
    rows = hr.read_files("landing", format="json", schema="id INT, cust STRING, code INT, n INT, old STRING")
    return rows.selectExpr("id", "cust", "struct(code, 1 AS one) AS info", "n", "old", "_source.path AS at")
"""
AFTER = """
import headrace as hr

@hr.table(
    renamed_columns={"cust": "customer", "info.code": "number"}, dropped_columns=["old"],
    table_properties={"delta.enableTypeWidening": "true"},
)
def orders():
    rows = hr.read_files("landing", format="json", schema="id INT, cust STRING, code INT, n LONG, old STRING")
    return rows.selectExpr(
        "id", "cust AS customer", "struct(code AS number, 1 AS one) AS info", "n", "_source.path AS at"
    )
"""
SQL_BEFORE = """
CREATE STREAMING TABLE copies AS SELECT id, cust, n FROM STREAM orders;
CREATE STREAMING TABLE late AS SELECT id, cust, n FROM STREAM orders;
CREATE STREAMING TABLE totals AS SELECT cust, sum(n) AS n FROM STREAM orders GROUP BY cust;
CREATE MATERIALIZED VIEW names AS SELECT DISTINCT cust FROM orders;
CREATE STREAMING TABLE latest;
CREATE FLOW latest AS AUTO CDC INTO latest FROM STREAM(copies) KEYS (cust) SEQUENCE BY id;
"""
SQL_AFTER = """
ALTER TABLE copies RENAME COLUMN cust TO customer;
ALTER STREAMING TABLE copies DROP COLUMNS (n);
CREATE STREAMING TABLE copies AS SELECT id, customer FROM STREAM orders;
CREATE STREAMING TABLE late AS SELECT id, customer AS cust, CAST(n % 1000 AS INT) n FROM STREAM orders;
CREATE STREAMING TABLE totals AS SELECT customer AS cust, sum(n) AS n FROM STREAM orders GROUP BY customer;
CREATE MATERIALIZED VIEW names AS SELECT DISTINCT customer FROM orders;
CREATE STREAMING TABLE latest;
CREATE FLOW latest AS AUTO CDC INTO latest FROM (
    SELECT id, customer AS cust, id AS n FROM STREAM copies) KEYS (cust) SEQUENCE BY id;
"""


def write(root: Path, python: str, sql: str, database: str = "changed") -> None:
    (root / "tables").mkdir(exist_ok=True)
    (root / "headrace.yml").write_text(SPEC.format(database))
    (root / "tables" / "a.py").write_text(python)
    (root / "tables" / "b.sql").write_text(sql)


def land(root: Path, name: str, *numbers: int) -> None:
    (root / "landing").mkdir(exist_ok=True)
    lines = (
        json.dumps({"id": n % 100, "cust": f"c{n % 2}", "code": n % 7, "n": n, "old": "x"}) for n in numbers
    )
    (root / "landing" / name).write_text("".join(f"{line}\n" for line in lines))


def run(root: Path, *datasets: str) -> None:
    with Pipeline.load(root) as pipeline:
        report = pipeline.run(datasets)
        assert report.errors == (), report.errors
        proof = pipeline.verify()
        assert proof.findings == () and proof.proven, proof


def refused(root: Path) -> HeadraceError:
    with Pipeline.load(root) as pipeline:
        (error,) = pipeline.run().errors
    assert error.code == "SCHEMA_MISMATCH"
    return error


def rows(spark: SparkSession, root: Path, name: str, columns: str = "*") -> list[tuple[Any, ...]]:
    table = spark.read.format("delta").load(str(root / "lake" / "tables" / "changed" / name))
    return sorted((tuple(row) for row in table.selectExpr(*columns.split("; ")).collect()), key=str)


def test_columns_are_renamed_dropped_and_widened_and_streams_read_on(
    tmp_path: Path, spark: SparkSession
) -> None:
    write(tmp_path, BEFORE, SQL_BEFORE)
    land(tmp_path, "a.json", 1, 2)
    run(tmp_path)
    land(tmp_path, "b.json", 3)
    # `late` has not read the newest row when the column is renamed.
    run(tmp_path, "orders", "copies", "totals")
    write(tmp_path, AFTER, SQL_AFTER)
    land(tmp_path, "c.json", 30_000_000_004)
    with Pipeline.load(tmp_path) as pipeline:
        plan = pipeline.plan()
        texts = [one.text for one in plan.changes if one.dataset.name == "orders" and one.part != "query"]
    assert texts == [
        "renames the column cust to customer; no file is rewritten",
        "renames the column info.code to number; no file is rewritten",
        "drops the column old; its values can no longer be read",
        "widens the column n from INT to BIGINT; no file is rewritten",
        "sets delta.enableTypeWidening = true; polars and delta-rs cannot read a table with this property",
        "sets delta.columnMapping.mode = name; polars and delta-rs cannot read a table with this property",
    ]
    run(tmp_path)
    assert rows(spark, tmp_path, "orders", "id; customer; info.number; n") == [
        (1, "c1", 1, 1),
        (2, "c0", 2, 2),
        (3, "c1", 3, 3),
        (4, "c0", 30_000_000_004 % 7, 30_000_000_004),
    ]
    copies = [(1, "c1"), (2, "c0"), (3, "c1"), (4, "c0")]
    assert rows(spark, tmp_path, "copies") == copies
    assert rows(spark, tmp_path, "totals") == [("c0", 30_000_000_006), ("c1", 4)]
    assert rows(spark, tmp_path, "names") == [("c0",), ("c1",)]
    assert rows(spark, tmp_path, "latest", "id; cust") == [(3, "c1"), (4, "c0")]
    assert rows(spark, tmp_path, "late", "id; cust") == copies
    with Pipeline.load(tmp_path) as pipeline:
        plan = pipeline.plan()
        assert [one.text for one in plan.changes if one.part == "column"] == []
        assert pipeline.run().errors == ()


def test_a_type_that_is_not_wider_is_refused_with_the_ways_out(tmp_path: Path) -> None:
    write(tmp_path, BEFORE, "", database="refused")
    land(tmp_path, "a.json", 1, 2)
    run(tmp_path)
    properties = '@hr.table(table_properties={"delta.enableTypeWidening": "true"})'
    text = BEFORE.replace('"n"', '"CAST(n AS STRING) AS n"').replace("@hr.table", properties)
    write(tmp_path, text, "", database="refused")
    error = refused(tmp_path)
    assert error.remedies[-1].endswith("headrace full-refresh refused.orders")
    assert not any("enableTypeWidening" in one for one in error.remedies)
    write(tmp_path, BEFORE.replace('"n"', '"CAST(n AS LONG) AS n"'), "", database="refused")
    assert "delta.enableTypeWidening = true" in refused(tmp_path).remedies[1]
