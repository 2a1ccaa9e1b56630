"""Pipelines on rows in place of their sources: `headrace.testing`, as a user's tests use it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.errors import HeadraceError, SourceLocation
from headrace.testing import Batches, Record, run
from headrace.testing.plugin import RunPipeline
from proof.shop import settings_of, tables_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

HEAD = """\
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F
"""
ORDERS = """
@hr.table
def orders():
    fields = "id LONG, name STRING, amount DECIMAL(12, 2), at TIMESTAMP"
    return hr.read_kafka("orders", format="json", schema=fields)
"""
SHOP = (
    ORDERS
    + """
@hr.materialized_view
def revenue():
    return spark.read.table("orders").groupBy("name").agg(F.sum("amount").alias("revenue"))
"""
)
START = datetime(2026, 1, 1, tzinfo=UTC)

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a pipeline of one file, `shop.py`; a broker would show in a folder of the test's own."""
    monkeypatch.setenv("HEADRACE_BROKER_DIR", str(tmp_path / "broker"))

    def fill(code: str, spec: str = "") -> Path:
        root = tmp_path / "shop"
        root.mkdir(exist_ok=True)
        (root / "headrace.yml").write_text(f"name: shop\nlibraries: [{{file: shop.py}}]\n{spec}")
        (root / "shop.py").write_text(HEAD + code)
        return root

    return fill


def order(id: int, hour: float, name: str = "ada", amount: str = "1.50") -> dict[str, Any]:
    return {"id": id, "name": name, "amount": Decimal(amount), "at": START + timedelta(hours=hour)}


def fault(shop: Path, rows: Any) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        run(shop, rows)
    return caught.value


def test_a_pipeline_runs_on_rows_and_leaves_nothing_else_behind(
    write: Write, run_pipeline: RunPipeline, spark: SparkSession, tmp_path: Path
) -> None:
    settings, tables = settings_of(spark), tables_of(spark)
    shop = write(SHOP)
    batches = [[order(1, 0), order(2, 0, "bob")], [order(3, 5), order(4, 9, amount="12.75")]]
    found = run_pipeline(shop, {"orders": batches})

    assert sorted(row["id"] for row in found["orders"]) == [1, 2, 3, 4]
    revenue = [{"name": "ada", "revenue": Decimal("15.75")}, {"name": "bob", "revenue": Decimal("1.50")}]
    assert sorted(found["revenue"], key=lambda row: row["name"]) == revenue
    assert list(found) == ["orders", "revenue"]
    assert [result.flows[0].rows for result in found.results] == [2, 2]
    proof = found.verify()
    assert proof.proven
    frame = found.frame("revenue")
    found.close()
    assert not found.storage.exists()
    assert sorted(row.revenue for row in frame.collect()) == [Decimal("1.50"), Decimal("15.75")]
    # Nothing else has changed: no table beside the pipeline, none in the session, no broker.
    assert sorted(path.name for path in shop.iterdir() if path.name != "__pycache__") == [
        "headrace.yml",
        "shop.py",
    ]
    assert (settings_of(spark), tables_of(spark)) == (settings, tables)
    assert not (tmp_path / "broker").exists()


RAW = """
@hr.table
def raw():
    records = hr.read_kafka("a,b")
    return records.select(F.col("value").cast("string").alias("text"), "key", "_source")

@hr.materialized_view
def counted():
    records = spark.read.format("kafka").option("kafka.bootstrap.servers", "x:1").option("subscribe", "a")
    return records.load().groupBy("partition").agg(F.max("offset").alias("last"))
"""


def test_records_have_the_coordinates_of_a_topic(write: Write, run_pipeline: RunPipeline) -> None:
    at = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
    full = Record("two", key="k", timestamp=at, partition=3, headers={"trace": b"7"})
    found = run_pipeline(
        write(RAW), {"a": [["one", full], [b"four", Record({"n": 5}, partition=3)]], "b": [["x"]]}
    )
    rows = {row["text"]: row for row in found["raw"]}
    place = {
        text: tuple(row["_source"][k] for k in ("topic", "partition", "offset")) for text, row in rows.items()
    }
    assert place == {
        "one": ("a", 0, 0),
        "two": ("a", 3, 0),
        "four": ("a", 0, 1),
        '{"n": 5}': ("a", 3, 1),
        "x": ("b", 0, 0),
    }
    assert (rows["two"]["key"], rows["two"]["_source"]["timestamp"]) == (b"k", at)
    assert rows["two"]["_source"]["headers"] == [{"key": "trace", "value": b"7"}]
    assert sorted((row["partition"], row["last"]) for row in found["counted"]) == [(0, 1), (3, 1)]


