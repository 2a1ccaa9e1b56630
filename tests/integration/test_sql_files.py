"""SQL files of a pipeline: planned, run and verified like Python files, and mixed with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from headrace.errors import HeadraceError
from headrace.model.names import TableName
from headrace.plan.explain import Explanation
from headrace.project.noop_check import find_up_to_date
from headrace.project.pipeline import Pipeline
from landing import Site

pytestmark = pytest.mark.usefixtures("spark")

Produce = Callable[..., None]
Topic = Callable[..., str]
RunPipeline = Callable[..., Any]


class SqlSite(Site):
    """A pipeline of SQL and Python files."""

    def __init__(self, root: Path, bootstrap: str) -> None:
        super().__init__(root)
        self._bootstrap = bootstrap
        (root / "visits.py").unlink()
        self.configure()

    def configure(self, **configuration: str) -> None:
        self.write_spec(
            kafka={"bootstrap.servers": self._bootstrap},
            libraries=[{"glob": {"include": "tables/**"}}],
            configuration=configuration,
        )

    def declare(self, **files: str) -> None:
        """Write files: ``declare(orders_sql="CREATE ..")``."""
        (self.root / "tables").mkdir(exist_ok=True)
        for name, text in files.items():
            stem, _, suffix = name.rpartition("_")
            (self.root / "tables" / f"{stem}.{suffix}").write_text(text)

    def rows(self, table: str = "visits") -> list[dict[str, Any]]:
        """The rows of a table; it may have deletion vectors."""
        folder = deltalake.DeltaTable(self.storage.table(self.name(table)))
        found = deltalake.QueryBuilder().register("t", folder).execute("SELECT * FROM t").read_all()
        return pa.table(found).to_pylist()

    def planned_errors(self) -> dict[str, str]:
        """The codes of the errors of the plan, by their locations."""
        with Pipeline.load(self.root) as pipeline, pytest.raises(HeadraceError) as caught:
            pipeline.plan()
        return {
            f"{one['location']['line']}:{one['location']['column']}": one["code"]
            for one in caught.value.params["errors"]
        }


@pytest.fixture
def sql(tmp_path: Path, bootstrap: str) -> SqlSite:
    return SqlSite(tmp_path / "site", bootstrap)


ORDERS = """\
-- Orders; as the shop sent them.
CREATE OR REFRESH STREAMING TABLE orders COMMENT 'one row; for each order' AS
SELECT * FROM STREAM read_kafka('{topic}', format => 'json', schema => 'id LONG, amount DOUBLE');

/* a view; /* of a stream */ */
CREATE TEMPORARY VIEW large AS SELECT * FROM STREAM(orders) WHERE amount > 1000;

CREATE MATERIALIZED VIEW revenue AS SELECT sum(amount) AS total FROM orders
"""

BIG = """
import headrace as hr
from headrace import spark

@hr.table
def big_orders():
    return spark.readStream.table("large").select("id", "amount")

@hr.materialized_view
def doubled():
    return spark.read.table("revenue").selectExpr("2 * total AS total")
"""


def test_sql_and_python_files_make_one_pipeline(sql: SqlSite, topic: Topic, produce: Produce) -> None:
    name = topic()
    produce(name, *(json.dumps({"id": n, "amount": n * 400.0}).encode() for n in range(5)), b"no json")
    sql.declare(orders_sql=ORDERS.format(topic=name), big_py=BIG)

    with Pipeline.load(sql.root) as pipeline:
        text = Explanation(pipeline.plan()).to_text()
        large = pipeline.preview("large", limit=10)
    assert sorted(row[0] for row in large.rows) == [3, 4]
    assert "tables/orders.sql:2" in text
    assert "tables/big.py:6" in text
    sql.run_well()

    assert sorted(row["id"] for row in sql.rows("orders")) == [0, 1, 2, 3, 4]
    assert sorted(row["id"] for row in sql.rows("big_orders")) == [3, 4]
    assert sql.rows("doubled") == [{"total": 8000.0}]
    assert sql.verify().proven
    with Pipeline.load(sql.root) as pipeline:
        settings = pipeline.settings
    assert find_up_to_date(settings, lambda: settings.kafka) is not None
    sql.declare(orders_sql=ORDERS.format(topic=name).replace("> 1000", "> 900"))
    assert find_up_to_date(settings, lambda: settings.kafka) is None


TESTED = """\
CREATE STREAMING TABLE orders (CONSTRAINT sane EXPECT (amount < ${top}) ON VIOLATION QUARANTINE ROW);
CREATE FLOW sent AS INSERT INTO orders BY NAME
SELECT id, amount FROM STREAM read_kafka('orders', format => 'json', schema => 'id LONG, amount DOUBLE');
CREATE FLOW filed AS INSERT INTO orders BY NAME
SELECT id, amount FROM STREAM(read_files('landing', format => 'json', schema => 'id LONG, amount DOUBLE'));

