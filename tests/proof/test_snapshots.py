"""Failures of a flow that applies snapshots, before and after its commit."""

from __future__ import annotations

import json
from collections import Counter

import deltalake
import pytest

from proof.shop import Shop

pytestmark = pytest.mark.usefixtures("spark")

CODE = """
from pathlib import Path

import headrace as hr
from headrace import spark

HERE = Path(__file__).parent

def next_snapshot(last):
    version = 1 if last is None else last + 1
    path = HERE / f"{version}.jsonl"
    return (spark.read.schema("id LONG, value STRING").json(str(path)), version) if path.exists() else None

hr.create_streaming_table("customers")
hr.create_auto_cdc_from_snapshot_flow("customers", next_snapshot, ["id"], stored_as_scd_type=2)
"""


def test_a_snapshot_whose_batch_failed_is_applied_exactly_once(shop: Shop) -> None:
    shop.write(CODE)
    (code,) = (path for path in shop.root.rglob("*.py") if "next_snapshot" in path.read_text())

    def give(version: int, rows: dict[int, str]) -> None:
        lines = (json.dumps({"id": key, "value": value}) for key, value in rows.items())
        (code.parent / f"{version}.jsonl").write_text("\n".join(lines))

    def rows() -> Counter[tuple[object, ...]]:
        table = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(shop.table("customers")))
        found = table.execute('SELECT id, "__START_AT", "__END_AT", value FROM t').read_all()
        return Counter(zip(*(column.to_pylist() for column in found.columns), strict=True))

    give(1, {1: "a", 2: "a", 3: "a"})
    shop.run_well()
    first = Counter([(1, 1, None, "a"), (2, 1, None, "a"), (3, 1, None, "a")])
    assert rows() == first
    give(2, {1: "b", 2: "a"})
    second = Counter([(1, 1, 2, "a"), (1, 2, None, "b"), (2, 1, None, "a"), (3, 1, 2, "a")])
    give(3, {1: "b", 2: "c", 3: "d"})
    third = second - Counter([(2, 1, None, "a")])
    third += Counter([(2, 1, 3, "a"), (2, 3, None, "c"), (3, 3, None, "d")])
    # The version is recorded, and its batch planned; then it is in the table, but not in Spark's log.
    for place, number, held in (("before-commit", 1, first), ("after-commit", 2, third)):
        shop.fail_at(place, number)
        assert rows() == held, "the run failed at its place"
    shop.run_well()
    assert rows() == third
    shop.verify()
