"""Whole pipelines as people write them for Delta Live Tables, Lakeflow and Spark: run here as they are."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import deltalake
import pyarrow as pa
import pytest

from headrace.project.pipeline import Pipeline

pytestmark = pytest.mark.usefixtures("spark")

LIVE_TABLES = '''
import dlt
from pyspark.sql import functions as F

SCHEMA = "id INT, customer STRING, amount DOUBLE, at TIMESTAMP"


@dlt.table(name="raw_orders", comment="as they came", table_properties={"quality": "bronze"})
def orders_as_they_came():
    return spark.readStream.schema(SCHEMA).json("landing")


@dlt.table
@dlt.expect("a customer", "customer IS NOT NULL")
@dlt.expect_or_drop("a positive amount", "amount > 0")
def orders():
    return dlt.read_stream("raw_orders").withColumn("day", F.to_date("at"))


@dlt.view
def latest():
    return spark.readStream.table("LIVE.orders")


@dlt.table
def revenue():
    """Batch: computed again as a whole."""
    return dlt.read("orders").groupBy("customer").agg(F.sum("amount").alias("amount"))


@dlt.table(private=True)
def best_customer():
    return spark.read.table("LIVE.revenue").orderBy(F.desc("amount")).limit(1)


dlt.create_streaming_live_table("customers")
dlt.apply_changes(
    target="customers",
    source="latest",
    keys=["customer"],
    sequence_by=F.col("at"),
    except_column_list=["amount", "day"],
    stored_as_scd_type=1,
)


def per_customer(name):
    @dlt.table(name=f"orders_of_{name}")
    def of_customer():
        return dlt.read("orders").where(F.col("customer") == name)


for one in ["ada", "bob"]:
    per_customer(one)
'''

ORDERS = [
    {"id": 1, "customer": "ada", "amount": 10.0, "at": "2026-01-01T10:00:00Z"},
    {"id": 2, "customer": "bob", "amount": -1.0, "at": "2026-01-01T11:00:00Z"},
    {"id": 3, "customer": "bob", "amount": 7.0, "at": "2026-01-01T09:00:00Z"},
    {"id": 4, "customer": "ada", "amount": 5.0, "at": "2026-01-02T10:00:00Z"},
]


def write(root: Path, spec: str, name: str, code: str, more: str = "") -> None:
    (root / "transformations").mkdir(parents=True, exist_ok=True)
    libraries = "libraries: [{glob: {include: transformations/**}}]"
    (root / spec).write_text(f"name: shop\nschema: {root.name}\nstorage: ./lake\n{libraries}\n{more}")
    (root / "transformations" / name).write_text(dedent(code))


def land(root: Path, name: str, records: list[dict[str, object]]) -> None:
    (root / "landing" / name).parent.mkdir(parents=True, exist_ok=True)
    (root / "landing" / name).write_text("".join(json.dumps(one) + "\n" for one in records))


def run(root: Path) -> None:
    with Pipeline.load(root) as pipeline:
        result = pipeline.run()
        assert result.errors == ()
        assert not pipeline.verify().findings


def rows(root: Path, table: str, columns: str) -> list[tuple[object, ...]]:
    folder = deltalake.DeltaTable(root / "lake" / "tables" / root.name / table)
    text = f"SELECT {columns} FROM t ORDER BY 1"
    found = pa.table(deltalake.QueryBuilder().register("t", folder).execute(text).read_all())
    return [tuple(row.values()) for row in found.to_pylist()]


def test_a_notebook_of_delta_live_tables(tmp_path: Path) -> None:
    root = tmp_path / "live_tables"
    write(root, "headrace.yml", "orders.py", LIVE_TABLES)
    land(root, "a.json", ORDERS[:3])
    run(root)
    assert rows(root, "orders", "id") == [(1,), (3,)]
    assert rows(root, "revenue", "customer, amount") == [("ada", 10.0), ("bob", 7.0)]
    assert rows(root, "best_customer", "customer") == [("ada",)]
    land(root, "b.json", ORDERS[3:])
    run(root)
    assert rows(root, "raw_orders", "id") == [(1,), (2,), (3,), (4,)]
    assert rows(root, "revenue", "customer, amount") == [("ada", 15.0), ("bob", 7.0)]
    assert rows(root, "orders_of_ada", "id") == [(1,), (4,)]
    assert rows(root, "orders_of_bob", "id") == [(3,)]
    assert rows(root, "customers", "customer, id") == [("ada", 4), ("bob", 3)]


SPARKS = """
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    return spark.readStream.schema("id INT, customer STRING, amount DOUBLE").json("landing")


