"""How a pipeline refreshes its views: by what has changed, if their policy and their query allow it."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from headrace.cli.main import run as cli
from headrace.storage.locate import locate
from headrace.storage.table_log import newest_commits
from proof.shop import BRONZE, SILVER, Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

VIEWS = """
@hr.materialized_view(refresh_policy="incremental")
def sums():
    sales = spark.read.table("silver").groupBy("name")
    return sales.agg(F.sum("sales").alias("sales"), F.count("sales").alias("sold"), F.count("*").alias("n"))

@hr.materialized_view(refresh_policy="incremental")
def large():
    return spark.read.table("silver").where("sales > 3").select("id", "name")

@hr.materialized_view(refresh_policy="incremental")
def ranked():
    rank = "rank() OVER (PARTITION BY name ORDER BY offset, partition)"
    return spark.sql(f"SELECT id, name, {rank} AS r FROM silver")

@hr.materialized_view(refresh_policy="incremental")
def names():
    return spark.read.table("sums").where("n > 1").select("name", "n")

@hr.materialized_view(refresh_policy="incremental")
def newest():
    return spark.sql("SELECT id, name FROM silver ORDER BY offset DESC LIMIT 3")

@hr.materialized_view
def usual():
    return spark.read.table("silver").groupBy("name").count()
"""
STRICT = """
@hr.materialized_view(refresh_policy="incremental_strict")
def strict():
    return spark.sql("SELECT id, name FROM silver ORDER BY offset DESC LIMIT 3")
"""


CHECKED = {
    "sums": "SELECT name, sum(sales), count(sales), count(*) FROM {silver} GROUP BY name",
    "large": "SELECT id, name FROM {silver} WHERE sales > 3",
    "ranked": "SELECT id, name, rank() OVER (PARTITION BY name ORDER BY offset, partition) FROM {silver}",
    "names": "SELECT name, count(*) FROM {silver} GROUP BY name HAVING count(*) > 1",
    "usual": "SELECT name, count(*) FROM {silver} GROUP BY name",
}


def _strategy(shop: Shop, view: str) -> str:
    refreshes = (one.metadata for one in newest_commits(locate(shop.table(view))) if one.refreshes_view)
    metadata = next(refreshes) or {}
    return str(metadata.get("increment", {"strategy": "full"})["strategy"])


def _check(shop: Shop, spark: SparkSession) -> None:
    """Each view has the rows of its query, computed from the table that it reads."""
    silver = f"delta.`{shop.table('silver')}`"
    for name, text in CHECKED.items():
        expected = Counter(map(tuple, spark.sql(text.format(silver=silver)).collect()))
        found = spark.read.format("delta").load(str(shop.table(name)))
        assert Counter(map(tuple, found.collect())) == expected, name


def test_views_are_refreshed_by_what_has_changed(
    shop: Shop, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.write(BRONZE, SILVER, VIEWS)
    shop.produce(40)
    shop.run_well()
    _check(shop, spark)
    shop.produce(25)
    views = {one.dataset.name: one.outcome for one in shop.run_well().views}
    assert views == dict.fromkeys(("gold", *CHECKED, "newest"), "refreshed")
    assert {name: _strategy(shop, name) for name in (*CHECKED, "newest")} == {
        "sums": "merge",
        "large": "append",
        "ranked": "keys",
        "names": "keys",
        "newest": "full",
        "usual": "full",
    }
    _check(shop, spark)
    shop.check()
    assert cli(["events", "--project", str(shop.root), "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    refreshed = {one["dataset"]: one for one in events if one["event"] == "view_refreshed"}
    assert refreshed["sums"]["strategy"] == "merge"
    assert refreshed["newest"]["reason"] == "it uses LIMIT"
    # Rows that another writer deletes, and changes.
    spark.sql(f"DELETE FROM delta.`{shop.table('silver')}` WHERE id % 3 = 0")
    shop.run_well("sums", "large", "ranked", "names", "newest", "usual")
    assert _strategy(shop, "sums") == "merge"
    _check(shop, spark)
    # A view that another writer has changed is computed anew.
    spark.sql(f"DELETE FROM delta.`{shop.table('sums')}` WHERE true")
    shop.run_well("sums")
    assert _strategy(shop, "sums") == "full"
    _check(shop, spark)


def test_a_strict_view_is_not_computed_as_a_whole(shop: Shop) -> None:
    shop.write(BRONZE, SILVER, STRICT)
    shop.produce(10)
    (error,) = shop.run().errors
    assert error.code == "REFRESH_NOT_INCREMENTAL"
    assert "it uses LIMIT" in error.summary
