"""A changed query of a flow with state: a run refuses a flow if the state of its checkpoint does not fit."""

from __future__ import annotations

import pytest

from headrace.plan.stages import Plan
from headrace.project.pipeline import Pipeline
from proof.shop import Shop

pytestmark = pytest.mark.usefixtures("spark")

CODE = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

def clicks():
    schema = "id LONG, name STRING, sales DOUBLE"
    return hr.read_kafka("{topic}", format="json", schema=schema).selectExpr("*", "_source.timestamp AS at")

@hr.table
def totals():
    return TOTALS

@hr.table
def firsts():
    return clicks().withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(FIRSTS).select("id", "name")

@hr.table
def pairs():
    both = clicks().withWatermark("at", "1 hour")
    left = both.select("id", "name", "at")
    right = both.selectExpr("id AS other", "sales", "at AS later")
    return left.join(right, F.expr("PAIRS AND later BETWEEN at AND at + INTERVAL 1 HOUR")).select(JOINED)

@hr.table
def plain():
    return PLAIN
"""
FIRST = {
    "TOTALS": 'clicks().groupBy("name").agg(F.count("*").alias("n"))',
    "FIRSTS": '["id"]',
    "PAIRS": "id = other",
    "JOINED": '"id", "name", "sales"',
    "PLAIN": 'clicks().select("id")',
}
FITS = {
    **FIRST,
    "TOTALS": 'clicks().where("sales > 0").groupBy("name").agg(F.count("*").alias("n"))',
    "PAIRS": "id = other AND sales > 0",
    "PLAIN": 'clicks().selectExpr("id + 1 AS id")',
}
OTHERS = {
    "TOTALS": 'clicks().groupBy("name").agg(F.count("*").alias("n"), F.max("id").alias("last"))',
    "FIRSTS": '["id", "name"]',
    "PAIRS": "id = other AND name = sales",
    "JOINED": '"id", "name"',
    "PLAIN": 'clicks().withWatermark("at", "1 hour").dropDuplicates(["id", "at"]).select("id")',
}


def write(shop: Shop, values: dict[str, str]) -> None:
    code = CODE
    for name, value in values.items():
        code = code.replace(name, value)
    shop.write(code)


def planned(shop: Shop) -> Plan:
    with Pipeline.load(shop.root) as pipeline:
        return pipeline.plan()


def changed(shop: Shop) -> set[str | None]:
    """The flows whose query has changed, as a plan shows it."""
    return {change.name for change in planned(shop).changes or () if change.part == "query"}


def test_a_flow_is_refused_if_the_state_of_its_checkpoint_does_not_fit_its_query(shop: Shop) -> None:
    shop.spec["configuration"] = {"spark.sql.shuffle.partitions": "1"}
    write(shop, FIRST)
    shop.produce(30)
    shop.run_well()

    write(shop, FITS)
    text = next(change.text for change in planned(shop).changes or () if change.name == "totals")
    assert "continues with the state of the old query" in text

    shop.produce(30)
    shop.run_well()
    assert changed(shop) == set(), "each query has had a batch"

    write(shop, {**FITS, **OTHERS})
    shop.run_well()
    assert changed(shop) == {"totals", "firsts", "pairs", "plain"}, "Spark has not seen a batch of them"
    shop.produce(30)
    errors = {flow.flow: flow.error for flow in shop.run().flows if flow.error is not None}
    codes = {name: error.code for name, error in errors.items()}
    assert codes == dict.fromkeys(["totals", "firsts", "pairs", "plain"], "STATE_CHANGED")
    assert errors["firsts"].facts[:2] == (
        "the checkpoint has the state keys (id LONG)",
        "the query needs the state keys (id LONG, name STRING)",
    )
    assert errors["plain"].facts[0] == "the checkpoint has no state"
    assert shop.refused("firsts", rename_flow={}).code == "STATE_CHANGED", "the next run refuses it again"
    assert changed(shop) == {"totals", "firsts", "pairs", "plain"}

    with Pipeline.load(shop.root) as pipeline:
        assert pipeline.full_refresh(["plain"]).outcome == "completed"
    assert changed(shop) == {"totals", "firsts", "pairs"}

    write(shop, {**FITS, **OTHERS, "PLAIN": FIRST["PLAIN"]})
    shop.run()
    assert "plain" in changed(shop), "it no longer keeps state, and has read nothing"
