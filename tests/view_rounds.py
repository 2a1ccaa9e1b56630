"""Tables that change in every way that Delta knows, and views over them that are refreshed by the changes."""

# ruff: noqa: E501
from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.contracts.expectations import passes, with_checks
from headrace.errors import SourceLocation
from headrace.increments.by_keys import compute_again
from headrace.increments.changes import columns_differ, find_change
from headrace.increments.costs import Costs
from headrace.increments.increment import Increment, NotIncrementalError
from headrace.increments.leaves import InputTable, Leaves
from headrace.increments.merged import find_groups, merge
from headrace.increments.query import ViewQuery, read_query
from headrace.increments.shape import check_query, find_keys
from headrace.model.declarations import Expectation, MaterializedView
from headrace.model.names import TableName, quoted_column
from headrace.run.increments import ViewIncrements
from headrace.run.split import RefreshSplit
from headrace.runtime.lazy_pyspark import Column, DataFrame, F
from headrace.sinks.delta.data_files import FILE, ROW, position_columns
from headrace.sinks.delta.increment import ViewIncrement
from headrace.sinks.delta.quarantine import QuarantineTable
from headrace.sinks.delta.replace import ReplaceTarget
from headrace.sinks.delta.table import read_state
from headrace.sinks.target import RefreshStamp
from headrace.storage.layout import Storage, locate
from headrace.storage.location import Location
from headrace.storage.row_counts import last_refresh
from headrace.storage.table_log import commit_mark, newest_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    "rows without another": """SELECT f.id, f.k FROM {facts} f
        LEFT JOIN {dims} d ON f.ref = d.ref WHERE d.ref IS NULL""",
    "values in place of NULL": """SELECT f.id, coalesce(d.region, 'none') AS region FROM {facts} f
        LEFT JOIN {dims} d ON f.ref = d.ref WHERE coalesce(d.region, 'none') <> 'r1'""",
    "groups of an outer join": """SELECT d.region, COUNT(DISTINCT f.id) AS n, COUNT(*) AS c FROM {facts} f
        LEFT JOIN {dims} d ON f.ref = d.ref GROUP BY d.region""",
    "joined by an outer join": """SELECT f.id, e.region FROM {facts} f LEFT JOIN {dims} d ON f.ref = d.ref
        JOIN {dims} e ON coalesce(d.region, 'r1') = e.region""",
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
    "keys that fail": """SELECT 12 div q AS part, COUNT(DISTINCT ref) AS n FROM {facts} WHERE q <> 0
        GROUP BY 12 div q""",
    "lists": "SELECT id, piece FROM {facts} LATERAL VIEW explode(array(q, ref)) AS piece",
}
ODD_QUERIES = {
    "decimals": """SELECT k, SUM(exact) AS s, COUNT(exact) AS ns, SUM(small) AS t, COUNT(small) AS nt,
        COUNT(*) AS n FROM {odd} GROUP BY k""",
    "sums that may be too large": "SELECT k, try_sum(huge) AS s, COUNT(huge) AS nh, COUNT(*) AS n FROM {odd} GROUP BY k",
    "decimal sums that may be too large": """SELECT k, try_sum(huge * 1BD * 1000000000BD) AS s,
        COUNT(huge) AS nh, COUNT(*) AS n FROM {odd} GROUP BY k""",
    "odd averages": """SELECT k, AVG(big) AS m, SUM(big) AS s, COUNT(big) AS nb, COUNT(*) AS n
        FROM {odd} GROUP BY k""",
    "filtered": """SELECT k, COUNT(*) FILTER (WHERE st IS NULL) AS n0, COUNT(*) AS n,
        SUM(big) FILTER (WHERE flag) AS s, COUNT(big) FILTER (WHERE flag) AS ns FROM {odd} GROUP BY k""",
    "decimal keys": "SELECT exact, small, COUNT(DISTINCT k) AS u FROM {odd} GROUP BY exact, small",
    "time keys": "SELECT at, ts, day, COUNT(DISTINCT k) AS u FROM {odd} GROUP BY at, ts, day",
    "time key": "SELECT at, COUNT(DISTINCT k) AS u FROM {odd} GROUP BY at",
    "instants": "SELECT ts, COUNT(DISTINCT k) AS u FROM {odd} GROUP BY ts",
    "days of moments": """SELECT CAST(ts AS DATE) AS day, to_date(at) AS other, COUNT(DISTINCT k) AS u FROM {odd}
        GROUP BY CAST(ts AS DATE), to_date(at)""",
    "day of moments": "SELECT CAST(ts AS DATE) AS day, COUNT(DISTINCT k) AS u FROM {odd} GROUP BY CAST(ts AS DATE)",
    "days of the calendar": "SELECT day, COUNT(DISTINCT k) AS u FROM {odd} GROUP BY day",
    "merged keys": """SELECT at, bin, st, arr, flag, exact, COUNT(*) AS n, SUM(big) AS s, COUNT(big) AS nb
        FROM {odd} GROUP BY at, bin, st, arr, flag, exact""",
    "binary keys": "SELECT bin, COUNT(DISTINCT k) AS u FROM {odd} GROUP BY bin",
    "struct keys": "SELECT st, COUNT(DISTINCT k) AS u FROM {odd} GROUP BY st",
    "nested keys": """SELECT st.b AS b, st.a + 1 AS a, COUNT(DISTINCT k) AS u FROM {odd}
        GROUP BY st.b, st.a + 1""",
    "array keys": "SELECT arr, COUNT(DISTINCT k) AS u FROM {odd} GROUP BY arr",
    "bool keys": "SELECT flag, tiny, COUNT(DISTINCT k) AS u FROM {odd} GROUP BY flag, tiny",
    "float keys": "SELECT f, COUNT(*) AS n, SUM(big) AS s, COUNT(big) AS nb FROM {odd} GROUP BY f",
    "text of float keys": "SELECT CAST(f AS STRING) AS x, COUNT(DISTINCT k) AS u FROM {odd} GROUP BY f",
    "float keys and others": """SELECT flag, CAST(f AS STRING) AS x, COUNT(*) AS n, COUNT(big) AS nb,
        SUM(big) AS s FROM {odd} GROUP BY flag, f""",
    "collated keys": """SELECT CAST(name COLLATE UTF8_LCASE AS STRING COLLATE UTF8_BINARY) AS x,
        COUNT(DISTINCT k) AS u FROM {odd} GROUP BY name COLLATE UTF8_LCASE""",
    "float join": """SELECT CAST(o.f AS STRING) AS x, COUNT(DISTINCT p.id) AS u FROM {odd} o JOIN {odd} p
        ON o.f = p.f GROUP BY CAST(o.f AS STRING)""",
    "collated join": """SELECT o.name AS x, COUNT(DISTINCT p.id) AS u FROM {odd} o JOIN {odd} p
        ON o.name COLLATE UTF8_LCASE = p.name COLLATE UTF8_LCASE GROUP BY o.name""",
    "collated rows": """SELECT o.id, d.region FROM {odd} o
        LEFT JOIN {dims} d ON o.name COLLATE UTF8_LCASE = concat('A', d.region) COLLATE UTF8_LCASE""",
    "window over structs": """SELECT id, st, row_number() OVER (PARTITION BY st ORDER BY id) AS r FROM {odd}""",
    "window over floats": """SELECT id, CAST(f AS STRING) AS x, COUNT(*) OVER (PARTITION BY f) AS n FROM {odd}""",
    "window over collated": """SELECT id, name, COUNT(*) OVER (PARTITION BY name COLLATE UTF8_LCASE) AS n
        FROM {odd}""",
    "all sums": "SELECT COUNT(*) AS n, SUM(exact) AS s, COUNT(exact) AS ns, 1 AS one FROM {odd}",
    "all extremes": "SELECT MIN(st) AS lo, MAX(at) AS hi, MIN(bin) AS b, MAX(day) AS d, MAX(arr) AS a FROM {odd}",
    "all distinct": "SELECT 1 AS one, COUNT(DISTINCT st) AS u FROM {odd}",
    "two totals": """SELECT 1 AS one, COUNT(DISTINCT st) AS u FROM {odd}
        UNION ALL SELECT 2, COUNT(DISTINCT ref) FROM {dims}""",
    "a constant group": "SELECT 'x' AS x, COUNT(*) AS n, SUM(big) AS s, COUNT(big) AS nb FROM {odd} GROUP BY x",
    "odd extremes": """SELECT k, MIN(st) AS lo, MAX(at) AS hi, MIN(bin) AS b, MAX(arr) AS a, MAX(exact) AS e
        FROM {odd} GROUP BY k""",
    "odd distinct": "SELECT DISTINCT st, bin, at FROM {odd}",
    "odd union": "SELECT st FROM {odd} UNION ALL SELECT named_struct('a', CAST(ref AS INT), 'b', region) FROM {dims}",
    "semi join": "SELECT o.id, o.st FROM {odd} o LEFT SEMI JOIN {dims} d ON o.st.a = d.ref",
    "anti join": "SELECT o.id, o.st FROM {odd} o LEFT ANTI JOIN {dims} d ON o.st.a = d.ref AND o.flag",
    "groups of groups": "SELECT n, COUNT(*) AS m FROM (SELECT k, COUNT(*) AS n FROM {odd} GROUP BY k) GROUP BY n",
    "outer join of groups": """SELECT o.id, o.k, t.u FROM {odd} o LEFT JOIN
        (SELECT k, COUNT(DISTINCT st) AS u FROM {odd} GROUP BY k) t ON o.k = t.k""",
    "three tables": """SELECT o.id, d.region, COUNT(DISTINCT f.id) AS u FROM {odd} o
        JOIN {dims} d ON pmod(o.id, 4) = d.ref LEFT JOIN {facts} f ON f.ref = d.ref AND f.k = o.k
        GROUP BY o.id, d.region""",
}
_ODD = {
    "k": ("STRING", "'a'", "'b'", "'c'", "NULL"),
    "exact": (
        "DECIMAL(38, 10)",
        "0.0000000001",
        "1234567890123456789012345.1234567891",
        "-1234567890123456789012345.1234567892",
        "0",
        "NULL",
    ),
    "small": ("DECIMAL(28, 8)", "0.00000001", "1234.56780001", "-7", "NULL"),
    "at": ("TIMESTAMP_NTZ", "'2026-03-29 02:30:00.123456'", "'1883-11-18 12:00:00'", "'2026-01-01'", "NULL"),
    "ts": ("TIMESTAMP", "'2026-03-29 01:30:00.000001Z'", "'1969-12-31 23:59:59.999999Z'", "NULL"),
    "day": ("DATE", "'1582-10-14'", "'0001-01-01'", "'2026-01-01'", "NULL"),
    "bin": ("BINARY", "X'00'", "X''", "X'FF00'", "NULL"),
    "name": ("STRING", "'ADA'", "'Ada'", "'ada'", "'Ar1'", "'aR1'", "NULL"),
    "st": (
        "STRUCT<a: INT, b: STRING>",
        "named_struct('a', 1, 'b', 'x')",
        "named_struct('a', NULL, 'b', 'x')",
        "named_struct('a', NULL, 'b', NULL)",
        "NULL",
    ),
    "arr": ("ARRAY<INT>", "array(1, 2)", "array()", "array(CAST(NULL AS INT))", "NULL"),
    "f": ("DOUBLE", "0.0D", "-0.0D", "double('NaN')", "1.5D", "double('-Infinity')", "NULL"),
    "big": ("BIGINT", "9007199254740993", "-3", "NULL"),
    "huge": ("BIGINT", "9223372036854775807", "1", "-9223372036854775808", "NULL"),
    "tiny": ("TINYINT", "127", "-128", "NULL"),
    "flag": ("BOOLEAN", "true", "false", "NULL"),
}
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
_DIMS = ("insert dims", "delete dims", "insert dims", "delete dims", "empty dims")
CHANGES = (
    *("insert", "insert", "delete", "update", "update", "optimize", "merge", "foreign", "empty", "erase"),
    *("overwrite", *_DIMS),
)
ODD_CHANGES = (
    *("insert odd", "insert odd", "insert odd", "delete odd", "update odd", "update odd", "merge odd"),
    *("optimize odd", "empty odd", "overwrite odd", "grow", "purge", "delete null", *_DIMS, "insert"),
)
_RARE = {"erase": 0.1, "grow": 0.1}
"""After these, each view is computed as a whole."""
TABLES = ("facts", "dims", "odd")