@dp.temporary_view
def positive():
    return spark.read.table("orders").where(col("amount") > 0)


@dp.materialized_view
def customers():
    return spark.table("positive").groupBy("customer").count()


dp.create_streaming_table("copies")


@dp.append_flow(target="copies")
def copy_of_orders():
    return spark.readStream.table("orders").select("id")
"""


LIVE_SQL = """-- Databricks notebook source
-- MAGIC %md
-- MAGIC ## The counter of a library; what is lent, and to whom

-- COMMAND ----------

CREATE OR REFRESH STREAMING LIVE TABLE loans_raw
COMMENT "each event of the counter; unchanged"
TBLPROPERTIES ("quality" = "bronze", pipelines.reset.allowed = false)
AS SELECT *, _metadata.file_name AS file
FROM STREAM read_files(
  "landing/loans", format => "json", schema => "id INT, book STRING, days INT, at TIMESTAMP")

-- COMMAND ----------

-- DBTITLE 1,Silver
CREATE OR REFRESH STREAMING LIVE TABLE loans (
  CONSTRAINT `has a book` EXPECT (book IS NOT NULL) ON VIOLATION DROP ROW,
  CONSTRAINT `days in range` EXPECT (days BETWEEN 1 AND 60)
)
PARTITIONED BY (day)
AS SELECT id, lower(book) AS book, days, CAST(at AS DATE) AS day FROM STREAM(LIVE.loans_raw);

-- COMMAND ----------

CREATE TEMPORARY LIVE VIEW long_loans AS SELECT * FROM LIVE.loans WHERE days > ${library.long}

-- COMMAND ----------

CREATE LIVE TABLE long_by_day
COMMENT "gold"
AS SELECT day, count(*) AS loans, collect_set(book) AS books FROM LIVE.long_loans GROUP BY day

-- COMMAND ----------

CREATE STREAMING LIVE VIEW member_events AS
SELECT * FROM STREAM read_files(
  'landing/members', format => 'json', schema => 'id INT, name STRING, op STRING, seq INT');

CREATE OR REFRESH STREAMING LIVE TABLE members;

APPLY CHANGES INTO LIVE.members FROM STREAM(LIVE.member_events)
KEYS (id) APPLY AS DELETE WHEN op = "DELETE" SEQUENCE BY seq COLUMNS * EXCEPT (op, seq) STORED AS SCD TYPE 2
"""
LOANS = [
    {"id": 1, "book": "Emma", "days": 30, "at": "2026-01-01T10:00:00Z"},
    {"id": 2, "days": 30, "at": "2026-01-01T10:00:00Z"},
    {"id": 3, "book": "Ulysses", "days": 90, "at": "2026-01-02T10:00:00Z"},
    {"id": 4, "book": "Faust", "days": 5, "at": "2026-01-02T10:00:00Z"},
]
MEMBERS = [
    {"id": 1, "name": "ada", "op": "INSERT", "seq": 1},
    {"id": 1, "name": "eve", "op": "UPDATE", "seq": 3},
    {"id": 2, "name": "bob", "op": "INSERT", "seq": 2},
    {"id": 2, "op": "DELETE", "seq": 4},
]


def test_an_sql_notebook_of_delta_live_tables(tmp_path: Path) -> None:
    root = tmp_path / "live_sql"
    write(root, "headrace.yml", "loans.sql", LIVE_SQL, "configuration: {library.long: '20'}\n")
    land(root, "loans/a.json", LOANS[:2])
    land(root, "members/a.json", MEMBERS[:3])
    run(root)
    land(root, "loans/b.json", LOANS[2:])
    land(root, "members/b.json", MEMBERS[3:])
    run(root)
    raw = deltalake.DeltaTable(root / "lake" / "tables" / root.name / "loans_raw")
    assert [one.name for one in raw.schema().fields] == ["id", "book", "days", "at", "_source", "file"]
    assert rows(root, "loans_raw", "id, file") == [(1, "a.json"), (2, "a.json"), (3, "b.json"), (4, "b.json")]
    assert rows(root, "loans", "id, book") == [(1, "emma"), (3, "ulysses"), (4, "faust")]
    assert rows(root, "long_by_day", "CAST(day AS STRING), loans, books") == [
        ("2026-01-01", 1, ["emma"]),
        ("2026-01-02", 1, ["ulysses"]),
    ]
    history = rows(root, "members", 'name, id, "__START_AT", "__END_AT"')
    assert history == [("ada", 1, 1, 3), ("bob", 2, 2, 4), ("eve", 1, 3, None)]


LAKEFLOW_SQL = """
CREATE OR REFRESH STREAMING TABLE device_changes COMMENT 'from the registry' AS
SELECT * FROM STREAM read_files(
  'landing/devices', format => 'json', schema => 'id INT, place STRING, operation STRING, seq BIGINT');