def test_a_storage_that_is_kept_goes_on(write: Write, tmp_path: Path) -> None:
    shop = write(ORDERS)
    run(shop, {"orders": [[order(1, 0)]]}, storage=tmp_path / "kept")
    found = run(shop, {"orders": [[order(2, 0)]]}, storage=tmp_path / "kept")
    assert sorted((row["id"], row["_source"]["offset"]) for row in found["orders"]) == [(1, 0), (2, 1)]
    found.close()
    assert found["orders"]
    for taken in (shop / "lake", tmp_path / "real"):
        (tmp_path / "real" / "tables").mkdir(parents=True, exist_ok=True)
        (tmp_path / "real" / "sources").mkdir(exist_ok=True)
        with pytest.raises(HeadraceError) as caught:
            run(shop, {"orders": []}, storage=taken)
        assert (caught.value.code, caught.value.params["argument"]) == ("ARGUMENT_INVALID", "storage")
    assert not (shop / "lake").exists()


REJECTING = """
import headrace as hr
from headrace import spark

@hr.table
@hr.expect_or_quarantine("small", "id < 100")
def orders():
    return hr.read_kafka("orders", format="json", schema="id LONG").select("id")

@hr.table
def pages():
    return hr.read_files("landing/pages", format="json", schema="id LONG").select("id")

@hr.table
def numbers():
    return hr.read_kafka("numbers", format="json", schema="text STRING").selectExpr("CAST(text AS INT) AS n")
"""


def test_bad_records_and_rejected_rows_are_in_the_quarantine(write: Write, run_pipeline: RunPipeline) -> None:
    first = [{"id": 1}, Record("{bad", key="k", partition=4), {"id": 101}]
    second = [Record(b"\xff", partition=4), {"id": 2}, Record(None)]
    pages: list[Any] = [['{"id": 7}', '{"id": "x"}'], ["{bad"]]
    numbers = [[{"text": "0"}], [{"text": "1"}, {"text": "two"}, Record({"text": "3"}, partition=1)]]
    given = {"orders": [first, second], "landing/pages": pages, "numbers": numbers}
    found = run_pipeline(write(REJECTING), given)
    assert sorted(row["id"] for row in found["orders"]) == [1, 2]
    assert [row["id"] for row in found["pages"]] == [7]
    rejected = found.quarantine("orders")
    assert sorted(row["reasons"][0]["name"] for row in rejected) == [
        "RECORD_NOT_UTF8",
        "RECORD_UNPARSEABLE",
        "TOMBSTONE",
        "small",
    ]
    (bad,) = (row for row in rejected if row["reasons"][0]["name"] == "RECORD_UNPARSEABLE")
    source = bad["source"]
    assert (source["topic"], source["partition"], source["offset"]) == ("orders", 4, 0)
    assert (source["key"], source["value"], bad["batch"]) == (b"k", b"{bad", 0)
    assert [
        row["source"]["value"] for row in sorted(found.quarantine("pages"), key=lambda row: row["batch"])
    ] == [b'{"id": "x"}', b"{bad"]
    assert found.verify().proven


FOLDERS = """
CLICKS = spark.readStream.schema("id LONG, person STRING").json("landing/clicks")

@hr.table
def clicks():
    return CLICKS

@hr.table
def visits():
    people = spark.read.table("people")
    visits = spark.readStream.option("header", "true").schema("id LONG, person STRING").csv("/landing/visits")
    return visits.join(people, "person", "left")

@hr.table
def payments():
    return spark.sql("SELECT id, amount FROM STREAM delta.`/lake/payments` WHERE amount > 1")

@hr.table
def pages():
    return hr.read_files("landing/pages", format="json", schema="id LONG", glob="*.jsonl")

@hr.materialized_view
def cities():
    return spark.read.json("/landing/cities")
"""


