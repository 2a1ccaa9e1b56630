"""A refresh of a view by what has changed gives the rows that its query gives."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.increments.by_keys import compute_again
from headrace.increments.changes import find_change
from headrace.increments.increment import Increment, NotIncrementalError
from headrace.increments.leaves import InputTable, Leaves
from headrace.increments.merged import merge
from headrace.increments.query import read_query
from headrace.increments.shape import check_query
from headrace.sinks.delta.data_files import FILE, ROW, position_columns
from headrace.storage.locate import locate
from headrace.storage.table_log import newest_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VECTORS = """TBLPROPERTIES (delta.enableDeletionVectors = true,
    delta.deletedFileRetentionDuration = 'interval 0 seconds')"""
QUERIES = {
    "projection": "SELECT id, upper(k) AS k, amount FROM {facts} WHERE q > 3",
    "groups": """SELECT k, COUNT(*) AS n, COUNT(q) AS nq, SUM(q) AS s, SUM(amount) AS a, COUNT(amount) AS na,
        AVG(q) AS m, COUNT(*) FILTER (WHERE q > 5) AS big, count_if(q > 7) AS bigger, 1 AS one
        FROM {facts} GROUP BY k""",
    "extremes": "SELECT k, d, MIN(q) AS lo, MAX(amount) AS hi FROM {facts} GROUP BY k, d",
    "one row": "SELECT COUNT(*) AS n, SUM(q) AS s, COUNT(q) AS nq FROM {facts}",
    "join": "SELECT f.id, f.k, d.region FROM {facts} f JOIN {dims} d ON f.ref = d.ref",
    "outer join": "SELECT f.id, d.region FROM {facts} f LEFT JOIN {dims} d ON f.ref = d.ref",
    "right join": """SELECT f.id, d.ref, d.region FROM {facts} f
        RIGHT JOIN {dims} d ON f.ref = d.ref AND f.q > 2""",
    "groups of a join": """SELECT d.region, COUNT(*) AS n, SUM(f.q) AS s, COUNT(f.q) AS nq
        FROM {facts} f JOIN {dims} d ON f.ref = d.ref GROUP BY d.region""",
    "distinct values": "SELECT k, COUNT(DISTINCT q) AS u, stddev(q) > 1 AS wide FROM {facts} GROUP BY k",
    "having": "SELECT d, SUM(q) AS s FROM {facts} GROUP BY d HAVING COUNT(*) > 15",
    "window": "SELECT id, k, rank() OVER (PARTITION BY k ORDER BY amount DESC, id) AS r FROM {facts}",
    "top of each": """SELECT * FROM (SELECT id, d, rank() OVER (PARTITION BY d ORDER BY amount DESC, id) AS r
        FROM {facts}) WHERE r <= 3""",
    "exists": """SELECT f.id, f.q FROM {facts} f
        WHERE EXISTS (SELECT 1 FROM {dims} d WHERE d.ref = f.ref AND d.active)""",
    "not in": "SELECT f.id, f.q FROM {facts} f WHERE f.ref NOT IN (SELECT ref FROM {dims})",
    "union": "SELECT k, q FROM {facts} WHERE q < 4 UNION ALL SELECT region, CAST(ref AS INT) FROM {dims}",
    "groups of a union": """SELECT k, COUNT(*) AS n
        FROM (SELECT k FROM {facts} UNION ALL SELECT region FROM {dims}) GROUP BY k""",
    "with itself": "SELECT a.id, b.q FROM {facts} a JOIN {facts} b ON a.id = b.id + 1",
    "join with groups": """SELECT f.id, t.s FROM {facts} f
        JOIN (SELECT ref, SUM(q) AS s FROM {facts} GROUP BY ref) t ON f.ref = t.ref""",
    "common table": """WITH c AS (SELECT k, q FROM {facts} WHERE q IS NOT NULL)
        SELECT k, SUM(q) AS s, COUNT(q) AS n, COUNT(*) AS rows FROM c GROUP BY k""",
    "distinct": "SELECT DISTINCT k, d FROM {facts}",
    "days": "SELECT to_date(d) AS day, COUNT(*) AS n FROM {facts} GROUP BY to_date(d)",
    "moments": """SELECT CAST(d AS TIMESTAMP_NTZ) AS t, struct(k, ref) AS g, COUNT(DISTINCT q) AS u
        FROM {facts} GROUP BY CAST(d AS TIMESTAMP_NTZ), struct(k, ref)""",
    "wide sums": """SELECT k, SUM(CAST(amount AS DECIMAL(38, 10))) AS s, COUNT(amount) AS n, COUNT(*) AS c
        FROM {facts} GROUP BY k""",
    "sums or NULL": """SELECT k, try_sum(q) AS s, COUNT(q) AS n, COUNT(*) AS c FROM {facts} GROUP BY k""",
    "exact sums": """SELECT k, SUM(m) AS s, COUNT(m) AS n, COUNT(*) AS c
        FROM (SELECT k, CAST(CAST(amount AS DECIMAL(30, 15)) / 7 AS DECIMAL(27, 15)) AS m FROM {facts})
        GROUP BY k""",
    "floats": "SELECT k, SUM(f) AS s FROM {facts} GROUP BY k",
    "lists": "SELECT id, piece FROM {facts} LATERAL VIEW explode(array(q, ref)) AS piece",
}
LONG = frozenset(
    {"outer join", "right join", "window", "exists", "union", "common table", "distinct", "days", "floats"}
)
"""Queries like others, for the thorough test only."""
FULL = {
    "limit": ("SELECT id FROM {facts} ORDER BY id LIMIT 3", "it uses LIMIT"),
    "rollup": (
        "SELECT k, d, COUNT(*) AS n FROM {facts} GROUP BY ROLLUP (k, d)",
        "ROLLUP, CUBE or GROUPING SETS",
    ),
    "value": ("SELECT id, (SELECT MAX(ref) FROM {dims}) AS m FROM {facts}", "a subquery as a value"),
    "list": ("SELECT k, collect_list(id) AS ids FROM {facts} GROUP BY k", "collect_list()"),
    "full join": (
        "SELECT f.id, d.region FROM {facts} f FULL JOIN {dims} d ON f.ref = d.ref",
        "FullOuter join",
    ),
    "chance": ("SELECT id FROM {facts} WHERE rand() < 2", "not deterministic"),
    "place": ("SELECT id, _metadata.file_name AS file FROM {facts}", "`_metadata`"),
    "row number": ("SELECT id, rank() OVER (ORDER BY id) AS r FROM {facts}", "without PARTITION BY"),
    "version": ("SELECT id FROM {facts} VERSION AS OF 0", "something else than Delta tables"),
}


class Shop:
    """Two tables that change, and views over them."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self.spark, self.folder, self.random = spark, folder, random.Random(seed)
        self.next = 60
        self.names = {name: f"delta.`{folder / name}`" for name in ("facts", "dims")}
        facts, dims = self.names["facts"], self.names["dims"]
        columns = "id LONG, k STRING, d DATE, q INT, amount DECIMAL(12, 2), ref LONG, f DOUBLE"
        spark.sql(f"CREATE TABLE {facts} ({columns}) USING delta {_VECTORS}")
        spark.sql(f"CREATE TABLE {dims} (ref LONG, region STRING, active BOOLEAN) USING delta {_VECTORS}")
        spark.sql(f"INSERT INTO {facts} {self._facts(0, 60)}")
        spark.sql(f"INSERT INTO {dims} SELECT id, concat('r', id % 2), id % 3 <> 0 FROM range(0, 3)")

    @staticmethod
    def _facts(first: int, end: int) -> str:
        return f"""SELECT id, CASE WHEN id % 7 = 0 THEN NULL ELSE concat('k', id % 5) END AS k,
            date_add(DATE '2026-01-01', CAST(id % 11 AS INT)) AS d,
            CASE WHEN id % 6 = 0 THEN NULL ELSE CAST(id % 13 AS INT) END AS q,
            CAST(id % 17 AS DECIMAL(12, 2)) / 4 AS amount, id % 4 AS ref, id / 3.0 AS f
            FROM range({first}, {end})"""

    def query(self, text: str) -> DataFrame:
        return self.spark.sql(text.format(**self.names))

    def versions(self) -> dict[str, int]:
        return {name: newest_version(locate(self.folder / name)) for name in self.names}

    def change(self, kind: str) -> None:
        facts, dims, number = self.names["facts"], self.names["dims"], self.random.randrange(40)
        first, self.next = self.next, self.next + 7
        rows = self._facts(first - 3, self.next)
        statements = {
            "insert": f"INSERT INTO {facts} {self._facts(first, self.next)}",
            "insert dims": f"INSERT INTO {dims} SELECT {number % 5}, 'r7', true",
            "delete": f"DELETE FROM {facts} WHERE id % 13 = {number % 13}",
            "delete dims": f"DELETE FROM {dims} WHERE ref = {number % 5}",
            "update": f"UPDATE {facts} SET q = q + 1, k = 'k9' WHERE id % 17 = {number % 17}",
            "optimize": f"OPTIMIZE {facts}",
            "merge": f"""MERGE INTO {facts} t USING ({rows}) s ON t.id = s.id
                WHEN MATCHED THEN UPDATE SET q = 99 WHEN NOT MATCHED THEN INSERT *""",
        }
        self.spark.sql(statements[kind])

    def refresh(self, name: str, text: str, seen: dict[str, int], now: dict[str, int]) -> dict[str, str]:
        """Refresh a view by each strategy that is possible; returns those that gave wrong rows, with what is
        wrong, and those that are not possible, with the reason."""
        path = locate(self.folder / name.replace(" ", "_"))
        expected = _rows(self.query(text))
        found: dict[str, str] = {}
        query = read_query(self.spark, self.query(text))
        check_query(query)
        tables = {}
        for folder in query.tables.values():
            table = locate(folder)
            change = find_change(table, seen[table.name], now[table.name])
            tables[folder] = InputTable(
                name=table.name, path=table, before=seen[table.name], now=now[table.name], change=change
            )
        leaves = Leaves(query, tables)
        held = self.spark.read.format("delta").load(str(path)).select("*", *position_columns())
        for strategy in ("append", "merge", "keys"):
            try:
                increment = _increment(strategy, leaves, path)
            except NotIncrementalError as error:
                found[strategy] = error.code
                continue
            kept = held
            if increment.removed is not None:
                kept = held.join(increment.removed.distinct(), [FILE, ROW], "left_anti")
            rows = _rows(kept.drop(FILE, ROW)) + _rows(increment.added)
            increment.release()
            found[strategy] = (
                "right" if rows == expected else f"extra {rows - expected}, missing {expected - rows}"
            )
        return found

    def write(self, name: str, text: str) -> None:
        path = str(self.folder / name.replace(" ", "_"))
        writer = self.query(text).write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer.option("delta.enableDeletionVectors", "true").save(path)


