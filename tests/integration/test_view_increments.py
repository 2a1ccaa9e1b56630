"""A refresh of a view by what has changed gives the rows that its query gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.increments.by_keys import compute_again
from headrace.increments.changes import columns_differ
from headrace.increments.increment import NotIncrementalError
from headrace.increments.query import read_query, scanned_bytes
from headrace.increments.shape import check_query, find_keys
from headrace.sinks.delta.increment import ViewIncrement
from headrace.storage.layout import locate
from view_rounds import FULL, QUERIES, Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = frozenset(
    {"outer join", "right join", "window", "exists", "union", "common table", "distinct", "days", "floats"}
)
"""Queries like others, which only the proof has."""


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
    queries = {name: text for name, text in QUERIES.items() if name not in LONG}
    found = _round(shop, ["insert", "delete", "update", "insert dims"], queries)
    wrong = {name: one for name, one in found.items() if any(" " in text for text in one.values())}
    assert not wrong
    assert found["wide sums"]["merge"] == found["sums or NULL"]["merge"] == "OPERATOR_NOT_INCREMENTALIZABLE"
    assert found["exact sums"]["merge"] == "right"
    possible = {name for name, one in found.items() if "right" in one.values()}
    whole = {"join with groups", "groups of an outer join", "joined by an outer join"}
    assert queries.keys() - possible == whole, found


def test_a_table_with_other_partitions_has_other_columns(spark: SparkSession, tmp_path: Path) -> None:
    table = f"delta.`{tmp_path}`"
    for name in ("k", "q"):
        spark.sql(f"CREATE OR REPLACE TABLE {table} USING delta PARTITIONED BY ({name}) AS SELECT 1 k, 2 q")
    assert columns_differ(spark, locate(tmp_path), 0, 1)


def test_a_query_with_other_values_is_another_one(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE delta.`{tmp_path}` USING delta AS SELECT 1 k")

    def digest(value: int) -> str:
        sums = f"aggregate(array(k), 0, (total, one) -> total + one + {value})"
        query = spark.sql(f"SELECT k, {sums} n FROM delta.`{tmp_path}` WHERE k IN (1, {value})")
        return read_query(spark, query).digest

    assert digest(2) == digest(2)
    assert digest(2) != digest(3)


def test_a_query_that_cannot_follow_changes_says_why(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, seed=1)
    retention = "delta.deletedFileRetentionDuration"  # without it, older versions can be read
    spark.sql(f"ALTER TABLE {shop.names['facts']} UNSET TBLPROPERTIES ({retention})")
    for text, reason in FULL.values():
        with pytest.raises(NotIncrementalError, match=r".") as raised:
            check_query(read_query(spark, shop.query(text)))
        assert reason in str(raised.value), json.dumps([text, str(raised.value)])


def test_a_view_whose_columns_another_writer_has_renamed_is_computed_as_a_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop, queries = Shop(spark, tmp_path, seed=1), {"groups": QUERIES["groups"]}

    def follow() -> str:
        shop.change("insert")
        taken = shop.follow("groups", queries["groups"])
        assert not shop.differences(queries)
        return taken

    view = f"delta.`{shop.path('groups')}`"
    assert follow() == "full (FIRST_REFRESH)"
    assert follow() in ("merge", "keys")
    spark.sql(f"ALTER TABLE {view} ADD COLUMN more INT")
    assert follow() == "full (DATA_SCHEMA_CHANGED)"
    assert follow() in ("merge", "keys")
    spark.sql(f"ALTER TABLE {view} SET TBLPROPERTIES (delta.columnMapping.mode = 'name')")
    for change in ("RENAME COLUMN s TO total", "DROP COLUMN nq"):
        spark.sql(f"ALTER TABLE {view} {change}")
        assert follow() == "full (DATA_SCHEMA_CHANGED)"
    assert follow() == "full (CONFIGURATION_CHANGED)"  # Delta converts the rows of such a table


def test_a_date_of_a_time_leaves_out_files_of_other_days(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, seed=1)
    facts = shop.names["facts"]
    spark.sql(f"ALTER TABLE {facts} ADD COLUMN at TIMESTAMP")
    times = "TIMESTAMP'2026-01-01 00:00:00' + make_interval(0, 0, 0, {day})"
    for day in (0, 10, 20, 30):
        rows = f"SELECT {day} + id, 'k', {times.format(day=day)} FROM range(1000)"
        spark.sql(f"INSERT INTO {facts} (id, k, at) {rows}")
    for number, day in enumerate(("CAST(at AS DATE)", "to_date(at)")):
        text = f"SELECT {day} AS day, COUNT(DISTINCT id) AS n FROM {{facts}} GROUP BY {day}"
        seen = shop.versions()
        shop.write(day, text)
        spark.sql(f"DELETE FROM {facts} WHERE at > TIMESTAMP'2026-01-25' AND id % 7 = {number}")
        now = shop.versions()
        leaves = shop.leaves(text, seen, now)
        keys = find_keys(leaves.query, leaves.changed)
        path = shop.path(day)
        increment = compute_again(leaves, keys, ViewIncrement(spark, path).open_rows, 100)
        whole = scanned_bytes(shop.query(text))
        assert 0 < scanned_bytes(increment.added) < whole / 2
        assert shop.refresh(day, text, seen, now)["keys"] == "right"
