"""Rows of tables and files on which a query fails: quarantined with the exception, the others committed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.run import narrowing
from integration.test_bad_records import reason
from integration.test_replay import replay
from proof.shop import Shop, rows

pytestmark = pytest.mark.usefixtures("spark")

SILVER = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

@F.udf("long")
def whole(text):
    return {convert}(text)

@hr.table
@hr.expect_or_quarantine("small", "id < 1000")
def silver():
    bronze = spark.readStream.table("bronze")
    return bronze.select(whole("id").alias("id"), "at", F.current_timestamp().alias("now"))
"""
BRONZE = """
@hr.table
def bronze():
    lines = hr.read_files("landing", format="json", schema="id STRING, at TIMESTAMP")
    return lines.select("id", "at")
"""
FILES = """
@hr.table
def lines():
    found = hr.read_files("landing", format="json", schema="id STRING")
    return found.select(whole("id").alias("id"), "_source")

@hr.table
def typed():
    found = hr.read_files("parquet", format="parquet", schema="id STRING")
    return found.select(F.col("id").cast("long").alias("id"))

@hr.table
def unique():
    bronze = spark.readStream.table("bronze").select(F.col("id").cast("long").alias("id"))
    return bronze.dropDuplicates(["id"])

@hr.table
def twice():
    first = spark.readStream.table("bronze").select(F.col("id").cast("long").alias("id"))
    second = spark.readStream.table("bronze").select(F.col("id").cast("long").alias("id"))
    return first.union(second)
"""
AT = "2026-11-23T01:02:03.456789Z"


def land(shop: Shop, name: str, *ids: str) -> None:
    folder = shop.root / "landing"
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"id": id, "at": AT}) if id else "" for id in ids]
    (folder / f"{name} é%.json").write_text("\n".join(lines) + "\n")


def table(shop: Shop, name: str) -> list[int]:
    return sorted(row["id"] for row in rows(shop, f"tables/{shop.database}/{name}"))


def quarantined(shop: Shop, name: str) -> list[dict[str, Any]]:
    found = rows(shop, f"quarantine/{shop.database}/{name}")
    return sorted(found, key=lambda row: row["source"]["value"] if row["source"] else b"")


def failures(shop: Shop) -> dict[str, HeadraceError]:
    """The errors of a run, by flow."""
    return {error.params.get("name", error.params.get("flow")): error for error in shop.run().errors}


