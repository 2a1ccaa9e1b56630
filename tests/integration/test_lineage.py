"""The lineage of columns, of many forms of queries, on a real Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.declare.loader import activate, load_declarations
from headrace.declare.registry import ActivePipeline
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.lineage import ColumnLineage, InputColumn
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.plan.build import build_plan
from headrace.plan.evaluate import loading
from headrace.plan.stages import Plan
from headrace.storage.layout import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAD = """\
import headrace as hr
from pyspark.sql import functions as F, Window
from headrace import spark

ORDER = "id LONG, customer STRING, amount DOUBLE, status STRING, tags ARRAY<STRING>, " \\
    "address STRUCT<city: STRING, zip: STRING>, lines ARRAY<STRUCT<sku: STRING, price: DOUBLE>>"

@hr.table
def orders():
    return hr.read_kafka("orders", format="json", schema=ORDER)

@hr.table
def customers():
    return hr.read_kafka("customers", format="json", schema="name STRING, country STRING, vip BOOLEAN")

"""


@pytest.fixture
def settings(tmp_path: Path) -> ProjectSettings:
    return ProjectSettings(
        name="shop",
        file=tmp_path / "headrace.yml",
        profile="dev",
        storage=Storage.at(tmp_path / "lake"),
        libraries=("transformations/**",),
        kafka=KafkaConnection({"bootstrap.servers": "127.0.0.1:9092"}),
    )


@pytest.fixture
def planned(spark: SparkSession, settings: ProjectSettings) -> Callable[[str, str], Plan]:
    def plan(python: str, sql: str) -> Plan:
        folder = settings.root / "transformations"
        folder.mkdir(exist_ok=True)
        (folder / "pipeline.py").write_text(HEAD + python)
        (folder / "views.sql").write_text(sql)
        active = ActivePipeline(settings, lambda: spark)
        with loading(settings, lambda: spark) as session:
            declarations = load_declarations(settings, session)
        with activate(active):
            return build_plan(spark, settings, declarations, offline=True)

    return plan


def lineage_of(plan: Plan, name: str) -> ColumnLineage:
    table = TableName.parse(name, "default")
    found = [one.lineage for one in (*plan.flows, *plan.refreshes) if one.flow.target == table]
    found += [one.lineage for one in plan.views if one.view.name == table]
    (one,) = found
    assert one is not None
    return one


def shown(lineage: ColumnLineage) -> dict[str, list[str]]:
    """The lineage as texts: for each column, and for the rows under ``*``."""

    def text(one: InputColumn) -> str:
        where = lineage.inputs[one.input]
        name = where.dataset.removeprefix("default.") if where.dataset else where.label
        return f"{one.way}{'*' if one.masked else ''} {name}.{one.column}"

    found = {name: sorted(map(text, inputs)) for name, inputs in lineage.columns.items()}
    return found | {"*": sorted(map(text, lineage.rows))}


JSON = "kafka orders"
FORMS: Mapping[str, tuple[str, Mapping[str, list[str]]]] = {
    "join": (
        "SELECT o.id, o.amount * 2 AS twice, c.country FROM orders o JOIN customers c ON o.customer = c.name "
        "WHERE o.status = 'paid'",
        {
            "id": ["identity orders.id"],
            "twice": ["transformation orders.amount"],
            "country": ["identity customers.country"],
            "*": ["filter orders.status", "join customers.name", "join orders.customer"],
        },
    ),
    "anti_join": (
        "SELECT o.id FROM orders o LEFT ANTI JOIN customers c ON o.customer = c.name",
        {"id": ["identity orders.id"], "*": ["join customers.name", "join orders.customer"]},
    ),
    "union": (
        "SELECT id, customer AS who FROM orders UNION ALL SELECT NULL, upper(name) FROM customers",
        {"id": ["identity orders.id"], "who": ["identity orders.customer", "transformation customers.name"]},
    ),
    "self_union": (
        "SELECT id AS n FROM orders UNION ALL SELECT amount FROM orders",
        {"n": ["identity orders.amount", "transformation orders.id"]},
    ),
    "cte": (
        "WITH paid AS (SELECT * FROM orders WHERE status = 'paid'), "
        "t AS (SELECT customer, sum(amount) AS total FROM paid GROUP BY customer) "
        "SELECT a.customer, a.total, b.id FROM t a JOIN paid b ON a.customer = b.customer",
        {
            "customer": ["identity orders.customer"],
            "total": ["aggregation orders.amount"],
            "id": ["identity orders.id"],
            "*": ["filter orders.status", "group_by orders.customer", "join orders.customer"],
        },
    ),
    "recursion": (
        "WITH RECURSIVE r(n) AS (SELECT id FROM orders UNION ALL SELECT n + 1 FROM r WHERE n < 5) "
        "SELECT n FROM r",
        {"n": ["identity orders.id", "transformation orders.id"], "*": ["filter orders.id"]},
    ),
    "windows": (
        "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY amount) AS n, "
        "sum(amount) OVER (PARTITION BY status) AS s, rank() OVER (ORDER BY id) AS r FROM orders",
        {
            "id": ["identity orders.id"],
            "n": ["window orders.amount", "window orders.customer"],
            "s": ["aggregation orders.amount", "window orders.status"],
            "r": ["window orders.id"],
        },
    ),
    "aggregate": (
        "SELECT customer, count(*) AS n, sum(amount) AS total, max(amount) / count(id) AS m, "
        "sum(amount) FILTER (WHERE status = 'x') AS part FROM orders GROUP BY customer "
        "HAVING count(status) > 1",
        {
            "customer": ["identity orders.customer"],
            "n": [],
            "total": ["aggregation orders.amount"],
            "m": ["aggregation orders.amount", "aggregation* orders.id"],
            "part": ["aggregation orders.amount", "conditional orders.status"],
            "*": ["filter orders.status", "group_by orders.customer"],
        },
    ),
    "rollup": (
        "SELECT customer, status, sum(amount) AS s FROM orders GROUP BY ROLLUP (customer, status)",
        {
            "customer": ["identity orders.customer"],
            "status": ["identity orders.status"],
            "s": ["aggregation orders.amount"],
            "*": ["group_by orders.customer", "group_by orders.status"],
        },
    ),
    "nested": (
        "SELECT address.city, lines[0].sku AS sku, struct(id, address.zip AS z) AS s, lines.price AS prices "
        "FROM orders",
        {
            "city": ["identity orders.address.city"],
            "sku": ["transformation orders.lines.sku"],
            "s": ["transformation orders.address.zip", "transformation orders.id"],
            "prices": ["identity orders.lines.price"],
        },
    ),
    "field_of_made_struct": (
        "SELECT s.b FROM (SELECT struct(id AS a, upper(status) AS b) AS s FROM orders)",
        {"b": ["transformation orders.status"]},
    ),
    "explode": (
        "SELECT id, l.sku, tag FROM orders LATERAL VIEW explode(lines) AS l "
        "LATERAL VIEW explode(tags) AS tag",
        {
            "id": ["identity orders.id"],
            "sku": ["transformation orders.lines.sku"],
            "tag": ["transformation orders.tags"],
        },
    ),
    "higher_order": (
        "SELECT transform(lines, l -> l.price * amount) AS p FROM orders",
        {"p": ["transformation orders.amount", "transformation orders.lines"]},
    ),
    "star": (
        "SELECT * EXCEPT (_source) FROM customers",
        {
            "name": ["identity customers.name"],
            "country": ["identity customers.country"],
            "vip": ["identity customers.vip"],
        },
    ),
    "conditions": (
        "SELECT CASE WHEN status = 'a' THEN amount WHEN customer = 'x' THEN 0 ELSE id END AS v, "
        "if(amount > 1, status, customer) AS w FROM orders",
        {
            "v": [
                *("conditional orders.customer", "conditional orders.status"),
                *("transformation orders.amount", "transformation orders.id"),
            ],
            "w": [
                *("conditional orders.amount", "transformation orders.customer"),
                "transformation orders.status",
            ],
        },
    ),
    "subqueries": (
        "SELECT id, (SELECT max(vip) FROM customers c WHERE c.name = o.customer) AS v FROM orders o "
        "WHERE customer IN (SELECT name FROM customers WHERE country = 'de') "
        "AND EXISTS (SELECT 1 FROM customers c WHERE c.name = o.status)",
        {
            "id": ["identity orders.id"],
            "v": ["aggregation customers.vip", "filter customers.name", "filter orders.customer"],
            "*": [
                *("filter customers.country", "filter customers.name"),
                *("filter orders.customer", "filter orders.status"),
            ],
        },
    ),
    "lateral": (
        "SELECT o.id, z FROM orders o, "
        "LATERAL (SELECT max(c.country) AS z FROM customers c WHERE c.name = o.customer)",
        {
            "id": ["identity orders.id"],
            "z": ["aggregation customers.country"],
            "*": ["filter customers.name", "filter orders.customer"],
        },
    ),
    "distinct": (
        "SELECT DISTINCT status FROM orders ORDER BY status LIMIT 3",
        {"status": ["identity orders.status"], "*": ["group_by orders.status", "sort orders.status"]},
    ),
    "intersect": (
        "SELECT customer FROM orders INTERSECT SELECT name FROM customers",
        {"customer": ["identity orders.customer"], "*": ["filter customers.name", "filter orders.customer"]},
    ),
    "masked": (
        "SELECT sha2(customer, 256) AS h, count(DISTINCT customer) AS n FROM orders GROUP BY id, customer",
        {
            "h": ["transformation* orders.customer"],
            "n": ["aggregation* orders.customer"],
            "*": ["group_by orders.customer", "group_by orders.id"],
        },
    ),
    "constants": ("SELECT * FROM VALUES (1, 'a') AS t(a, b)", {"a": [], "b": []}),
    "over_a_view": (
        "SELECT total * 2 AS t2, customer FROM aggregate",
        {"t2": ["transformation aggregate.total"], "customer": ["identity aggregate.customer"]},
    ),
    "through_temporary_views": (
        "SELECT city, n FROM cities",
        {"city": ["identity orders.address.city"], "n": [], "*": ["group_by orders.address.city"]},
    ),
    # With so many CASE WHEN, the plan is not copied as a whole, and all columns of a condition count as one.
    "many_conditions": (
        "SELECT id, "
        + ", ".join(
            f"CASE WHEN status = '{n}' THEN CASE WHEN customer = '{n}' THEN amount END END AS c{n}"
            for n in range(4)
        )
        + ", sum(amount) OVER (PARTITION BY customer) AS w FROM orders WHERE amount > 1",
        {
            "id": ["identity orders.id"],
            **{
                f"c{n}": [
                    *("transformation orders.amount", "transformation orders.customer"),
                    "transformation orders.status",
                ]
                for n in range(4)
            },
            "w": ["aggregation orders.amount", "window orders.customer"],
            "*": ["filter orders.amount"],
        },
    ),
}

PYTHON: Mapping[str, Mapping[str, list[str]]] = {
    "by_stream": {
        "who": ["transformation orders.customer"],
        "amount": ["identity orders.amount"],
        "country": ["identity customers.country"],
        "*": ["join customers.name", "join orders.customer"],
    },
    "by_python": {
        "id": ["identity orders.id"],
        "u": ["transformation orders.amount", "transformation orders.id"],
        "*": ["group_by orders.id", "window orders.amount", "window orders.customer"],
    },
    "by_pandas": {
        "a": ["transformation orders.amount", "transformation orders.id"],
        "b": ["transformation orders.amount", "transformation orders.id"],
    },
    "of_files": {"x": ["transformation files ./numbers.id"]},
    "of_json": {"id": ["transformation json files ./json.id"]},
    "of_csv": {"a": ["identity csv files ./landing.a"], "c": ["transformation csv files ./landing.b"]},
    "merged": {
        "id": ["identity orders.id"],
        "customer": ["identity orders.customer"],
        "amount": ["identity orders.amount"],
        "_sequence": [
            *("transformation orders._source.offset", "transformation orders._source.partition"),
            *("transformation orders._source.topic", "transformation orders.amount"),
        ],
        "*": [
            *("filter orders.status", "group_by orders.id", "sort orders._source.offset"),
            *("sort orders._source.partition", "sort orders._source.topic", "sort orders.amount"),
        ],
    },
    "history": {
        "name": ["identity customers.name"],
        "country": ["identity customers.country"],
        "__START_AT": ["identity customers.vip"],
        "__END_AT": ["identity customers.vip"],
    },
    "out": {"value": ["transformation orders.amount", "transformation orders.id"]},
}
PIPELINE = """
@hr.table
def by_stream():
    rows = spark.readStream.table("orders").select(F.upper("customer").alias("who"), "amount")
    joined = rows.join(spark.read.table("customers"), F.col("who") == F.col("name"))
    return joined.select("who", "amount", "country")