STRATEGIES = ("append", "merge", "keys")
VIEWS = 8
"""How many of the queries are views of one seed."""
REFRESHED = 2
"""How many of the views are refreshed in a round; the others take several rounds at once."""


@dataclass(kw_only=True)
class ChosenIncrements(ViewIncrements):
    """The increments of a view, by the first strategy that is possible. `order`: the strategies."""

    order: Sequence[str]

    def _find(self, leaves: Leaves, begun: ViewIncrement, costs: Costs | None) -> Increment:
        for strategy in self.order:
            try:
                return increment_by(strategy, leaves, begun, self.view.expectations)
            except NotIncrementalError:
                continue
        return super()._find(leaves, begun, costs)


class _NoErasures:
    """The maintenance of tables of which nothing is erased."""

    @staticmethod
    def awaits_rewrite(_: Location) -> bool:
        return False


@dataclass
class Outcome:
    """What many rounds have shown. `taken`: how often each strategy was taken, and each reason for a whole
    view."""

    wrong: list[str] = field(default_factory=list)
    rounds: int = 0
    compared: int = 0
    taken: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        taken = ", ".join(f"{name} {number}" for name, number in self.taken.most_common())
        return f"{self.rounds} rounds, {self.compared} comparisons; {taken}"


class Shop:
    """Tables that change, and views over them."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self.spark, self.random = spark, random.Random(seed)
        self.storage, self.folder = Storage.at(folder), folder / "tables" / "default"
        self.next = 60
        # How often each view was given up after a wrong refresh; then a new table begins.
        self.given_up: Counter[str] = Counter()
        self.names = {name: f"delta.`{self.folder / name}`" for name in TABLES}
        facts, dims, odd = self.names.values()
        columns = "id LONG, k STRING, d DATE, q INT, amount DECIMAL(12, 2), ref LONG, f DOUBLE"
        spark.sql(f"CREATE TABLE {facts} ({columns}) USING delta {_VECTORS}")
        spark.sql(f"CREATE TABLE {dims} (ref LONG, region STRING, active BOOLEAN) USING delta {_VECTORS}")
        kinds = ", ".join(f"{name} {one[0]}" for name, one in _ODD.items())
        spark.sql(f"CREATE TABLE {odd} (id LONG, {kinds}) USING delta {_VECTORS}")
        spark.sql(f"INSERT INTO {facts} {self._facts(0, 60)}")
        spark.sql(f"INSERT INTO {dims} SELECT id, concat('r', id % 2), id % 3 <> 0 FROM range(0, 3)")
        spark.sql(f"INSERT INTO {odd} (id, {', '.join(_ODD)}) {self._odd(0, 40)}")

    @staticmethod
    def _facts(first: int, end: int) -> str:
        return f"""SELECT id, CASE WHEN id % 7 = 0 THEN NULL ELSE concat('k', id % 5) END AS k,
            date_add(DATE '2026-01-01', CAST(id % 11 AS INT)) AS d,
            CASE WHEN id % 6 = 0 THEN NULL ELSE CAST(id % 13 AS INT) END AS q,
            CAST(id % 17 AS DECIMAL(12, 2)) / 4 AS amount, id % 4 AS ref, id / 3.0 AS f
            FROM range({first}, {end})"""

    def _value(self, name: str) -> str:
        kind, *values = _ODD[name]
        chosen = ", ".join(f"CAST({one} AS {kind})" for one in values)
        salt = self.random.randrange(1000)
        return f"element_at(array({chosen}), CAST(pmod(xxhash64(id, {salt}), {len(values)}) AS INT) + 1)"

    def _odd(self, first: int, end: int) -> str:
        values = ", ".join(f"{self._value(name)} AS {name}" for name in _ODD)
        return f"SELECT id, {values} FROM range({first}, {end})"

    def query(self, text: str, versions: dict[str, int] | None = None) -> DataFrame:
        at = {
            name: one if versions is None else f"(SELECT * FROM {one} VERSION AS OF {versions[name]})"
            for name, one in self.names.items()
        }
        return self.spark.sql(text.format(**at))

    def path(self, name: str) -> Location:
        return self.storage.table(self._table(name))

    def _table(self, name: str) -> TableName:
        number = self.given_up[name]
        return TableName("default", name.replace(" ", "_") + (f"_{number}" if number else ""))

    def versions(self) -> dict[str, int]:
        return {name: newest_version(locate(self.folder / name)) for name in self.names}

    def change(self, kind: str) -> None:
        facts, dims, odd = self.names.values()
        number = self.random.randrange(40)
        first, self.next = self.next, self.next + 7
        rows = self._facts(first - 3, self.next)
        columns = self.random.sample(list(_ODD), 4)
        some = f"pmod(xxhash64(id, {number}), 5) = 0"
        statements = {
            "insert": f"INSERT INTO {facts} {self._facts(first, self.next)}",
            "insert dims": f"INSERT INTO {dims} SELECT {number % 5}, 'r7', true",
            "delete": f"DELETE FROM {facts} WHERE id % 13 = {number % 13}",
            "delete dims": f"DELETE FROM {dims} WHERE ref = {number % 5}",
            "empty dims": f"DELETE FROM {dims}",
            "update": f"UPDATE {facts} SET q = q + 1, k = 'k9' WHERE id % 17 = {number % 17}",
            "optimize": f"OPTIMIZE {facts}",
            "merge": f"""MERGE INTO {facts} t USING ({rows}) s ON t.id = s.id
                WHEN MATCHED THEN UPDATE SET q = 99 WHEN NOT MATCHED THEN INSERT
                (id, k, d, q, amount, ref, f) VALUES (s.id, s.k, s.d, s.q, s.amount, s.ref, s.f)""",
            "insert odd": f"INSERT INTO {odd} (id, {', '.join(_ODD)}) {self._odd(first, self.next)}",
            "delete odd": f"DELETE FROM {odd} WHERE {some}",
            "delete null": f"DELETE FROM {odd} WHERE {columns[0]} IS NOT NULL",
            "empty odd": f"DELETE FROM {odd}",
            "empty": f"DELETE FROM {facts}",
            "erase": f"DELETE FROM {facts} WHERE id % 23 = {number % 23}",
            "overwrite": f"INSERT OVERWRITE {facts} (id, k, d, q, amount, ref, f) {self._facts(first - 30, self.next)}",
            "update odd": f"UPDATE {odd} SET "
            + ", ".join(f"{name} = {self._value(name)}" for name in columns)
            + f" WHERE {some}",
            "merge odd": f"""MERGE INTO {odd} t USING ({self._odd(first - 9, self.next)}) s ON t.id = s.id
                WHEN MATCHED AND t.id % 3 = 0 THEN DELETE
                WHEN MATCHED THEN UPDATE SET {", ".join(f"{name} = s.{name}" for name in columns)}
                WHEN NOT MATCHED THEN INSERT (id, {", ".join(_ODD)})
                VALUES (s.id, {", ".join(f"s.{name}" for name in _ODD)})""",
            "optimize odd": f"OPTIMIZE {odd}",
            "overwrite odd": f"INSERT OVERWRITE {odd} (id, {', '.join(_ODD)}) {self._odd(first - 20, self.next)}",
            "grow": f"ALTER TABLE {odd} ADD COLUMNS (more_{first} STRING)",
            "foreign": f"INSERT INTO {facts} (id, q, k) SELECT {first}, 2, 'k1'",
            "purge": f"REORG TABLE {odd} APPLY (PURGE)",
        }
        self.spark.sql(statements[kind])
        if kind == "foreign":
            _reformat(self.folder / "facts")
        if kind == "erase":
            self._purge()

    def _purge(self) -> None:
        """Delete the files that only older versions have, as an erasure does."""
        self.spark.sql(f"REORG TABLE {self.names['facts']} APPLY (PURGE)")
        files = self.spark.sql(f"SELECT DISTINCT _metadata.file_name AS name FROM {self.names['facts']}")
        live = {row.name for row in files.collect()}
        for file in (self.folder / "facts").glob("*.parquet"):
            if file.name not in live:
                file.unlink()

    def expected(self, text: str, versions: dict[str, int] | None = None) -> Counter[str]:
        return rows_of(self.query(text, versions))

    def refresh(self, name: str, text: str, seen: dict[str, int], now: dict[str, int]) -> dict[str, str]:
        """Refresh a view by each strategy that is possible; returns those that gave wrong rows, with what is
        wrong, and those that are not possible, with the reason."""
        path = self.path(name)
        expected = self.expected(text)
        found: dict[str, str] = {}
        try:
            leaves = self.leaves(text, seen, now)
        except NotIncrementalError as error:
            return {"all": error.code}
        held = self.spark.read.format("delta").load(str(path)).select("*", *position_columns())
        for strategy in ("append", "merge", "keys"):
            try:
                increment = increment_by(strategy, leaves, ViewIncrement(self.spark, path))
            except NotIncrementalError as error:
                found[strategy] = error.code
                continue
            kept = held
            if increment.removed is not None:
                kept = held.join(increment.removed.distinct(), [FILE, ROW], "left_anti")
            rows = rows_of(kept.drop(FILE, ROW)) + rows_of(increment.added)
            increment.release()
            found[strategy] = (
                "right" if rows == expected else f"extra {rows - expected}, missing {expected - rows}"
            )
        return found

    def leaves(self, text: str, seen: dict[str, int], now: dict[str, int]) -> Leaves:
        query = read_query(self.spark, self.query(text))
        check_query(query)
        return Leaves(query, {folder: self._input(folder, seen, now) for folder in _folders(query)})

    def _input(self, folder: str, seen: dict[str, int], now: dict[str, int]) -> InputTable:
        table = locate(folder)
        before, version = seen[table.name], now[table.name]
        change = find_change(table, before, version)
        if change.alters and columns_differ(self.spark, table, before, version):
            raise NotIncrementalError("DATA_SCHEMA_CHANGED", "other columns")
        change.check_files()
        return InputTable(name=table.name, path=table, before=before, now=version, change=change)

    def write(self, name: str, text: str) -> None:
        writer = self.query(text).write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer.option("delta.enableDeletionVectors", "true").save(str(self.path(name)))

    def follow(self, name: str, text: str) -> str:
        """Refresh a view as a run does, by one of the strategies that are possible; returns the strategy, or
        why the whole view was computed."""
        stamp = self._stamp(name, text)
        path = self.path(name)
        writer = ReplaceTarget(path=path, quarantine=path.parent / "quarantine").begin(self.spark, stamp)
        if writer is None:
            return "up to date"
        view = MaterializedView(
            name=self._table(name),
            location=SourceLocation("shop.sql", 1),
            refresh_policy="incremental",
            expectations=_expectations(self.query(text).columns) if len(name) % 2 else (),
        )
        maintenance: Any = _NoErasures()
        stage: Any = SimpleNamespace(view=view, planned=SimpleNamespace(checked_views=()))
        quarantine = QuarantineTable(path=path.parent / "quarantine", columns="")
        split = RefreshSplit(stage=stage, quarantine=quarantine, max_rejected=None)
        increments = ChosenIncrements(
            view=view,
            storage=self.storage,
            maintenance=maintenance,
            is_streamed=False,
            split=split,
            order=self.random.sample(STRATEGIES, 3),
        )
        attempt = increments.attempt(self.spark, self.query(text), stamp)
        if attempt.committed is None:
            writer.stamp = attempt.stamp
            with split.begin(attempt.frame(), attempt.stamp) as rows:
                writer.write(rows)
                rows.settle()
                writer.commit()
        self._check_counts(view)
        return attempt.strategy if attempt.committed else f"full ({attempt.code})"

    def _check_counts(self, view: MaterializedView) -> None:
        """Check that the newest commit has the counts of all rows that the view has now."""
        path = self.storage.table(view.name)
        if view.expectations:
            rows = self.spark.read.format("delta").load(str(path))
            failed = [F.count_if(~passes(one)).alias(one.name) for one in view.expectations]
            found = rows.agg(F.count("*").alias("rows"), *failed).collect()[0].asDict()
            last = last_refresh(path) or {}
            told = {one["name"]: one["failed"] for one in last["expectations"]}
            assert {"rows": last["accepted"], **told} == found, "the counts are wrong"
            assert {one["passed"] + one["failed"] for one in last["expectations"]} == {found["rows"]}

    def _stamp(self, name: str, text: str) -> RefreshStamp:
        inputs = {}
        for table in (one for one in TABLES if f"{{{one}}}" in text):
            path = self.path(table)
            version = newest_version(path)
            inputs[f"default.{table}"] = {
                "table_id": read_state(self.spark, path).table_id,
                "version": version,
                "commit": commit_mark(path, version),
            }
        return RefreshStamp(
            pipeline="shop",
            view=str(self._table(name)),
            update=f"update-{self.next}",
            definition=text,
            inputs=inputs,
            began_ms=time.time_ns() // 1_000_000,
        )

    def differences(self, queries: Mapping[str, str]) -> dict[str, str]:
        """Compare views with their queries; returns what is wrong. One job reads all of them: to start and to
        plan Spark's jobs takes longest."""
        frames = []
        for name, text in queries.items():
            held = self.spark.read.format("delta").load(str(self.path(name)))
            for side, frame in (("query", self.query(text)), ("view", held)):
                values = F.array(*(_text(frame, one) for one in frame.columns))
                frames.append(frame.select(F.lit(name), F.lit(side), values))
        rows = reduce(lambda one, other: one.union(other), frames).collect()
        found = {(name, side): Counter[str]() for name in queries for side in ("query", "view")}
        for name, side, values in rows:
            found[name, side][str(values).casefold()] += 1
        wrong = {}
        for name in queries:
            expected, held_rows = found[name, "query"], found[name, "view"]
            if expected != held_rows:
                wrong[name] = f"extra {held_rows - expected}, missing {expected - held_rows}"
        return wrong


