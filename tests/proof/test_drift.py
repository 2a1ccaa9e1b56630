"""A failure between the new version of a schema and the batch that is read with it."""

from __future__ import annotations

import json

import deltalake
import pytest

from proof.shop import Shop

pytestmark = pytest.mark.usefixtures("spark")

CODE = """
import headrace as hr

@hr.table
def orders():
    return hr.read_kafka("{topic}", format="json", schema="id LONG", drift="evolve")
"""


def test_a_failure_in_the_middle_of_a_schema_change_loses_and_repeats_nothing(shop: Shop) -> None:
    shop.write(CODE)
    records = [{"id": 0}, {"id": 1, "name": "ada"}, {"id": 2}]
    shop.ledger.produce_values(shop.topic, [(json.dumps(record).encode(), 0) for record in records])
    shop.fail_at("schema-added", 0)
    versions = list((shop.root / "lake" / "schemas").rglob("*.json"))
    assert len(versions) == 1, "the run failed before the schema had its new version"
    assert deltalake.DeltaTable(shop.table("orders")).to_pyarrow_table().num_rows == 0
    shop.run_well()
    rows = deltalake.DeltaTable(shop.table("orders")).to_pyarrow_table(columns=["id", "name"]).to_pylist()
    assert sorted(rows, key=lambda row: row["id"]) == [
        {"id": 0, "name": None},
        {"id": 1, "name": "ada"},
        {"id": 2, "name": None},
    ]
    assert len(list((shop.root / "lake" / "schemas").rglob("*.json"))) == 1
    shop.verify()
