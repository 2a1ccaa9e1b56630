"""Tables in a Hive metastore: another process reads them by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.project.pipeline import Pipeline
from headrace.runtime.fetch import ensure_jars
from waiting import DEADLINE_S

pytestmark = pytest.mark.usefixtures("spark")

SPEC = """
name: shop
storage: ./lake
database: metastore_test
libraries: [{{glob: {{include: code.py}}}}]
configuration:
  spark.sql.catalogImplementation: hive
  spark.sql.warehouse.dir: {folder}/warehouse
  spark.hadoop.javax.jdo.option.ConnectionURL: jdbc:derby:;databaseName={folder}/metastore;create=true
"""
ORDERS = """
import headrace as hr
from headrace import spark

@hr.table(comment="The orders of the shop", table_properties={"team": "sales"})
def orders():
    return hr.read_files("landing", format="json", schema="id LONG, city STRING").drop("_source")
"""
CITIES = """
@hr.materialized_view(comment="The orders of each city")
def cities():
    return spark.read.table("orders").groupBy("city").count()
"""
READER = """
import json, sys
from pyspark.sql import SparkSession

jars, folder = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jars)
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    .config("spark.hadoop.javax.jdo.option.ConnectionURL", f"jdbc:derby:;databaseName={folder}/metastore")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.enabled", "false")
    .enableHiveSupport()
    .getOrCreate()
)
found = {}
external = spark._jsparkSession.sharedState().externalCatalog()
as_java = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava
for table in spark.catalog.listTables("metastore_test"):
    name = f"metastore_test.{table.name}"
    described = dict(row[:2] for row in spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect())
    properties = dict(row[:2] for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect())
    rows = sorted((row.asDict() for row in spark.table(name).collect()), key=str)
    entry = external.getTable("metastore_test", table.name)
    stored = {
        "columns": [field.name() for field in entry.schema().fields()],
        "comment": entry.comment().get(),
        "properties": dict(as_java(entry.properties())),
    }
    found[table.name] = {
        "comment": described["Comment"], "properties": properties, "rows": rows, "stored": stored
    }
print(json.dumps(found))
spark.stop()
"""


def test_another_process_reads_the_tables_by_name_with_comment_and_properties(tmp_path: Path) -> None:
    (tmp_path / "headrace.yml").write_text(SPEC.format(folder=tmp_path))
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.json").write_text('{"id": 1, "city": "Bern"}\n')
    # A session that exists keeps its own catalog: the table is not in the metastore yet.
    (tmp_path / "code.py").write_text(ORDERS)
    with Pipeline.load(tmp_path) as pipeline:
        assert pipeline.run().outcome == "completed"

    (tmp_path / "code.py").write_text(ORDERS + CITIES)
    command = [sys.executable, "-m", "headrace", "run", "--project", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    # The entries follow changes of columns and comments.
    changed = ORDERS.replace("city STRING", "city STRING, more LONG").replace("of the shop", "of all shops")
    (tmp_path / "code.py").write_text(changed + CITIES)
    (tmp_path / "landing" / "b.json").write_text('{"id": 2, "city": "Rom", "more": 3}\n')
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    jars = ",".join(map(str, ensure_jars("spark")))
    command = [sys.executable, "-c", READER, jars, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert {name: (one["comment"], one["rows"]) for name, one in found.items()} == {
        "orders": (
            "The orders of all shops",
            [{"id": 1, "city": "Bern", "more": None}, {"id": 2, "city": "Rom", "more": 3}],
        ),
        "cities": ("The orders of each city", [{"city": "Bern", "count": 1}, {"city": "Rom", "count": 1}]),
    }
    # What clients of the metastore see that do not read the Delta log.
    stored = {name: one["stored"] for name, one in found.items()}
    assert stored["orders"]["columns"] == ["id", "city", "more"]
    assert stored["orders"]["comment"] == "The orders of all shops"
    assert stored["orders"]["properties"]["team"] == "sales"
    assert stored["cities"]["columns"] == ["city", "count"]
    assert stored["cities"]["comment"] == "The orders of each city"
    assert found["orders"]["properties"]["team"] == "sales"
    assert found["cities"]["properties"]["headrace.kind"] == "materialized_view"

    # A removed table leaves the metastore, too.
    (tmp_path / "code.py").write_text(changed)
    project = ("--project", str(tmp_path))
    for arguments in (("run",), ("tables", "cities", "--remove", "--yes")):
        command = [sys.executable, "-m", "headrace", *arguments, *project]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stdout + done.stderr
    command = [sys.executable, "-c", READER, jars, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=DEADLINE_S)
    assert list(json.loads(done.stdout.splitlines()[-1])) == ["orders"], done.stderr