CREATE OR REFRESH STREAMING TABLE devices;

CREATE FLOW registered AS AUTO CDC INTO devices
FROM STREAM(device_changes)
KEYS (id)
APPLY AS DELETE WHEN operation = 'DELETE'
SEQUENCE BY seq
COLUMNS * EXCEPT (operation, seq)
STORED AS SCD TYPE 1;

CREATE OR REFRESH STREAMING TABLE readings (
  device INT NOT NULL,
  celsius DOUBLE COMMENT 'at noon',
  at TIMESTAMP,
  CONSTRAINT possible EXPECT (celsius > -90) ON VIOLATION DROP ROW,
  CONSTRAINT known EXPECT (device IS NOT NULL) ON VIOLATION FAIL UPDATE
)
CLUSTER BY (device)
AS SELECT device, celsius, at
FROM STREAM read_files(
  'landing/readings', format => 'json', schema => 'device INT, celsius DOUBLE, at TIMESTAMP');

CREATE OR REFRESH STREAMING TABLE hottest AS
SELECT device, count(*) AS readings, max(celsius) AS celsius FROM STREAM(readings) GROUP BY device;

CREATE OR REFRESH STREAMING TABLE days AS SELECT DISTINCT CAST(at AS DATE) AS day FROM STREAM(readings);

CREATE OR REFRESH STREAMING TABLE hourly AS
SELECT window.start AS hour, count(*) AS readings
FROM STREAM(readings) WATERMARK at DELAY OF INTERVAL 10 MINUTES
GROUP BY window(at, '1 hour');

CREATE OR REFRESH MATERIALIZED VIEW places SCHEDULE EVERY 1 HOUR AS
SELECT d.place, sum(h.readings) AS readings, max(h.celsius) AS celsius
FROM hottest h LEFT JOIN devices d ON h.device = d.id GROUP BY d.place;
"""
DEVICES = [
    {"id": 1, "place": "roof", "operation": "INSERT", "seq": 1},
    {"id": 2, "place": "hall", "operation": "INSERT", "seq": 1},
    {"id": 1, "place": "cellar", "operation": "UPDATE", "seq": 2},
]
READINGS = [
    {"device": 1, "celsius": 20.0, "at": "2026-01-01T10:00:00Z"},
    {"device": 2, "celsius": -273.0, "at": "2026-01-01T10:10:00Z"},
    {"device": 2, "celsius": 18.0, "at": "2026-01-01T12:00:00Z"},
    {"device": 1, "celsius": 25.0, "at": "2026-01-02T12:00:00Z"},
]


def test_a_folder_of_lakeflow_in_sql(tmp_path: Path) -> None:
    root = tmp_path / "lakeflow"
    write(root, "headrace.yml", "devices.sql", LAKEFLOW_SQL)
    for name, count in (("a.json", 2), ("b.json", 4)):
        land(root, f"devices/{name}", DEVICES[count - 2 : count])
        land(root, f"readings/{name}", READINGS[count - 2 : count])
        run(root)
    assert rows(root, "devices", "id, place") == [(1, "cellar"), (2, "hall")]
    assert rows(root, "readings", "celsius, device") == [(18.0, 2), (20.0, 1), (25.0, 1)]
    assert rows(root, "hottest", "device, readings, celsius") == [(1, 2, 25.0), (2, 1, 18.0)]
    assert rows(root, "days", "CAST(day AS STRING)") == [("2026-01-01",), ("2026-01-02",)]
    assert rows(root, "places", "place, readings, celsius") == [("cellar", 2, 25.0), ("hall", 1, 18.0)]
    assert rows(root, "hourly", "CAST(hour AS STRING), readings")[0][1] == 1


MIXED_NOTEBOOK = """# Databricks notebook source
# MAGIC %md Clicks of a shop: bronze in Python, silver in a cell of SQL

