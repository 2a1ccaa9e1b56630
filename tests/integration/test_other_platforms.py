"""Pipelines that name tables and paths of another system, which their spec maps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import deltalake
import pyarrow as pa
import pytest

from headrace.errors import PlanFailedError, TableNotFoundError
from headrace.project.pipeline import Pipeline

pytestmark = pytest.mark.usefixtures("spark")

SPEC = """
name: shop
schema: {schema}
storage: ./lake
tables:
  project.source.*: ../source
  samples.shop.countries: ./countries
paths:
  "dbfs:/": ./dbfs
  /Volumes/main/shop: ./volume
  /Workspace/Repos/shop: ./workspace
"""
PYTHON = """
import sys

import dlt
from pyspark.sql import functions as F

sys.path.append("/Workspace/Repos/shop/lib")
from shop_names import upper  # noqa: E402

countries = spark.read.table("samples.shop.countries")


@dlt.table
def orders():
    return spark.readStream.table("project.source.orders").withColumn("name", upper("name"))


@dlt.table(name="silver.sales.orders")
def silver():
    return spark.sql("SELECT * FROM STREAM project.source.orders WHERE orders.id > 1")


@dlt.table(name="gold.sales.orders")
def gold():
    return spark.read.table("silver.sales.orders").join(countries.select("id"), "id")


@dlt.table
def clicks():
    return spark.readStream.schema("id LONG").json("dbfs:/clicks")


@dlt.view(name="countries")
@dlt.expect_or_drop("is named", "countries.name <> 'xx'")
def some_countries():
    countries = spark.read.table("samples.shop.countries")
    return countries.where("id NOT IN (SELECT id FROM samples.shop.countries WHERE name = 'xx')")


@dlt.table
@dlt.expect_or_drop("has a country", "countries.id IS NOT NULL AND orders.name <> 'zoe'")
def placed():
    orders = spark.readStream.table("project.source.orders")
    return orders.join(spark.read.table("countries"), "id", "left").select("id", "countries.name")


@dlt.table
def pages():
    return spark.sql("SELECT p.id, c.name FROM parquet.`/Volumes/main/shop/pages` p "
                     "JOIN samples.shop.countries AS c ON p.id = c.id")
"""
SQL = """
CREATE STREAMING TABLE visits AS
SELECT id FROM STREAM read_files('/Volumes/main/shop/visits', format => 'json', schema => 'id LONG');

CREATE MATERIALIZED VIEW named AS
SELECT orders.name, countries.name AS country
FROM project.source.orders JOIN samples.shop.countries WHERE countries.id = orders.id;

CREATE MATERIALIZED VIEW old AS
SELECT orders.name, countries.name AS country, o.id
FROM project.source.orders VERSION AS OF 0 TABLESAMPLE (100 PERCENT)
JOIN samples.shop.countries TABLESAMPLE (2 ROWS) REPEATABLE (5) ON countries.id = orders.id
JOIN project.source.orders TIMESTAMP AS OF timestamp_millis(MOMENT) AS o ON o.id = orders.id + 1
WHERE orders.id > 0;
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(spec: str, **files: str) -> Path:
        root = tmp_path / "shop"
        (root / "transformations").mkdir(parents=True)
        (root / "headrace.yml").write_text(spec)
        for name, text in files.items():
            (root / "transformations" / name.replace("_", ".")).write_text(dedent(text))
        return root

    return write


def table(path: Path, **columns: list[object]) -> None:
    deltalake.write_deltalake(path, pa.table(columns), mode="append")


def rows(root: Path, table: str, columns: str) -> list[tuple[object, ...]]:
    folder = deltalake.DeltaTable(root / "lake" / "tables" / table)
    text = f"SELECT {columns} FROM t ORDER BY 1"
    found = pa.table(deltalake.QueryBuilder().register("t", folder).execute(text).read_all())
    return [tuple(row.values()) for row in found.to_pylist()]


