"""Flows whose batch query is applied once: failures around the commit, full refreshes, a lost source."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import deltalake
import pytest

from headrace import Pipeline
from headrace.errors import HeadraceError
from proof.shop import Shop, rows

pytestmark = pytest.mark.usefixtures("spark")

CODE = """
import headrace as hr
from headrace import spark

hr.create_streaming_table("orders")
hr.create_streaming_table("people")

@hr.append_flow(target="orders")
def live():
    return hr.read_kafka("{topic}").selectExpr("CAST(value AS STRING) value")

@hr.append_flow(target="orders", once=True)
def history():
    return spark.read.schema("value STRING").json("history")

@hr.temporary_view
def known_people():
    return spark.read.schema("id LONG, name STRING, at LONG").json("people")

hr.create_auto_cdc_flow("people", "known_people", ["id"], "at", once=True, name="known")
"""


def test_a_once_flow_is_applied_exactly_once_and_again_at_a_full_refresh(shop: Shop) -> None:
    shop.write(CODE)
    history, people = shop.root / "history", shop.root / "people"
    for folder, lines in (
        (history, [{"value": "a"}, {"value": "b"}]),
        (people, [{"id": 1, "name": "old", "at": 1}, {"id": 1, "name": "new", "at": 2}]),
    ):
        folder.mkdir()
        (folder / "1.json").write_text("\n".join(map(json.dumps, lines)))
    shop.produce(20)
    topic = Counter(record.value.decode() for record in shop.ledger.records)

    def values() -> Counter[str]:
        table = deltalake.DeltaTable(shop.table("orders")).to_pyarrow_table(columns=["value"])
        return Counter(table["value"].to_pylist())

    shop.fail_at("history/before-commit", 0)
    assert not {"a", "b"} & set(values())
    shop.fail_at("history/after-commit", 0)
    assert values()["a"] == 1
    # The batch is in the table, and not in Spark's log.
    (history / "2.json").write_text('{"value": "late"}')
    shop.run_well()
    assert values() == topic + Counter("ab")
    (person,) = rows(shop, f"tables/{shop.database}/people")
    assert (person["id"], person["name"]) == (1, "new")
    shop.verify()
    assert {one.flow: one.outcome for one in shop.run_well().flows} == dict.fromkeys(
        ("live", "history", "known"), "up to date"
    )

    shutil.rmtree(history)
    shop.produce(5)
    topic = Counter(record.value.decode() for record in shop.ledger.records)
    shop.run_well()
    assert values() == topic + Counter("ab")
    with Pipeline.load(shop.root) as pipeline:
        assert any("can no longer be read" in note.text for note in pipeline.plan().notes)
        with pytest.raises(HeadraceError) as caught:
            pipeline.full_refresh(["orders"])
        assert caught.value.code == "REFRESH_LOSES_DATA"
        assert values() == topic + Counter("ab")
        history.mkdir()
        (history / "1.json").write_text('{"value": "a"}\n{"value": "c"}')
        assert pipeline.full_refresh(["orders"]).outcome == "completed"
    assert values() == topic + Counter("ac")
    shop.verify()