def _expectations(columns: Sequence[str]) -> tuple[Expectation, ...]:
    first, last = quoted_column(columns[0]), quoted_column(columns[-1])
    place = SourceLocation("shop.sql", 1)
    texts = {"known": (f"{first} IS NOT NULL", "pass"), "even": (f"length(string({last})) % 2 = 0", "fail")}
    return tuple(
        Expectation(name=name, condition=text, text=text, action="warn", location=place, nulls=nulls)
        for name, (text, nulls) in texts.items()
    )


def _folders(query: ViewQuery) -> set[str]:
    return set(query.tables.values())


def _reformat(table: Path) -> None:
    """Write the newest commit as another writer may: with spaces between the parts of its JSON."""
    newest = max((table / "_delta_log").glob("*.json"))
    lines = newest.read_text().splitlines()
    newest.write_text("\n".join(json.dumps(json.loads(line)) for line in lines) + "\n")
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def rows_of(frame: DataFrame) -> Counter[str]:
    """The rows as texts; of strings that are equal by collation, either form will do."""
    return Counter(str([_plain(value) for value in row]).casefold() for row in frame.collect())


def _plain(value: Any) -> Any:
    return float(f"{value:.10g}") if isinstance(value, float) else value


def increment_by(
    strategy: str, leaves: Leaves, begun: ViewIncrement, expectations: Sequence[Expectation] = ()
) -> Increment:
    checked = partial(with_checks, expectations=expectations)
    if strategy == "append":
        if not leaves.only_gains:
            raise NotIncrementalError("ROWS_CHANGED", "")
        return Increment(
            strategy="append", added=leaves.query.frame(leaves.delta(leaves.query.root, "gained"))
        )
    if strategy == "merge":
        groups = find_groups(leaves.query, leaves.changed, only_gains=leaves.only_gains)
        return merge(leaves, groups, begun.open_rows(), checked)
    keys = find_keys(leaves.query, leaves.changed)
    return compute_again(leaves, keys, begun.open_rows, 10_000, checked=checked)