twice = F.udf(lambda x, y: x, "double")

@hr.materialized_view
def by_python():
    rows = spark.read.table("orders")
    number = F.row_number().over(Window.partitionBy("customer").orderBy("amount"))
    first = rows.withColumn("r", number).where("r = 1")
    return first.select("id", twice("amount", "id").alias("u")).dropDuplicates(["id"])

@hr.materialized_view
def by_pandas():
    def same(rows):
        yield from rows
    return spark.read.table("orders").select("id", "amount").mapInPandas(same, "a LONG, b DOUBLE")

@hr.materialized_view
def of_files():
    return spark.read.parquet("numbers").select((F.col("id") + 1).alias("x"))

@hr.table
def of_csv():
    rows = spark.readStream.schema("a STRING, b LONG").csv("landing")
    return rows.select("a", (F.col("b") + 1).alias("c"))

@hr.table
def of_json():
    return hr.read_files("json", format="json", schema="id LONG, page STRING")

hr.create_streaming_table("merged")
hr.create_auto_cdc_flow(
    target="merged", source="orders", keys=["id"], sequence_by="amount",
    apply_as_deletes="status = 'gone'", column_list=["id", "customer", "amount"],
)
hr.create_streaming_table("history")
hr.create_auto_cdc_flow(
    target="history", source="customers", keys=["name"], sequence_by="vip", stored_as_scd_type=2,
    column_list=["name", "country"],
)
hr.create_sink("out", "kafka", {"topic": "out"})

