"""Idioms of pipelines that were written for Databricks and for Spark, in a pipeline that runs as it is."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from headrace.project.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

SPEC = """
name: idioms
database: idioms
storage: ./lake
libraries: [{glob: {include: pipeline/**}}]
tables: {lake.archive.*: ./archive}
configuration: {shop.minimum: "5", shop.day: monday}
"""

FILES = {
    "lib/helpers/sessions.py": """
        from pyspark.sql import SparkSession

        def tables(name):
            return SparkSession.builder.appName("x").getOrCreate().readStream.table(name)
    """,
    "shared/money.py": "def cents(column):\n    return column * 100\n",
    "pipeline/common/naming.py": "PREFIX = 'copy_of_'\n",
    "pipeline/a_bronze.py": """
        # Databricks notebook source
        import dlt
        import os
        import sys
        from pyspark.sql.functions import col, expr
        sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "lib")))
        sys.path.insert(0, "./shared")
        from helpers.sessions import tables
        from pipeline.common.naming import PREFIX
        from shared.money import cents

        day = spark.conf.get("shop.day")
        limit = int(spark.conf.get("shop.minimum", "1"))
        sources = spark.read.option("multiLine", "true").json("sources.json").collect()
        kinds = [row.kind for row in spark.sql("SELECT explode(array('large', 'small')) AS kind").collect()]

        for source in sources:
            @dlt.table(name=f"raw_{source['name']}", comment=source.comment)
            def raw():
                rows = spark.readStream.format("json").schema(source.schema).load(source["path"])
                return rows.select("*", col("_metadata.file_name").alias("file"))

        @dlt.expect("an id, always", "id IS NOT NULL")
        @dlt.table(partition_cols=["day"])
        @dlt.expect_or_drop("large enough", f"amount >= {limit}")
        def orders():
            rows = tables("raw_orders")
            typed = [col(name) for name in rows.columns if name != "file"]
            return rows.select(*typed, cents(col("amount")).alias("cents"), expr(f"'{day}' AS day"))

        def sized(kind):
            def query():
                condition = col("amount") > 50 if kind == "large" else col("amount") <= 50
                return dlt.read("orders").filter(condition)
            dlt.table(name=f"{kind}_orders", comment=f"{kind}")(query)

        for kind in kinds:
            sized(kind)

        @dlt.view(name="changes_of_customers")
        def customers_changes():
            return spark.readStream.table("LIVE.raw_customers").select("id", "name", "at", "op")

        dlt.create_streaming_table("customers", cluster_by_auto=True)
        dlt.create_auto_cdc_flow(
            target="customers", source="changes_of_customers", keys=["id"], sequence_by=col("at"),
            apply_as_deletes=expr("op = 'DELETE'"), except_column_list=["op", "at"], stored_as_scd_type="1",
        )

        dlt.create_streaming_live_table(f"{PREFIX}orders", schema="id BIGINT, note STRING")

        @dlt.append_flow(target=f"{PREFIX}orders", comment="x")
        def copies():
            return spark.readStream.table("orders").select("id")

        @dlt.table(private=True, schema="id BIGINT, note STRING")
        def ids():
            return spark.read.table("orders").select("id")

        if __name__ == "__main__":
            is_program = True
        assert is_program
    """,
    "pipeline/b_sinks.py": """
        from delta.tables import DeltaTable
        from pyspark import pipelines as dp
        from pyspark.sql import SparkSession

        spark = SparkSession.active()

        @dp.foreach_batch_sink(name="merged")
        def merged(df, batch_id):
            target = DeltaTable.forName(df.sparkSession, "idioms.totals")
            merge = target.alias("t").merge(df.alias("s"), "t.id = s.id")
            merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

        dp.create_sink("shared", "delta", {"tableName": "lake.archive.orders", "mergeSchema": "true"})
        dp.create_sink(name="exported", format="parquet", options={"path": "export"})

        for sink in ("shared", "exported"):
            @dp.append_flow(target=sink, name=f"to_{sink}")
            def sent():
                return spark.readStream.table("orders").select("id")

        @dp.append_flow(target="merged", name="to_totals")
        def to_totals():
            return spark.readStream.table("orders").select("id", "amount")
    """,
    "pipeline/c_gold.sql": """
        CREATE MATERIALIZED VIEW by_path
        TBLPROPERTIES (quality = gold, pipelines.autoOptimize.zOrderCols = 'id')
        AS SELECT o.id, r.region FROM orders o JOIN parquet.`regions` r ON o.id = r.id
        UNION ALL SELECT id, 'delta' FROM delta.`{plain}`;
    """,
}


def write(root: Path, files: dict[str, str], spec: str) -> None:
    for name, text in {"headrace.yml": spec, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(dedent(text).lstrip())


def lines(folder: Path, *records: dict[str, object]) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "a.json").write_text("".join(json.dumps(one) + "\n" for one in records))


def rows(root: Path, table: str, columns: str) -> list[tuple[object, ...]]:
    folder = deltalake.DeltaTable(root / "lake" / "tables" / "idioms" / table)
    text = f"SELECT {columns} FROM t ORDER BY 1"
    found = pa.table(deltalake.QueryBuilder().register("t", folder).execute(text).read_all())
    return [tuple(row.values()) for row in found.to_pylist()]


ORDERS = [{"id": 1, "amount": 60.0}, {"id": 2, "amount": 6.0}, {"id": 3, "amount": 1.0}]
CUSTOMERS = [
    {"id": 1, "name": "ada", "at": 1, "op": "I"},
    {"id": 2, "name": "bob", "at": 1, "op": "I"},
    {"id": 1, "name": "eve", "at": 2, "op": "U"},
    {"id": 2, "at": 3, "op": "DELETE"},
]
SCHEMAS = {"orders": "id LONG, amount DOUBLE", "customers": "id LONG, name STRING, at LONG, op STRING"}


def test_idioms_run_as_they_are(tmp_path: Path, spark: SparkSession) -> None:
    root, outside = tmp_path / "idioms", tmp_path / "outside"
    gold = FILES["pipeline/c_gold.sql"].replace("{plain}", str(outside / "plain"))
    write(root, {**FILES, "pipeline/c_gold.sql": gold}, SPEC)
    spark.range(99, 100).write.format("delta").save(str(outside / "plain"))
    spark.createDataFrame([(1, "north")], "id LONG, region STRING").write.parquet(str(root / "regions"))
    sources = [
        {"name": name, "path": f"landing/{name}", "schema": schema, "comment": f"all {name}"}
        for name, schema in SCHEMAS.items()
    ]
    (root / "sources.json").write_text(json.dumps(sources))
    lines(root / "landing/orders", *ORDERS)
    lines(root / "landing/customers", *CUSTOMERS)
    spark.sql("CREATE SCHEMA IF NOT EXISTS idioms")
    spark.sql(f"CREATE TABLE idioms.totals (id LONG, amount DOUBLE) USING delta LOCATION '{outside}/totals'")
    with Pipeline.load(root) as pipeline:
        assert {note.text.split(" has no")[0] for note in pipeline.plan().notes} == {
            "dlt.create_streaming_table: `cluster_by_auto`"
        }
        assert pipeline.run().errors == ()
    assert rows(root, "raw_orders", "id, file") == [(1, "a.json"), (2, "a.json"), (3, "a.json")]
    assert rows(root, "orders", "id, cents, day") == [(1, 6000.0, "monday"), (2, 600.0, "monday")]
    assert rows(root, "large_orders", "id") == [(1,)]
    assert rows(root, "small_orders", "id") == [(2,)]
    assert rows(root, "customers", "id, name") == [(1, "eve")]
    assert rows(root, "copy_of_orders", "id, note") == [(1, None), (2, None)]
    assert rows(root, "ids", "id, note") == [(1, None), (2, None)]
    assert rows(root, "by_path", "id, region") == [(1, "north"), (99, "delta")]
    assert spark.read.parquet(str(root / "export")).count() == 2
    assert deltalake.DeltaTable(root / "archive" / "orders").schema().fields[0].name == "id"
    totals = spark.read.format("delta").load(f"{outside}/totals").orderBy("id").collect()
    assert list(map(tuple, totals)) == [(1, 60.0), (2, 6.0)]
