"""Streams over tables whose rows can change: materialized views, and tables that changes by key update."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import deltalake
import pyarrow as pa
import pytest

from headrace.project.pipeline import Pipeline

pytestmark = pytest.mark.usefixtures("spark")

SPEC = "name: shop\nstorage: ./lake\nlibraries: [{glob: {include: transformations/**}}]\n"

FILES = {
    "views.py": """
        import headrace as hr
        from headrace import spark

        @hr.materialized_view
        def large():
            orders = spark.read.schema("id INT, amount DOUBLE").json("orders").where("amount > 5")
            # Spark knows that the array and the struct have no NULLs, and Delta does not keep that.
            return orders.selectExpr("*", "array('a') AS tags", "struct(1 AS part) AS place")

        @hr.temporary_view
        def changes():
            return spark.readStream.schema("id INT, amount DOUBLE").json("orders")

        hr.create_streaming_table("latest")
        hr.create_auto_cdc_flow(target="latest", source="changes", keys=["id"], sequence_by="amount")

        @hr.table
        def by_headrace():
            return spark.readStream.table("large")
    """,
    "spark.py": """
        from pyspark import pipelines as dp
        from pyspark.sql import SparkSession

        spark = SparkSession.active()

        @dp.table
        def by_spark():
            return spark.readStream.table("large")
    """,
    "live.py": """
        import dlt

        @dlt.table
        def by_live_tables():
            return dlt.read_stream("large")

        @dlt.table
        def inserts():
            return spark.readStream.option("skipChangeCommits", "true").table("LIVE.latest")
    """,
    "live.sql": "CREATE OR REFRESH STREAMING TABLE by_sql AS SELECT * FROM STREAM(large);\n",
}
STREAMS = ("by_headrace", "by_spark", "by_live_tables", "by_sql")


def land(root: Path, name: str, *records: tuple[int, float]) -> None:
    (root / "orders").mkdir(exist_ok=True)
    lines = [json.dumps({"id": key, "amount": amount}) + "\n" for key, amount in records]
    (root / "orders" / name).write_text("".join(lines))


def rows(root: Path, table: str) -> list[tuple[int, float]]:
    folder = deltalake.DeltaTable(root / "lake" / "tables" / "default" / table)
    found = deltalake.QueryBuilder().register("t", folder).execute("SELECT id, amount FROM t").read_all()
    return sorted((row["id"], row["amount"]) for row in pa.table(found).to_pylist())


def test_streams_read_a_view_while_it_grows_and_pass_over_changes_by_key(tmp_path: Path) -> None:
    (tmp_path / "headrace.yml").write_text(SPEC)
    (tmp_path / "transformations").mkdir()
    for name, text in FILES.items():
        (tmp_path / "transformations" / name).write_text(dedent(text))

    land(tmp_path, "a.json", (1, 10.0), (2, 3.0))
    with Pipeline.load(tmp_path) as pipeline:
        assert [one.text for one in pipeline.plan().notes if "continues while refreshes only add" in one.text]
        assert pipeline.run().errors == ()

        land(tmp_path, "b.json", (3, 10.0), (4, 7.0))
        assert pipeline.run().errors == ()
        # A refresh without new rows leaves the streams as they are.
        assert pipeline.run().errors == ()
        for name in ("large", *STREAMS):
            assert rows(tmp_path, name) == [(1, 10.0), (3, 10.0), (4, 7.0)]
        assert not pipeline.verify().findings

        # One commit changes a key: the stream of the inserts passes over all of it, as Delta's does.
        land(tmp_path, "c.json", (2, 4.0), (5, 1.0))
        assert pipeline.run().errors == ()
        assert rows(tmp_path, "latest") == [(1, 10.0), (2, 4.0), (3, 10.0), (4, 7.0), (5, 1.0)]
        assert rows(tmp_path, "inserts") == [(1, 10.0), (2, 3.0), (3, 10.0), (4, 7.0)]
        assert not pipeline.verify().findings

        # The view loses a row.
        land(tmp_path, "b.json", (3, 10.0))
        errors = pipeline.run().errors
        assert {error.code for error in errors} == {"UPSTREAM_REWRITTEN"}
        assert {error.params["name"] for error in errors} == set(STREAMS)
        assert "materialized view large" in errors[0].summary
        assert rows(tmp_path, "large") == [(1, 10.0), (3, 10.0)]
        assert rows(tmp_path, "by_sql") == [(1, 10.0), (3, 10.0), (4, 7.0)]
