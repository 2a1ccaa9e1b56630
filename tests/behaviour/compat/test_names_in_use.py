"""Names that ``USE`` sets, names like those of attributes, paths of tables, and aggregates of one row."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from headrace.errors import ActionInQueryError, FeatureUnsupportedError
from headrace.project.pipeline import Pipeline

pytestmark = pytest.mark.usefixtures("spark")

SPEC = """
name: used
database: used
storage: ./lake
libraries: [{glob: {include: pipeline/**}}]
paths: {/mnt/gold/totals: ./lake/tables/bronze__used_sales/totals}
"""
FILES = {
    "a_bronze.py": """
        from pyspark import pipelines as dp
        from pyspark.sql import functions as F

        @dp.table
        def columns():
            return spark.readStream.schema("id BIGINT, count BIGINT").json("landing")

        spark.sql("USE CATALOG bronze")
        spark.catalog.setCurrentDatabase("used_sales")

        @dp.table(path="/mnt/elsewhere/count")
        def count():
            return spark.readStream.table("spark_catalog.used.columns")

        @dp.table(name="totals", path="/mnt/gold/totals")
        def filter():
            rows = spark.readStream.table("count")
            return rows.groupBy().agg(F.max("id").alias("newest"), F.sum("count").alias("count"))

        @dp.materialized_view(name="other.schema")
        def items():
            return spark.sql("SELECT count.* FROM count WHERE count.id > 0")

        @dp.temporary_view
        def values():
            return spark.readStream.table("count")

        dp.create_streaming_table("keys")
        dp.create_auto_cdc_flow(target="keys", source="count", keys=["id"], sequence_by="count")
    """,
    "b_silver.py": """
        import dlt

        @dlt.table
        def by_path():
            return spark.read.format("delta").load("/mnt/gold/totals")

        @dlt.table
        def records():
            return dlt.read_stream("LIVE.columns").groupBy().count()
    """,
    "c_gold.sql": """
        CREATE STREAMING TABLE select_sums AS
        SELECT sum(columns.count) AS total, count(*) AS n FROM STREAM columns;
        CREATE OR REFRESH STREAMING LIVE TABLE live_sums AS SELECT sum(id) total FROM STREAM(LIVE.columns);
    """,
}


def write(root: Path, files: dict[str, str]) -> None:
    (root / "headrace.yml").write_text(SPEC)
    (root / "landing").mkdir()
    (root / "pipeline").mkdir()
    for name, text in files.items():
        (root / "pipeline" / name).write_text(dedent(text))


def rows(root: Path, name: str) -> list[tuple[Any, ...]]:
    table = deltalake.DeltaTable(root / "lake" / "tables" / name)
    found = deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()
    return sorted(tuple(one.values())[:2] for one in pa.table(found).to_pylist())


def test_a_file_uses_another_schema_and_an_aggregate_of_a_stream_is_one_row(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    (tmp_path / "landing" / "a.json").write_text('{"id": 1, "count": 2}\n{"id": 2, "count": 3}\n')
    with Pipeline.load(tmp_path) as pipeline:
        plan = pipeline.plan()
        assert [(one.level, one.location.line) for one in plan.notes if "/mnt/" in one.text] == [
            ("warning", 12),
            ("note", 6),
        ]
        assert pipeline.run().errors == ()
    assert rows(tmp_path, "bronze__used_sales/totals") == rows(tmp_path, "used/by_path") == [(2, 5)]
    assert rows(tmp_path, "used/select_sums") == [(5, 2)]
    (tmp_path / "landing" / "b.json").write_text('{"id": 7, "count": 10}\n')
    with Pipeline.load(tmp_path) as pipeline:
        assert pipeline.run().errors == ()
        proof = pipeline.verify()
        assert proof.findings == () and proof.proven, proof
    assert rows(tmp_path, "bronze__used_sales/totals") == rows(tmp_path, "used/by_path") == [(7, 15)]
    assert rows(tmp_path, "used/select_sums") == [(15, 3)]
    assert rows(tmp_path, "used/live_sums") == [(10,)] and rows(tmp_path, "used/records") == [(3,)]
    same = [(1, 2), (2, 3), (7, 10)]
    for name in (
        "used/columns",
        "bronze__used_sales/count",
        "bronze__used_sales/keys",
        "bronze__other/schema",
    ):
        assert rows(tmp_path, name) == same, name

    # A second row of another writer is found by `verify`.
    totals = tmp_path / "lake" / "tables" / "used" / "live_sums"
    deltalake.write_deltalake(totals, pa.table({"total": [4]}), mode="append")
    with Pipeline.load(tmp_path) as pipeline:
        assert [one.code for one in pipeline.verify().findings] == ["KEY_TWICE"]


def test_use_within_a_query_is_refused(tmp_path: Path) -> None:
    query = "    spark.sql('USE SCHEMA x')\n    return spark.range(3)\n"
    write(tmp_path, {"a.py": f"import dlt\n@dlt.table\ndef a():\n{query}"})
    with Pipeline.load(tmp_path) as pipeline, pytest.raises(ActionInQueryError) as caught:
        pipeline.plan()
    assert caught.value.location is not None and caught.value.location.line == 4


def test_the_path_of_a_table_that_others_read_is_refused(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "old", pa.table({"id": [1]}))
    write(tmp_path, {"a.py": "import dlt\n@dlt.table(path='old')\ndef a():\n    return spark.range(3)\n"})
    with Pipeline.load(tmp_path) as pipeline, pytest.raises(FeatureUnsupportedError) as caught:
        pipeline.plan()
    assert caught.value.location is not None and caught.value.location.line == 2
    assert "already has a table" in str(caught.value)
