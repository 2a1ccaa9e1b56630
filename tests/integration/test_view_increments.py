"""A refresh of a view by what has changed gives the rows that its query gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.increments.increment import NotIncrementalError
from headrace.increments.query import read_query
from headrace.increments.shape import check_query
from view_rounds import FULL, QUERIES, Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _round(shop: Shop, kinds: list[str], queries: dict[str, str]) -> dict[str, dict[str, str]]:
    seen = shop.versions()
    for name, text in queries.items():
        shop.write(name, text)
    for kind in kinds:
        shop.change(kind)
    now = shop.versions()
    return {name: shop.refresh(name, text, seen, now) for name, text in queries.items()}


def test_each_strategy_gives_the_rows_of_the_query(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, seed=1)
    found = _round(shop, ["insert", "delete", "update", "insert dims"], QUERIES)
    wrong = {name: one for name, one in found.items() if any(" " in text for text in one.values())}
    assert not wrong
    possible = {name for name, one in found.items() if "right" in one.values()}
    assert "OPERATOR_NOT_INCREMENTALIZABLE" == found["wide sums"]["merge"] == found["sums or NULL"]["merge"]
    whole = {"join with groups", "groups of an outer join", "joined by an outer join"}
    assert QUERIES.keys() - possible == whole, {
        name: found[name] for name in QUERIES.keys() - possible
    }


def test_a_query_that_cannot_follow_changes_says_why(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, seed=1)
    for text, reason in FULL.values():
        with pytest.raises(NotIncrementalError, match=r".") as raised:
            check_query(read_query(spark, shop.query(text)))
        assert reason in str(raised.value), json.dumps([text, str(raised.value)])
