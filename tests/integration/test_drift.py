"""Records that differ from the schema of their reader, and tables whose columns change with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.types import StructType

from headrace.cli.main import run as headrace
from headrace.model.declarations import Drift
from headrace.model.events import BatchCommitted, SchemaDrifted
from headrace.sources.json_drift import DriftingJsonDecoder
from integration.test_quarantine import ids, quarantined
from proof.shop import Shop, rows
from waiting import until

pytestmark = pytest.mark.usefixtures("spark")

DEEP = """
import headrace as hr
from headrace import spark

@hr.table
def orders():
    return hr.read_kafka("{topic}", format="json", schema="id LONG, deep STRUCT<x: LONG{more}>")

@hr.table
def copies():
    return spark.readStream.table("orders")
"""


def produce(shop: Shop, *records: Mapping[str, Any]) -> None:
    shop.ledger.produce_values(shop.topic, [(json.dumps(record).encode(), 0) for record in records])


def table(shop: Shop, name: str = "orders") -> list[dict[str, Any]]:
    found = rows(shop, f"tables/{shop.database}/{name}")
    return sorted(found, key=lambda row: row["id"])


def test_a_struct_gets_the_fields_that_its_query_gains(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(partitions=1)
    shop.write(DEEP.replace("{more}", ""))
    produce(shop, {"id": 1, "deep": {"x": 1}})
    shop.run_well()
    shop.write(DEEP.replace("{more}", ", y: ARRAY<STRUCT<z: STRING>>"))
    produce(shop, {"id": 2, "deep": {"x": 2, "y": [{"z": "a"}]}})
    shop.run_well()
    for name in ("orders", "copies"):
        assert [row["deep"] for row in table(shop, name)] == [
            {"x": 1, "y": None},
            {"x": 2, "y": [{"z": "a"}]},
        ]
    assert ids(shop) == [1, 2]
    shop.verify()


ORDERS = """
import headrace as hr
from headrace import spark

@hr.table
def orders():
    return hr.read_kafka("{topic}", format="json", schema="id LONG, amount DOUBLE", drift={drift})

@hr.table
def copies():
    return spark.readStream.table("orders")

@hr.materialized_view
def counts():
    return spark.read.table("orders").drop("_source")
"""


def make_orders(make_shop: Callable[..., Shop], drift: object) -> Shop:
    shop = make_shop(partitions=1)
    shop.write(ORDERS.replace("{drift}", repr(drift)))
    return shop


def columns(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "_source"} for row in rows]


def test_new_fields_become_columns_here_and_downstream(make_shop: Callable[..., Shop]) -> None:
    shop = make_orders(make_shop, "evolve")
    produce(shop, {"id": 1, "amount": 1.5})
    shop.run_well()
    produce(shop, {"id": 2, "amount": 2.5, "coupon": "A", "to": {"city": "Graz"}, "later": None})
    produce(shop, {"id": 3, "amount": 3.5, "ID": 7, "to": {"city": "Wien", "zip": 1010}})
    shop.run_well()
    expected = [
        {"id": 1, "amount": 1.5, "coupon": None, "to": None},
        {"id": 2, "amount": 2.5, "coupon": "A", "to": {"city": "Graz", "zip": None}},
        {"id": 3, "amount": 3.5, "coupon": None, "to": {"city": "Wien", "zip": 1010}},
    ]
    for name in ("orders", "copies", "counts"):
        assert columns(table(shop, name)) == expected, name
    added, ignored = shop.happened(SchemaDrifted)
    assert (added.fields, added.added, added.number) == (("coupon", "to"), True, 1)
    assert added.example == {"topic": shop.topic, "partition": 0, "offset": 1}
    assert (ignored.fields, ignored.added) == (("ID",), False)
    produce(shop, {"id": 4, "amount": 4.5, "to": {"street": "Ring"}, "later": 5})
    shop.run_well()
    (row,) = [row for row in columns(table(shop, "copies")) if row["id"] == 4]
    assert row["to"] == {"city": None, "zip": None, "street": "Ring"}
    assert row["later"] == 5
    shop.verify()


LINES = """
import headrace as hr

@hr.table
def orders():
    schema = "id LONG, lines ARRAY<STRUCT<item: STRING, more: ARRAY<STRUCT<x: LONG>>>>"
    return hr.read_kafka("{topic}", format="json", schema=schema, drift="evolve")