def test_tables_and_files_are_fed_with_rows_too(write: Write, run_pipeline: RunPipeline) -> None:
    found = run_pipeline(
        write(FOLDERS),
        {
            "landing/clicks": [[{"id": 1, "person": "ada"}], ['{"id": 2}']],
            "/landing/visits/": [[{"id": 1, "person": 'A"da, the first'}, "2,bob"]],
            "people": Batches([[{"person": "bob", "age": 7}]], schema="person STRING, age SHORT"),
            "/lake/payments": [[{"id": 1, "amount": 0.5}], [{"id": 2, "amount": 2.5}, {"id": 3}]],
            "landing/pages": [[{"id": 1}], [], [{"id": 2}]],
            "/landing/cities": [[{"city": "London"}]],
        },
    )
    assert sorted((row["id"], row["person"]) for row in found["clicks"]) == [(1, "ada"), (2, None)]
    visits = sorted((row["id"], row["person"], row["age"]) for row in found["visits"])
    assert visits == [(1, 'A"da, the first', None), (2, "bob", 7)]
    assert found["payments"] == [{"id": 2, "amount": 2.5}]
    assert sorted(row["id"] for row in found["pages"]) == [1, 2]
    assert found["cities"] == [{"city": "London"}]
    assert found.verify().proven


CURRENT = """
@hr.temporary_view
def changes():
    return hr.read_kafka("changes", format="json", schema="id LONG, at LONG, op STRING, name STRING")

hr.create_streaming_table("people")
hr.create_auto_cdc_flow(
    "people", "changes", ["id"], "at", apply_as_deletes="op = 'delete'", except_column_list=["op", "at"]
)

@hr.materialized_view
def counted():
    return spark.read.table("people").agg(F.count("*").alias("n"))
"""


def test_a_table_of_an_auto_cdc_flow_has_the_current_row_of_each_key(
    write: Write, run_pipeline: RunPipeline
) -> None:
    first = [
        {"id": 1, "at": 1, "name": "ada"},
        {"id": 2, "at": 1, "name": "bob"},
        {"at": 1, "name": "no key"},
    ]
    second = [
        {"id": 1, "at": 3, "name": "eve"},
        {"id": 1, "at": 2, "name": "late"},
        {"id": 2, "at": 2, "op": "delete"},
    ]
    found = run_pipeline(write(CURRENT), {"changes": [first, second]})
    assert [(row["id"], row["name"]) for row in found["people"]] == [(1, "eve")]
    assert found["counted"] == [{"n": 1}]
    assert len(found.quarantine("people")) == 1
    assert found.verify().proven


LOOKUP = """
@hr.table
def known():
    return spark.readStream.table("people")
"""


def test_a_table_of_the_pipeline_s_own_storage_says_what_columns_it_has(
    write: Write, run_pipeline: RunPipeline
) -> None:
    shop = write(LOOKUP)
    real = pa.schema([("name", pa.string()), ("age", pa.int16())])
    write_deltalake(shop / "lake" / "tables" / "default" / "people", real.empty_table())
    error = fault(shop, {"people": [[{"name": "ada", "age": "seven"}]]})
    assert (error.code, error.params["row"]) == ("ROWS_INVALID", 1)
    found = run_pipeline(shop, {"people": [[{"name": "ada", "age": 7}]]})
    assert found["known"] == [{"name": "ada", "age": 7}]


def test_sources_that_are_named_wrongly_are_answered_with_what_is_read(write: Write) -> None:
    shop = write(ORDERS + LOOKUP)
    people = Batches([], schema="name STRING")
    missing = fault(shop, {"people": people})
    assert (missing.code, missing.params) == ("ROWS_MISSING", {"source": "orders"})
    assert missing.location == SourceLocation("shop.py", 8)
    assert fault(shop, {"orders": []}).params == {"source": "people"}
    unread = fault(shop, {"orders": [], "people": people, "order": [[]]})
    assert (unread.code, unread.remedies) == ("UNUSED_TEST_INPUT", ("did you mean `orders`?",))
    assert unread.facts == ("sources of the pipeline: orders, people",)
    assert fault(write(ORDERS.replace("hr.table", "hr.tabel")), {}).code == "PIPELINE_FILE_FAILED"


def test_no_rows_are_rows_too(write: Write, run_pipeline: RunPipeline) -> None:
    found = run_pipeline(write(ORDERS), {"orders": []})
    assert (found["orders"], "orders" in found, "x" in found) == ([], True, False)
    with pytest.raises(HeadraceError) as caught:
        found["order"]
    assert (caught.value.code, caught.value.remedies) == ("DATASET_UNKNOWN", ("did you mean `orders`?",))