CREATE MATERIALIZED VIEW revenue AS SELECT sum(amount) AS total FROM orders;
"""


def test_a_test_replaces_the_sources_of_sql_files(sql: SqlSite, run_pipeline: RunPipeline) -> None:
    sql.configure(top="1000")
    sql.declare(orders_sql=TESTED)
    kafka = [[{"id": 1, "amount": 5.0}], [{"id": 2, "amount": 5000.0}]]
    tables = run_pipeline(sql.root, {"orders": kafka, "landing": [[{"id": 3, "amount": 7.0}]]})
    assert sorted(row["id"] for row in tables["orders"]) == [1, 3]
    assert tables["revenue"] == [{"total": 12.0}]
    assert len(tables.quarantine("orders")) == 1


def test_errors_of_queries_have_the_line_and_column_of_the_file(sql: SqlSite) -> None:
    sql.configure(id="id")
    sql.declare(
        wrong_sql="""\
CREATE MATERIALIZED VIEW numbers AS SELECT 1 AS id;
CREATE MATERIALIZED VIEW a AS SELECT ${id}, /* ${id} */ '${id}',
  amuont FROM numbers;
CREATE MATERIALIZED VIEW b AS SELECT *
  FROM nombers;
CREATE MATERIALIZED VIEW c AS
  SELECT '${id}' FRO numbers n;
CREATE MATERIALIZED VIEW d AS SELECT id
  FROM numbers WHERE unknown_function(id);
CREATE STREAMING TABLE e AS SELECT * FROM numbers;
CREATE MATERIALIZED VIEW f AS DROP TABLE numbers
"""
    )
    assert sql.planned_errors() == {
        "3:3": "COLUMN_NOT_FOUND",
        "5:8": "TABLE_NOT_FOUND",
        "7:22": "QUERY_FAILED",
        "9:22": "QUERY_FAILED",
        "10:24": "BATCH_QUERY_FOR_STREAMING_TABLE",
        "11:26": "ACTION_IN_QUERY",
    }


ALL_FORMS = """\
SET spark.sql.shuffle.partitions = 2;
SET top = 100;

CREATE STREAMING TABLE checked (
  id LONG COMMENT 'the id; of the shop', name STRING, amount INT,
  CONSTRAINT `has a name` EXPECT (name IS NOT NULL) ON VIOLATION QUARANTINE ROW,
  CONSTRAINT positive EXPECT (amount > 0) ON VIOLATION DROP ROW,
  CONSTRAINT small EXPECT (amount < ${{top}})
)
PARTITIONED BY (name) COMMENT 'checked rows' TBLPROPERTIES ('delta.appendOnly' = 'true', quality = gold)
AS SELECT id, name, amount FROM STREAM read_files(
  'landing/orders', format => 'json', glob => '*.json',
  schema => 'id LONG, name STRING, amount INT, at TIMESTAMP');

CREATE OR REFRESH STREAMING LIVE TABLE flows CLUSTER BY (id);
CREATE FLOW first AS INSERT INTO flows BY NAME
SELECT 'first' AS flow, id FROM STREAM(LIVE.checked);
CREATE FLOW second AS INSERT INTO flows BY NAME
SELECT CAST(CAST(value AS STRING) AS BIGINT) AS id, 'second' AS flow
FROM STREAM read_kafka(subscribe => '{numbers}', startingOffsets => 'earliest') AS k WHERE k.offset < 3;