# COMMAND ----------

# MAGIC %run ../shared/schemas

# COMMAND ----------

dbutils.widgets.text("source", "landing/clicks")

import dlt
from pyspark.sql import functions as F

# COMMAND ----------

@dlt.create_table(name="clicks_bronze")
def clicks_bronze():
    rows = spark.readStream.schema(CLICK).json(dbutils.widgets.get("source"))
    return rows.withColumn("day", F.to_date("at"))

# COMMAND ----------

# MAGIC %sql
# MAGIC CREATE OR REFRESH STREAMING TABLE clicks (
# MAGIC   CONSTRAINT page EXPECT (page LIKE '/%') ON VIOLATION DROP ROW
# MAGIC ) AS SELECT id, page, visitor, day FROM STREAM(LIVE.clicks_bronze)

# COMMAND ----------

display(spark.sql("SELECT 1"))
"""
MIXED_SQL = """
CREATE STREAMING TABLE visitors AS
SELECT visitor, count(*) AS clicks, min(day) AS first_day FROM STREAM clicks GROUP BY visitor;

CREATE STREAMING TABLE names;
CREATE FLOW names AS AUTO CDC FROM SNAPSHOT INTO names FROM visitor_names KEYS (visitor) STORED AS SCD TYPE 1;
"""
MIXED_PYTHON = """
import headrace as hr
from pyspark import pipelines as dp

@hr.materialized_view
def visitor_names():
    return hr.spark.createDataFrame([("a", "ada"), ("b", "bob")], "visitor STRING, name STRING")

@dp.materialized_view
@dp.expect_all({"a name": "name IS NOT NULL"})
def ranking():
    return dp.read("visitors").join(dp.read("visitor_names"), "visitor", "left").select("name", "clicks")
"""
CLICKS = [
    {"id": 1, "page": "/", "visitor": "a", "at": "2026-01-01T10:00:00Z"},
    {"id": 2, "page": "none", "visitor": "b", "at": "2026-01-01T10:00:00Z"},
    {"id": 3, "page": "/x", "visitor": "b", "at": "2026-01-02T10:00:00Z"},
    {"id": 4, "page": "/y", "at": "2026-01-02T10:00:00Z"},
    {"id": 5, "page": "/z", "visitor": "a", "at": "2026-01-03T10:00:00Z"},
]


def test_a_pipeline_of_several_dialects(tmp_path: Path) -> None:
    root = tmp_path / "mixed"
    write(root, "headrace.yml", "clicks.py", MIXED_NOTEBOOK)
    write(root, "headrace.yml", "visitors.sql", MIXED_SQL)
    write(root, "headrace.yml", "ranking.py", MIXED_PYTHON)
    (root / "shared").mkdir()
    schemas = "# Databricks notebook source\nCLICK = 'id INT, page STRING, visitor STRING, at TIMESTAMP'\n"
    (root / "shared" / "schemas.py").write_text(schemas)
    for name, some in (("a.json", CLICKS[:3]), ("b.json", CLICKS[3:])):
        land(root, f"clicks/{name}", some)
        run(root)
    assert rows(root, "clicks", "id") == [(1,), (3,), (4,), (5,)]
    visitors = [("a", 2, "2026-01-01"), ("b", 1, "2026-01-02"), (None, 1, "2026-01-02")]
    assert rows(root, "visitors", "visitor, clicks, CAST(first_day AS STRING)") == visitors
    assert rows(root, "names", "visitor, name") == [("a", "ada"), ("b", "bob")]
    assert rows(root, "ranking", "name, clicks") == [("ada", 2), ("bob", 1), (None, 1)]


def test_a_folder_of_sparks_declarative_pipelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "sparks"
    root.mkdir()
    monkeypatch.chdir(root)
    write(root, "spark-pipeline.yml", "orders.py", SPARKS)
    (root / "transformations" / "ids.sql").write_text(
        "CREATE MATERIALIZED VIEW last_id AS SELECT max(id) AS id FROM copies;\n"
    )
    land(root, "a.json", ORDERS)
    run(root)
    assert rows(root, "customers", "customer, count") == [("ada", 2), ("bob", 1)]
    assert rows(root, "copies", "id") == [(1,), (2,), (3,), (4,)]
    assert rows(root, "last_id", "id") == [(4,)]