def test_tables_and_paths_of_another_system_are_read_where_the_spec_maps_them(
    write: Write, tmp_path: Path
) -> None:
    source = tmp_path / "source" / "tables" / "source" / "orders"
    table(source, id=[1, 2], name=["ada", "bob"])
    written_ms = (source / "_delta_log" / f"{0:020d}.json").stat().st_mtime_ns // 1_000_000
    root = write(SPEC.format(schema="mapped"), a_py=PYTHON, b_sql=SQL.replace("MOMENT", str(written_ms)))
    table(root / "countries", id=[1, 2, 9], name=["fr", "de", "xx"])
    (root / "workspace" / "lib").mkdir(parents=True)
    (root / "workspace" / "lib" / "shop_names.py").write_text(
        "from pyspark.sql import functions as F\n\n\ndef upper(name):\n    return F.upper(name)\n"
    )
    for folder in ("dbfs/clicks", "volume/visits"):
        (root / folder).mkdir(parents=True)
        (root / folder / "1.json").write_text(json.dumps({"id": 7}) + "\n")
    import pyarrow.parquet as pq

    (root / "volume" / "pages").mkdir()
    pq.write_table(pa.table({"id": [2]}), root / "volume" / "pages" / "1.parquet")
    with Pipeline.load(root) as pipeline:
        notes = {note.text for note in pipeline.plan().notes}
        assert {
            "`project.source.orders` is ../source/tables/source/orders (tables: project.source.*)",
            "`samples.shop.countries` is countries (tables: samples.shop.countries)",
            "`dbfs:/clicks` is dbfs/clicks (paths: dbfs:/)",
            "`/Volumes/main/shop/pages` is volume/pages (paths: /Volumes/main/shop)",
            "`silver.sales.orders` is the table `silver__sales.orders` of this pipeline",
        } <= notes
        assert pipeline.run().errors == ()
        preview = pipeline.preview("placed")
        assert sorted(preview.rows) == [(1, "fr"), (2, "de")]
        table(source, id=[3], name=["eve"])
        table(source, id=[2], name=["zoe"])
        assert pipeline.run().errors == ()
        assert not pipeline.verify().findings
        assert [one.text for one in pipeline.plan().changes if one.part != "always"] == []
    assert rows(root, "mapped/orders", "id, name")[::3] == [(1, "ADA"), (3, "EVE")]
    assert rows(root, "mapped/placed", "id, name") == [(1, "fr"), (2, "de")]
    assert rows(root, "silver__sales/orders", "id") == [(2,), (2,), (3,)]
    assert rows(root, "gold__sales/orders", "id") == [(2,), (2,)]
    assert rows(root, "mapped/clicks", "id") == [(7,)]
    assert rows(root, "mapped/visits", "id") == [(7,)]
    assert rows(root, "mapped/pages", "id, name") == [(2, "de")]
    assert rows(root, "mapped/named", "name, country") == [("ada", "fr"), ("bob", "de"), ("zoe", "de")]
    assert rows(root, "mapped/old", "name, country, id") == [("ada", "fr", 2)]


def test_a_temporary_view_has_a_bare_name(write: Write) -> None:
    root = write(
        SPEC.format(schema="bare_names"),
        a_py="""
        import dlt

        @dlt.view
        def orders():
            return spark.read.table("bare_names.orders")
        """,
        b_sql="CREATE MATERIALIZED VIEW a AS SELECT * FROM LIVE.orders",
    )
    with Pipeline.load(root) as pipeline, pytest.raises(TableNotFoundError) as caught:
        pipeline.plan()
    assert "a temporary view has a bare name: `orders`" in caught.value.remedies
    assert str(caught.value.location) == "transformations/a.py:6:41"


def test_all_missing_entries_are_listed_at_once(write: Write) -> None:
    root = write("name: shop\nstorage: ./lake\n", a_py=PYTHON.partition("countries =")[0], b_sql=SQL)
    text = (root / "transformations" / "a.py").read_text()
    (root / "transformations" / "a.py").write_text(
        text.replace("from shop_names import upper", "upper = str")
        + "\n@dlt.table\ndef x():\n    return spark.readStream.schema('a INT').json('dbfs:/x')\n"
        + "\n@dlt.table\ndef y():\n    a = spark.table('a.b.c')\n    return a.join(spark.table('d.e.f'))\n"
    )
    with Pipeline.load(root) as pipeline, pytest.raises(PlanFailedError) as caught:
        pipeline.plan()
    error = caught.value
    named = ["/Volumes/main/shop/visits", "/Workspace/Repos/shop/lib", "a.b.c", "d.e.f", "dbfs:/x"]
    assert error.params["missing"] == [*named, "project.source.orders", "samples.shop.countries"]
    assert "a.b.c: ./c   # transformations/a.py:17" in error.facts[-1]
    found = next(one for one in error.errors if isinstance(one, TableNotFoundError))
    assert str(found.location) == "transformations/a.py:17:26"