CREATE STREAMING TABLE people;
CREATE FLOW apply_people AS AUTO CDC INTO people
FROM STREAM(changes) KEYS (id)
IGNORE NULL UPDATES APPLY AS DELETE WHEN op = 'd' SEQUENCE BY n COLUMNS * EXCEPT (op)
STORED AS SCD TYPE 1;
CREATE STREAMING LIVE TABLE history;
APPLY CHANGES INTO LIVE.history FROM (SELECT id, name, n FROM STREAM changes WHERE op <> 'd')
KEYS (id) SEQUENCE BY n STORED AS SCD TYPE 2;
CREATE STREAMING TABLE people_changes AS
SELECT id, _change_type AS kind FROM STREAM(people) WITH (readChangeFeed = true);
CREATE TEMPORARY STREAMING LIVE VIEW changes AS
SELECT id, name, op, n FROM STREAM read_kafka(
  '{changes}', format => 'json', schema => 'id LONG, name STRING, op STRING, n LONG');

CREATE STREAMING TABLE staff;
AUTO CDC FROM SNAPSHOT INTO staff FROM './exports' KEYS (id);

CREATE STREAMING TABLE windows AS
SELECT window(at, '1 minute').start AS minute, count(*) AS n
FROM STREAM read_files('landing/orders', format => 'json', schema => 'at TIMESTAMP')
WATERMARK at DELAY OF INTERVAL 10 SECONDS
GROUP BY window(at, '1 minute');

CREATE LIVE TABLE titled AS
SELECT c.name, t.title FROM LIVE.checked c
JOIN read_files('titles', format => 'csv', schema => 'name STRING, title STRING', header => true) t
USING (name);

USE SCHEMA {schema};
CREATE MATERIALIZED VIEW orders AS SELECT id + 1 AS id FROM spark_catalog.{database}.checked;
CREATE MATERIALIZED VIEW again AS SELECT orders.id FROM orders
"""


def test_every_form_of_statement_runs(sql: SqlSite, topic: Topic, produce: Produce) -> None:
    numbers, changes = topic(), topic()
    produce(numbers, *(str(n).encode() for n in range(5)))
    records = [
        {"id": 1, "name": "ada", "op": "u", "n": 1},
        {"id": 2, "name": "bob", "op": "u", "n": 1},
        {"id": 1, "name": None, "op": "u", "n": 2},
        {"id": 2, "name": None, "op": "d", "n": 2},
    ]
    produce(changes, *(json.dumps(record).encode() for record in records))
    rows = [(1, "ada", 5), (2, None, 5), (3, "bob", -1), (4, "bob", 500)]
    sql.put(
        "orders/a.json",
        *({"id": i, "name": n, "amount": a, "at": f"2024-01-01T00:0{i}:00Z"} for i, n, a in rows),
    )
    (sql.root / "titles").mkdir()
    (sql.root / "titles" / "a.csv").write_text("name,title\nada,countess\nbob,mister\n")
    (sql.root / "exports").mkdir()
    (sql.root / "exports" / "1.csv").write_text("id,name\n1,ada\n")
    schema = f"{sql.database}_b"
    text = ALL_FORMS.format(numbers=numbers, changes=changes, schema=schema, database=sql.database)
    sql.declare(all_sql=text)

    sql.run_well()

    assert sorted((row["id"], row["name"]) for row in sql.rows("checked")) == [(1, "ada"), (4, "bob")]
    quarantine = sql.root / "lake" / "quarantine" / sql.database / "checked"
    assert deltalake.DeltaTable(quarantine).to_pyarrow_table().num_rows == 1
    detail = deltalake.DeltaTable(sql.storage.table(sql.name("checked"))).metadata()
    assert (detail.description, detail.partition_columns) == ("checked rows", ["name"])
    assert detail.configuration["quality"] == "gold"
    flows = sorted((row["flow"], row["id"]) for row in sql.rows("flows"))
    assert flows == [("first", 1), ("first", 4), ("second", 0), ("second", 1), ("second", 2)]
    assert [(row["id"], row["name"], row["n"]) for row in sql.rows("people")] == [(1, "ada", 2)]
    assert len(sql.rows("history")) == 3
    assert {row["id"] for row in sql.rows("people_changes")} == {1}
    assert sorted((row["name"], row["title"]) for row in sql.rows("titled")) == [
        ("ada", "countess"),
        ("bob", "mister"),
    ]
    assert [row["name"] for row in sql.rows("staff")] == ["ada"]
    assert len(sql.rows("windows")) == 2  # the third is open
    again = deltalake.DeltaTable(sql.storage.table(TableName(schema, "again"))).to_pyarrow_table()
    assert sorted(again["id"].to_pylist()) == [2, 5]
    assert sql.verify().proven