def test_rows_of_a_table_on_which_the_query_fails_are_quarantined_and_can_be_replayed(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop(partitions=1)
    shop.write((SILVER + BRONZE).replace("{convert}", "int"))
    land(shop, "first", "0", "1", "x", "3", "4000")
    land(shop, "second", "5", "6")
    shop.run_well()
    assert table(shop, "silver") == [0, 1, 3, 5, 6]
    # A commit after the first snapshot: other positions, and a row that fails at the end of its file.
    land(shop, "third", "7", "y")
    shop.run_well()
    assert table(shop, "silver") == [0, 1, 3, 5, 6, 7]
    small, first, second = quarantined(shop, "silver")
    assert (small["source"], reason(small)) == (None, ("expectation", "small"))
    assert [reason(row) for row in (first, second)] == [("exception", "ValueError")] * 2
    assert [json.loads(row["source"]["value"])["id"] for row in (first, second)] == ["x", "y"]
    assert [row["source"]["offset"] for row in (first, second)] == [2, 1]
    assert (
        "'y'" in (message := second["reasons"][0]["message"])
        and f"(table {shop.database}.bronze, version " in message
    )
    path = second["source"]["path"].removeprefix("file:")
    assert path.startswith(f"{shop.root}/lake/tables/{shop.database}/bronze/") and path.endswith(".parquet")
    proof = {one.dataset.name: one.flows[0] for one in shop.verify().datasets if one.flows}
    assert proof["silver"].grades[1].text.startswith("9 in = 6 accepted + 3 quarantined")
    # A replay runs the query on the row of the table that was kept.
    shop.write((SILVER + BRONZE).replace("{convert}(text)", "8 if text in 'xy' else int(text)"))
    replayed = replay(shop, "silver")
    assert [(one.replayed, one.rejected, one.left) for one in replayed.flows] == [(2, 1, 0)]
    assert table(shop, "silver") == [0, 1, 3, 5, 6, 7, 8, 8]
    eight = [row for row in rows(shop, f"tables/{shop.database}/silver") if row["id"] == 8]
    assert {row["at"].isoformat() for row in eight} == {"2026-11-23T01:02:03.456789+00:00"}
    shop.verify()


def test_lines_and_rows_of_files_on_which_the_query_fails_are_quarantined(
    make_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    shop = make_shop(partitions=1)
    shop.write((SILVER + BRONZE + FILES).replace("{convert}", "int"))
    land(shop, "first", "0", "", "x", "3")
    land(shop, "second", "y", "5")
    (shop.root / "parquet").mkdir()
    for name, ids in {"a": ["1", "2"], "b": ["3", "z", "5"]}.items():
        pq.write_table(pa.table({"id": ids}), shop.root / "parquet" / f"{name}.parquet")
    errors = failures(shop)
    # A query with state is not computed without some of its rows; the error names the first one.
    assert set(errors) == {"unique"} and errors["unique"].params["row"] in (0, 1)
    assert table(shop, "lines") == [0, 3, 5]
    found = quarantined(shop, "lines")
    places = {(row["source"]["path"].rpartition("/")[2], row["source"]["offset"]) for row in found}
    # An empty line counts.
    assert places == {("first%20é%25.json", 2), ("second%20é%25.json", 0)}
    assert [json.loads(row["source"]["value"])["id"] for row in found] == ["x", "y"]
    assert {reason(row) for row in found} == {("exception", "ValueError")}
    # Each row is read twice, and rejected once.
    assert table(shop, "twice") == [0, 0, 3, 3, 5, 5]
    assert len(quarantined(shop, "twice")) == 2
    assert table(shop, "typed") == [1, 2, 3, 5]
    (bad,) = quarantined(shop, "typed")
    assert (bad["source"]["path"].rpartition("/")[2], bad["source"]["offset"]) == ("b.parquet", 1)
    assert reason(bad) == ("exception", "CAST_INVALID_INPUT")
    proof = {one.dataset.name: one.flows[0] for one in shop.verify().datasets if one.flows}
    assert proof["lines"].grades[1].text.startswith("5 in = 3 accepted + 2 quarantined")
    assert proof["typed"].grades[1].text.startswith("5 in = 4 accepted + 1 quarantined")
    # A replay: lines go through the reader again. Rows of other formats are not kept.
    shop.write((SILVER + BRONZE + FILES).replace("{convert}(text)", "ord(text)"))
    assert [(one.replayed, one.left) for one in replay(shop, "lines").flows] == [(2, 0)]
    assert table(shop, "lines") == [0, 3, 5, ord("x"), ord("y")]
    assert [(one.replayed, one.left) for one in replay(shop, "typed").flows] == [(0, 1)]
    # Without ANSI mode, a replay has NULL where a run has it.
    shop.spec["compatibility"] = {"ansi": False}
    shop.write((SILVER + BRONZE + FILES).replace("{convert}(text)", "ord(text)"))
    assert [(one.replayed, one.left) for one in replay(shop, "twice").flows] == [(2, 0)]
    assert [row["id"] for row in rows(shop, f"tables/{shop.database}/twice")].count(None) == 4
    del shop.spec["compatibility"]
    shop.write((SILVER + BRONZE + FILES).replace("{convert}(text)", "ord(text)"))
    # More rows than the limit stop the flow.
    monkeypatch.setattr(narrowing, "MOST_RAISING", 1)
    pq.write_table(pa.table({"id": ["u", "v"]}), shop.root / "parquet" / "c.parquet")
    error = failures(shop)["typed"]
    assert any("more than 1 records of the batch" in fact and "c.parquet" in fact for fact in error.facts)
    assert table(shop, "typed") == [1, 2, 3, 5]