"""


def test_new_fields_of_objects_within_arrays_become_columns(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(partitions=1)
    shop.write(LINES)
    produce(shop, {"id": 1, "lines": [{"item": "a"}, {"item": "b"}]}, {"id": 2, "lines": None})
    shop.run_well()
    produce(
        shop, {"id": 3, "lines": [{"item": "c"}, {"item": "d", "price": 2, "more": [{"x": 1, "y": "z"}]}]}
    )
    shop.run_well()
    (added,) = shop.happened(SchemaDrifted)
    assert (set(added.fields), added.added) == ({"lines.price", "lines.more.y"}, True)
    assert table(shop)[2]["lines"] == [
        {"item": "c", "more": None, "price": None},
        {"item": "d", "more": [{"x": 1, "y": "z"}], "price": 2},
    ]
    assert table(shop)[0]["lines"][0] == {"item": "a", "more": None, "price": None}
    shop.verify()


OWN = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

def records(drift="evolve"):
    return hr.read_kafka("{topic}", format="json", schema="id LONG, n LONG", drift=drift)

@hr.temporary_view
def changes():
    rows = records()
    if "Op" not in rows.columns:
        rows = rows.withColumn("Op", F.lit(None).cast("string"))
    return rows

hr.create_streaming_table("current")
hr.create_auto_cdc_flow(
    target="current", source="changes", keys=["id"], sequence_by="n", apply_as_deletes="Op = 'DELETE'"
)

@hr.table
def log():
    return spark.readStream.table("changes")

@hr.table
def replaced():
    return records().withColumn("Op", F.lit("mine"))

@hr.table
def chosen():
    return records().select("id", F.lit("mine").alias("Op"))

@hr.table
def twice():
    return records().select("*", F.lit("mine").alias("Op"))

@hr.table
def first():
    return records()

@hr.table
def second():
    return spark.readStream.table("first").select("*", F.lit("mine").alias("Op"))
"""


