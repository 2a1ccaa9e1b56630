"""When a materialized view is computed again, and what `plan` says about it."""

from __future__ import annotations

import json

import pytest

from headrace.cli.main import run as cli
from headrace.project.pipeline import Pipeline
from proof.shop import BRONZE, Shop

pytestmark = pytest.mark.usefixtures("spark")

VIEWS = """
from pyspark.sql.functions import udf

@hr.materialized_view
def counted():
    return spark.read.table("bronze").groupBy("partition").count()

@hr.materialized_view
def today():
    return spark.sql("SELECT count(*) AS n, (SELECT current_date()) AS day FROM bronze")

@hr.temporary_view
def sample():
    return spark.read.table("bronze").where(F.when(F.rand() < 2, True))

@hr.materialized_view
def drawn():
    return spark.read.table("sample").groupBy("partition").count()

@hr.materialized_view
@hr.expect_or_drop("recent", "timestamp < now()")
def recent():
    return spark.read.table("bronze").select("offset", "timestamp")

@udf("int")
def roll(offset):
    return 1

roll = roll.asNondeterministic()

@hr.materialized_view
def rolled():
    return spark.read.table("bronze").select(roll("offset").alias("roll"))
"""
ALWAYS = {
    "today": "calls current_date()",
    "drawn": "calls rand()",
    "recent": "calls now()",
    "rolled": "calls a Python function that is not deterministic",
}


def test_a_view_whose_rows_the_clock_or_chance_changes_is_computed_by_each_run(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.write(BRONZE, VIEWS)
    shop.produce(30)
    shop.run_well()
    with Pipeline.load(shop.root) as pipeline:
        plan = pipeline.plan()
    changes = {change.dataset.name: change for change in plan.changes or ()}
    assert {name: change.kind for name, change in changes.items()} == dict.fromkeys(ALWAYS, "recompute")
    for name, reason in ALWAYS.items():
        assert changes[name].text.startswith(f"its query {reason}, so each run recomputes it"), name
    outcomes = {view.dataset.name: view.outcome for view in shop.run_well().views}
    assert outcomes == {"counted": "up to date", **dict.fromkeys(ALWAYS, "refreshed")}

    shop.produce(30)
    shop.run_well("bronze")
    assert cli(["plan", "counted", "--json", "--project", str(shop.root)]) == 0
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert change["part"] == "inputs"
    assert "bronze has new versions" in change["text"]
