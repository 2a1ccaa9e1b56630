"""Records that differ from the schema of their reader, and tables whose columns change with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from integration.test_quarantine import ids, rows
from proof.shop import Shop

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