def test_a_query_that_makes_a_column_is_evaluated_again_when_its_source_has_the_column(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop(partitions=1)
    shop.write(OWN)
    produce(shop, {"id": 1, "n": 1}, {"id": 2, "n": 1})
    shop.run_well()
    produce(shop, {"id": 2, "n": 2, "Op": "DELETE"}, {"id": 3, "n": 2})
    shop.fail_at("schema-added", 1)
    for _ in range(2):
        errors = {error.params["flow"]: error for error in shop.run().errors}
        assert {name: (error.code, error.params["columns"]) for name, error in errors.items()} == {
            "twice": ("RECORD_DRIFTED", ["Op"]),
            "first": ("RECORD_DRIFTED", ["Op"]),
        }
    assert [row["id"] for row in table(shop, "current")] == [1, 3]
    logged = sorted((row["id"], row["Op"] or "") for row in table(shop, "log"))
    assert logged == [(1, ""), (2, ""), (2, "DELETE"), (3, "")]
    for name in ("replaced", "chosen"):
        assert [(row["id"], row["Op"]) for row in table(shop, name)] == [(id, "mine") for id in (1, 2, 2, 3)]
    for name in ("twice", "first", "second"):
        assert [row["id"] for row in table(shop, name)] == [1, 2]
    # The query that cannot take the column is that of another table.
    (why,) = (one for one in errors["first"].facts if "the pipeline cannot be planned" in one)
    assert "second" in why and "(shop.py:" in why
    # The remedies of the errors.
    assert any('.drop("Op")' in one for one in errors["twice"].remedies)
    (rescue,) = (one.rpartition("drift=")[2] for one in errors["first"].remedies if "drift=" in one)
    code = OWN.replace('records().select("*", F', 'records().drop("Op").select("*", F')
    shop.write(
        code.replace("def first():\n    return records()", f"def first():\n    return records({rescue})")
    )
    shop.run_well()
    assert [row["Op"] for row in table(shop, "twice")] == ["mine"] * 4
    assert [row["Op"] for row in table(shop, "second")] == ["mine"] * 4
    rescued = [row["_rescued_data"] for row in table(shop, "second") if row["_rescued_data"] is not None]
    assert rescued == ['{"Op":"DELETE"}']
    shop.verify()


def test_new_fields_are_taken_up_while_the_flows_run(make_shop: Callable[..., Shop]) -> None:
    shop = make_orders(make_shop, "evolve")

    def committed() -> int:
        # Commits would not do: the change of the schema upstream is an empty batch of its own.
        return sum(event.rows for event in shop.happened(BatchCommitted))

    produce(shop, {"id": 1, "amount": 1.5})
    with shop.running():
        until(lambda: committed() == 2, "both tables have the first record")
        produce(shop, {"id": 2, "amount": 2.5, "coupon": "A"})
        until(lambda: committed() == 4, "both tables have the second record")
    for name in ("orders", "copies"):
        assert [row["coupon"] for row in table(shop, name)] == [None, "A"]
    assert len(shop.happened(SchemaDrifted)) == 1
    shop.verify()


def test_new_fields_become_columns_in_the_first_batch_of_a_new_checkpoint(
    make_shop: Callable[..., Shop],
) -> None:
    """Its first batch is planned, stops for the new field, and is repeated."""
    shop = make_orders(make_shop, "evolve")
    produce(shop, {"id": 1, "amount": 1.5})
    shop.run_well("orders")
    produce(shop, {"id": 2, "amount": 2.5, "coupon": "A"})
    shop.run_well("orders", reset="orders")
    assert [row["coupon"] for row in table(shop)] == [None, "A"]
    shop.verify()


def test_other_fields_and_values_are_rescued(make_shop: Callable[..., Shop]) -> None:
    shop = make_orders(make_shop, {"*": "rescue", "secret": "quarantine"})
    produce(
        shop,
        {"id": 1, "amount": 1.5},
        {"id": 2, "amount": "two", "coupon": {"code": "A"}},
        {"id": 3, "amount": 3, "secret": 1},
    )
    shop.run_well()
    found = columns(table(shop))
    assert [row["amount"] for row in found] == [1.5, None]
    assert found[0]["_rescued_data"] is None
    assert json.loads(found[1]["_rescued_data"]) == {"amount": "two", "coupon": {"code": "A"}}
    (bad,) = quarantined(shop)
    assert bad["reasons"][0]["name"] == "RECORD_DRIFTED"
    assert "secret" in bad["reasons"][0]["message"]
    shop.verify()


def test_a_wider_type_is_declared_and_everything_is_read_again(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(partitions=1)
    narrow = ORDERS.replace("amount DOUBLE", "amount INT").replace("{drift}", "'evolve'")
    shop.write(narrow)
    produce(shop, {"id": 1, "amount": 5}, {"id": 2, "amount": 3_000_000_000})
    shop.run_well()
    assert ids(shop) == [1]
    (bad,) = quarantined(shop)
    assert "field `amount`: expected INT, got 3000000000" in bad["reasons"][0]["message"]
    shop.write(narrow.replace("amount INT", "amount LONG"))
    refused, *_ = shop.run().errors
    assert refused.code == "SCHEMA_MISMATCH"
    assert any(f"headrace full-refresh {shop.database}.orders" in remedy for remedy in refused.remedies), (
        refused.to_dict()
    )
    assert headrace(["full-refresh", "orders", "copies", "--yes", "--project", str(shop.root)]) == 0
    for name in ("orders", "copies"):
        assert [row["amount"] for row in table(shop, name)] == [5, 3_000_000_000]
    assert quarantined(shop) == []
    shop.verify()


def test_a_field_stops_the_flow(make_shop: Callable[..., Shop]) -> None:
    shop = make_orders(make_shop, "fail")
    produce(shop, {"id": 1, "amount": 1.5}, {"id": 2, "amount": 2.5, "coupon": "A"})
    error = shop.refused("orders")
    assert error.code == "RECORD_DRIFTED"
    assert "coupon" in error.summary
    assert error.params["offset"] == 1


@pytest.mark.parametrize(
    ("columns", "default", "good"),
    [
        ({"to.zip": "quarantine"}, None, {0, 1, 3, 5}),
        ({"to": "quarantine"}, None, {0, 3, 5}),
        ({"to": "quarantine", "to.zip": "rescue"}, None, {0, 2, 3, 5}),
        ({"list.new": "quarantine"}, "rescue", {0, 1, 2, 4, 5}),
        ({"to.city": "rescue"}, None, {0, 1, 2, 3, 4, 5}),
        ({"to.zip": "rescue"}, "quarantine", {0, 2}),
        ({"to.other": "rescue"}, "quarantine", {0, 5}),
        ({"`to.other`": "quarantine"}, "rescue", {0, 1, 2, 3, 4}),
        ({}, "quarantine", {0}),
    ],
)
def test_actions_by_dotted_name(
    spark: SparkSession, columns: dict[str, Any], default: Any, good: set[int]
) -> None:
    """Of nested fields, of fields of objects in arrays, and of a field whose name has a dot."""
    schema = StructType.fromDDL("id INT, to STRUCT<city: INT>, list ARRAY<STRUCT<a: INT>>")
    records = [
        {"to": {"city": 1}, "list": [{"a": 1}]},
        {"to": {"street": 1}},
        {"to": {"zip": 1}},
        {"list": [{"a": 1, "new": 2}]},
        {"to": {"city": "x"}},
        {"to.other": 1},
    ]
    decoder = DriftingJsonDecoder(schema, drift=Drift(default, columns))
    values = [(n, json.dumps({"id": n, **one})) for n, one in enumerate(records)]
    frame = spark.createDataFrame(values, "n INT, value STRING")
    found = frame.select("n", decoder.decode(F.col("value")).alias("r")).where("r IS NOT NULL").collect()
    assert {row.n for row in found} == good
    if "rescue" in (default, *columns.values()):
        rescued = {row.n: row.r["_rescued_data"] for row in found}
        assert rescued[0] is None and any(rescued.values())


def test_without_drift_new_fields_are_ignored_and_reported_once(make_shop: Callable[..., Shop]) -> None:
    shop = make_orders(make_shop, None)
    produce(shop, *({"id": number, "amount": 1.5, "coupon": "A"} for number in range(100)))
    shop.run_well()
    assert set(table(shop)[0]) == {"id", "amount", "_source"}
    (event,) = shop.happened(SchemaDrifted)
    assert (event.fields, event.added) == (("coupon",), False)


FILES = """
import headrace as hr

@hr.table
def visits():
    return hr.read_files("landing", format="json", schema="id LONG", drift={drift})
"""


@pytest.mark.parametrize("drift", ["evolve", "rescue"])
def test_files_drift_as_topics_do(make_shop: Callable[..., Shop], drift: str) -> None:
    shop = make_shop(partitions=1)
    shop.write(FILES.replace("{drift}", repr(drift)))
    landing = shop.root / "landing"
    landing.mkdir()
    (landing / "1.json").write_text('{"id": 1}\n{"id": 2, "page": "/start"}\n')
    shop.run_well()
    extra = {"evolve": {"page": "/start"}, "rescue": {"_rescued_data": '{"page":"/start"}'}}[drift]
    assert columns(table(shop, "visits")) == [{"id": 1, **dict.fromkeys(extra)}, {"id": 2, **extra}]
    shop.verify()


TAKEN = """
import headrace as hr
from pyspark.sql import functions as F

@hr.table
def orders():
    records = hr.read_kafka("{topic}", format="json", schema="id LONG", drift="evolve")
    return records.select("*", F.lit("ours").alias("coupon"))
"""


def test_fields_with_the_name_of_a_column_that_headrace_adds_are_ignored(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop(partitions=1)
    shop.write(TAKEN)
    produce(shop, {"id": 1, "_source": "x", "_rescued_data": 1, "city": "Graz"})
    shop.run_well()
    assert columns(table(shop)) == [{"id": 1, "coupon": "ours", "city": "Graz"}]
    added, ignored = shop.happened(SchemaDrifted)
    assert added.fields == ("city",)
    assert set(ignored.fields) == {"_source", "_rescued_data"}
    shop.verify()


NAMES = ("customer's name", "*", "", "a`b", "x.y", "back\\slash")


def test_a_field_of_any_name_is_rescued(make_shop: Callable[..., Shop]) -> None:
    shop = make_orders(make_shop, "rescue")
    produce(shop, *({"id": number, "amount": 1, name: "v"} for number, name in enumerate(NAMES)))
    shop.run_well()
    found = [json.loads(row["_rescued_data"]) for row in table(shop)]
    assert found == [{name: "v"} for name in NAMES]
    shop.verify()