@hr.append_flow(target="out")
def send():
    return spark.readStream.table("orders").selectExpr("to_json(struct(id, amount)) AS value")
"""


@pytest.fixture
def plan(spark: SparkSession, settings: ProjectSettings, planned: Callable[[str, str], Plan]) -> Plan:
    """The plan of a pipeline with all forms of queries."""
    for name in ("landing", "json"):
        (settings.root / name).mkdir()
    spark.range(3).write.parquet(str(settings.root / "numbers"))
    views = [f"CREATE MATERIALIZED VIEW {name} AS {query};" for name, (query, _) in FORMS.items()]
    views.append(
        "CREATE TEMPORARY VIEW cities AS SELECT city, count(*) AS n FROM addresses GROUP BY city;"
        "CREATE TEMPORARY VIEW addresses AS SELECT address.city FROM orders;"
    )
    return planned(PIPELINE, "\n".join(views))


def test_lineage_of_all_forms(plan: Plan) -> None:
    wanted = {**{name: expected for name, (_, expected) in FORMS.items()}, **PYTHON}
    wanted["cities"] = {
        "city": ["identity orders.address.city"],
        "n": [],
        "*": ["group_by orders.address.city"],
    }
    found = {name: shown(lineage_of(plan, name)) for name in wanted}
    for name in PYTHON:
        # These have further columns, such as those of the order of changes.
        found[name] = {column: found[name][column] for column in wanted[name]}
    assert found == {name: {**({} if name in PYTHON else {"*": []}), **one} for name, one in wanted.items()}


def test_fields_of_records_of_a_topic(plan: Plan) -> None:
    found = shown(lineage_of(plan, "orders"))
    assert found["id"] == ["transformation kafka orders.value.id"]
    assert "transformation kafka orders.offset" in found["_source"]