def _rows(frame: DataFrame) -> Counter[str]:
    return Counter(map(str, frame.collect()))


def _increment(strategy: str, leaves: Leaves, path: object) -> Increment:
    version = newest_version(path)  # type: ignore[arg-type]
    if strategy == "append":
        if not leaves.only_gains:
            raise NotIncrementalError("OPERATOR_NOT_INCREMENTALIZABLE", "")
        return Increment(
            strategy="append", added=leaves.query.frame(leaves.delta(leaves.query.root, "gained"))
        )
    if strategy == "merge":
        return merge(leaves, path, version)  # type: ignore[arg-type]
    return compute_again(leaves, path, version, 10_000)  # type: ignore[arg-type]


CHANGES = ("insert", "insert", "delete", "update", "insert dims", "delete dims", "optimize", "merge")


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
    assert queries.keys() - possible == {"join with groups"}, found


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(25))
def test_each_strategy_gives_the_rows_of_the_query_after_any_changes(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    shop = Shop(spark, tmp_path, seed)
    for _ in range(20):
        kinds = shop.random.choices(CHANGES, k=shop.random.randrange(1, 4))
        queries = dict(shop.random.sample(list(QUERIES.items()), 3))
        found = _round(shop, kinds, queries)
        assert not any(" " in text for one in found.values() for text in one.values()), (kinds, found)


def test_a_query_that_cannot_follow_changes_says_why(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, seed=1)
    for text, reason in FULL.values():
        with pytest.raises(NotIncrementalError, match=r".") as raised:
            check_query(read_query(spark, shop.query(text)))
        assert reason in str(raised.value), json.dumps([text, str(raised.value)])