def _text(frame: DataFrame, name: str) -> Column:
    """A column as texts that are equal if its values are; the last digits of floats may differ."""
    value, kind = F.col(quoted_column(name)), frame.schema[name].dataType.typeName()
    if kind in ("float", "double"):
        return F.when(value.isNotNull(), F.format_string("%.10g", value))
    return F.hex(value) if kind == "binary" else value.cast("string")


def new_session(spark: SparkSession, seed: int) -> SparkSession:
    """A session whose queries of a few rows need few jobs. Every second seed has Spark's adaptive plans."""
    session = spark.newSession()
    for name, value in (
        ("spark.sql.shuffle.partitions", "1"),
        ("spark.sql.leafNodeDefaultParallelism", "1"),
        ("spark.sql.adaptive.enabled", str(seed % 2 == 0).lower()),
    ):
        session.conf.set(name, value)
    return session


def run_rounds(shop: Shop, rounds: int, queries: Mapping[str, str]) -> Outcome:
    """Change the tables in each round, and refresh some views; at the end, all. Compare them with their
    queries each time."""
    outcome = Outcome()
    chosen = shop.random.sample(list(queries), min(VIEWS, len(queries)))
    changes = CHANGES if queries is QUERIES else ODD_CHANGES
    for number in range(rounds):
        kinds = shop.random.choices(changes, [_RARE.get(one, 1.0) for one in changes], k=number % 3 + 1)
        for kind in kinds:
            shop.change(kind)
        names = chosen if number == rounds - 1 else shop.random.sample(chosen, REFRESHED)
        for name, text in _wrong(shop, {name: queries[name] for name in names}, outcome):
            shop.given_up[name] += 1
            outcome.wrong.append(f"round {number}, {kinds}, {name}: {text}")
        outcome.rounds += 1
    return outcome


def _wrong(shop: Shop, queries: Mapping[str, str], outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Refresh views; returns those that are wrong."""
    compared, taken = {}, {}
    for name, text in queries.items():
        try:
            taken[name] = shop.follow(name, text)
            compared[name] = text
        except Exception as error:
            yield name, f"a {type(error).__name__}: {str(error)[:1500]}"
    outcome.taken.update(taken.values())
    outcome.compared += len(compared)
    for name, text in _differences(shop, compared):
        yield name, f"{taken[name]}: {text}"


def _differences(shop: Shop, queries: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if not queries:
        return
    try:
        yield from shop.differences(queries).items()
    except Exception as error:
        if len(queries) == 1:
            yield next(iter(queries)), f"a {type(error).__name__}: {str(error)[:1500]}"
            return
        # One of them cannot be read.
        for name, text in queries.items():
            yield from _differences(shop, {name: text})
