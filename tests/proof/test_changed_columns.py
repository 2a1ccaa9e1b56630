"""A failure between the changes of a table's columns, and between them and the next batch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

import deltalake
import pytest

from proof.shop import Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODE = """
import headrace as hr

@hr.table
def orders():
    rows = hr.read_kafka("{topic}", format="json", schema="id LONG, cust STRING, old STRING")
    return rows.select("id", "cust", "old", "_source")

@hr.table
def copies():
    return hr.spark.readStream.table("orders").selectExpr("id", "cust AS name")
"""
CHANGED = """
import headrace as hr

@hr.table(renamed_columns=dict(cust="customer"), dropped_columns=["old"])
def orders():
    rows = hr.read_kafka("{topic}", format="json", schema="id LONG, cust STRING, old STRING")
    return rows.selectExpr("id", "cust AS customer", "_source")

@hr.table
def copies():
    return hr.spark.readStream.table("orders").selectExpr("id", "customer AS name")
"""


def produce(shop: Shop, *numbers: int) -> None:
    records = [{"id": n, "cust": f"c{n}", "old": "x"} for n in numbers]
    shop.ledger.produce_values(shop.topic, [(json.dumps(one).encode(), 0) for one in records])


def names(shop: Shop) -> list[str]:
    return [one.name for one in deltalake.DeltaTable(shop.table("orders")).schema().fields]


@pytest.mark.parametrize(
    ("point", "batch", "between"),
    [
        ("column-changed", 0, ["id", "customer", "old", "_source"]),
        ("batch-start", 1, ["id", "customer", "_source"]),
    ],
)
def test_a_failure_while_columns_change_loses_and_repeats_nothing(
    shop: Shop,
    spark: SparkSession,
    point: Literal["column-changed", "batch-start"],
    batch: int,
    between: list[str],
) -> None:
    shop.write(CODE)
    produce(shop, 1, 2)
    shop.run_well()
    shop.write(CHANGED)
    produce(shop, 3)
    shop.fail_at(point, batch)
    assert names(shop) == between
    shop.run_well()
    assert names(shop) == ["id", "customer", "_source"]
    for table, column in (("orders", "customer"), ("copies", "name")):
        rows = spark.read.format("delta").load(str(shop.table(table))).select("id", column)
        assert sorted(map(tuple, rows.collect())) == [(1, "c1"), (2, "c2"), (3, "c3")], table
    shop.verify()
