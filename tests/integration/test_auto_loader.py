"""Auto Loader, `cloud_files` and `read_files` with the defaults of Databricks.

The defaults are documented at https://docs.databricks.com/en/ingestion/cloud-object-storage/auto-loader/schema.html
and sql/language-manual/functions/read_files.html.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.project.pipeline import Pipeline

pytestmark = pytest.mark.usefixtures("spark")

PYTHON = """
import dlt
from pyspark.sql import functions as F


def loader(name, **options):
    reader = spark.readStream.format("cloudFiles").option("cloudFiles.format", options.pop("format", "json"))
    options = {f"cloudFiles.{key}": value for key, value in options.items()}
    return reader.options(**options).option("sampleSize", 9).load(f"/Volumes/{name}")


@dlt.table
def strings():
    return loader("json", schemaLocation="/Volumes/schemas").withColumn("file", F.col("_metadata.file_name"))


@dlt.table
def hinted():
    hints = "id INT, at.day DATE"
    return loader("json", schemaHints=hints, schemaEvolutionMode="rescue", rescuedDataColumn="_more")


@dlt.table
def typed():
    return loader("json", inferColumnTypes="true", schemaEvolutionMode="none", maxFilesPerTrigger=1)


@dlt.table(table_properties={"delta.columnMapping.mode": "name"})
def lines():
    return loader("lines/a (1).csv", format="csv")


@dlt.table
def days():
    return loader("days", format="parquet")
"""
SQL = """
CREATE STREAMING TABLE old_sql AS
SELECT * FROM cloud_files_view;
CREATE TEMPORARY VIEW cloud_files_view AS
SELECT id, _rescued_data FROM cloud_files('/Volumes/json', 'json',
  map('schema', 'id INT, _rescued_data STRING', 'rescuedDataColumn', '_rescued_data'));
CREATE STREAMING TABLE new_sql AS
SELECT *, _metadata.file_name AS file FROM STREAM read_files('/Volumes/csv', format => 'CSV');
CREATE MATERIALIZED VIEW batch AS
SELECT f.* EXCEPT (name), _metadata.file_name AS file
FROM read_files('/Volumes/csv', schemaHints => 'id STRING') f;
"""


def rows(root: Path, table: str) -> list[Mapping[str, object]]:
    folder = deltalake.DeltaTable(root / "lake" / "tables" / "auto_loader" / table)
    found = pa.table(
        deltalake.QueryBuilder().register("t", folder).execute("SELECT * FROM t ORDER BY id").read_all()
    )
    return found.to_pylist()


def test_files_are_read_with_the_defaults_of_databricks(tmp_path: Path) -> None:
    root = tmp_path / "shop"
    (root / "transformations").mkdir(parents=True)
    (root / "headrace.yml").write_text(
        "name: shop\nschema: auto_loader\nstorage: ./lake\npaths: {/Volumes: ./volumes}\n"
    )
    (root / "transformations" / "a.py").write_text(PYTHON)
    statements = SQL.replace("SELECT * FROM cloud_files_view;", "SELECT * FROM STREAM cloud_files_view;")
    (root / "transformations" / "b.sql").write_text(statements)
    volumes = root / "volumes"
    for folder in ("json/deep", "csv", "lines", "days/day=2026-01-01"):
        (volumes / folder).mkdir(parents=True)
    (volumes / "json" / "deep" / "1.json").write_text(
        '{"id": 1, "n": 1.5, "at": {"day": "2026-01-01", "h": 7}}\n'
    )
    (volumes / "csv" / "a.csv").write_text("id,name\n1,ada\n")
    (volumes / "lines" / "a (1).csv").write_text("id,full name\n1,ada\n")
    (volumes / "lines" / "b.csv").write_text("other\n1\n")
    pq.write_table(pa.table({"id": [1]}), volumes / "days" / "day=2026-01-01" / "1.parquet")
    with Pipeline.load(root) as pipeline:
        notes = [note.text for note in pipeline.plan().notes]
        assert any("`cloudFiles.schemaLocation`: no effect here" in note for note in notes)
        assert any(
            "csv files have no option `sampleSize`: it has no effect, here as" in note for note in notes
        )
        assert pipeline.run().errors == ()
        (volumes / "json" / "2.json").write_text('{"id": "x", "n": 2, "new": 3}\n')
        assert pipeline.run().errors == ()
        assert not pipeline.verify().findings
    nested = '{"day":"2026-01-01","h":7}'
    assert rows(root, "strings") == [
        {"at": nested, "id": "1", "n": "1.5", "_rescued_data": None, "file": "1.json", "new": None},
        {"at": None, "id": "x", "n": "2", "_rescued_data": None, "file": "2.json", "new": "3"},
    ]
    first, second = rows(root, "hinted")
    assert (first["id"], first["n"], first["_more"]) == (1, "1.5", None)
    assert str(first["at"]["day"]) == "2026-01-01"
    assert first["at"]["h"] == "7"
    assert second == {"at": None, "id": None, "n": "2", "_more": '{"id":"x","new":3}'}
    first, second = rows(root, "typed")
    assert (first["id"], first["n"], first["at"]) == (1, 1.5, {"day": "2026-01-01", "h": 7})
    assert second["_rescued_data"] == '{"id":"x","new":3}'
    assert rows(root, "lines") == [{"id": "1", "full name": "ada", "_rescued_data": None}]
    assert rows(root, "days") == [{"id": 1, "day": "2026-01-01", "_rescued_data": None}]
    first, second = rows(root, "old_sql")
    assert (first["id"], first["_rescued_data"]) == (1, '{"n":1.5,"at":{"day":"2026-01-01","h":7}}')
    assert (second["id"], second["_rescued_data"]) == (None, '{"id":"x","n":2,"new":3}')
    assert rows(root, "new_sql") == [{"id": 1, "name": "ada", "_rescued_data": None, "file": "a.csv"}]
    assert rows(root, "batch") == [{"id": "1", "_rescued_data": None, "file": "a.csv"}]
