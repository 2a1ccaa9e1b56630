"""Changes by key on a real Delta table, against what plain Python says that the table must hold."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import deltalake
import numpy as np
import pytest
from pyspark.sql import functions

from cdc_oracle import Change, current_rows, random_batches, random_changes
from cdc_table import create_table
from headrace.contracts.changes import ChangeColumns, as_changes
from headrace.errors import BatchFencedError, KeyTwiceError
from headrace.model.counts import RowChanges
from headrace.model.maintenance import TablePolicy
from headrace.model.names import KEPT_PROPERTY, DuplicateKeys
from headrace.sinks.delta import folding, key_index, keyed, merge, placed_rows, table_index, tombstones
from headrace.sinks.delta.folding import SharedTable, SharedTables
from headrace.sinks.delta.key_index import UNKNOWN, KeyIndex
from headrace.sinks.delta.merge import MergeTarget
from headrace.sinks.delta.tombstones import Tombstones
from headrace.sinks.row_hash import row_hash
from headrace.sinks.target import BatchStamp, Committed, SplitRows
from headrace.storage.layout import locate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ChangeColumns(
    keys=("id",), sequence_by="ts", deletes="op = 'delete'", truncates="op = 'truncate'", excluded=("op",)
)
PROPERTIES = {
    "property": "'a' = 'b'",
    "feed": "'delta.enableChangeDataFeed' = 'true'",
    "row tracking": "'delta.enableRowTracking' = 'true'",
    "column mapping": "'delta.columnMapping.mode' = 'name'",
}
WITHOUT_INDEX = {
    "row tracking": "the table has delta.enableRowTracking",
    "column mapping": "Delta's own writer has to convert the rows",
}
"""Why a batch does not use the index after the change of another writer."""

SOURCE = (
    "id INT, ts INT, op STRING, value STRING, _source STRUCT<topic: STRING, partition: INT, offset: BIGINT>"
)


@dataclass
class Table:
    """A table that changes are applied to, and read without Spark.

    Args:
        keys: The key columns; if there are others than `id`, ``key_columns`` gives their values by `id`.
        key_columns: Adds them to change records.
    """

    spark: SparkSession
    path: Path
    keys: tuple[str, ...] = ("id",)
    key_columns: Callable[[DataFrame], DataFrame] | None = None
    index_memory: int = 1 << 30
    duplicate_keys: DuplicateKeys = "fail"
    shared: SharedTable = field(default_factory=SharedTable)
    batches: Iterator[int] = field(default_factory=itertools.count)

    @property
    def target(self) -> MergeTarget:
        dead = Tombstones(path=locate(self.path.with_name(f"{self.path.name}-dead")), keys=self.keys)
        return MergeTarget(
            spark=self.spark,
            path=locate(self.path),
            keys=self.keys,
            tombstones=dead,
            truncates=True,
            shared=self.shared,
            index_memory=self.index_memory,
            duplicate_keys=self.duplicate_keys,
        )

    @property
    def rows(self) -> dict[int, str]:
        table = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(self.path))
        found = table.execute("SELECT id, value FROM t").read_all()
        pairs = list(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))
        assert len(dict(pairs)) == len(pairs), "a key has two rows"
        return dict(pairs)

    def changes(self, changes: Sequence[Change]) -> DataFrame:
        rows = [(one.key, one.sequence, one.operation, one.value, ("t", 0, one.offset)) for one in changes]
        records = self.spark.createDataFrame(rows, SOURCE)
        if self.key_columns is not None:
            records = self.key_columns(records)
        return as_changes(records, replace(COLUMNS, keys=self.keys))

    def stamp(self, batch: int) -> BatchStamp:
        return BatchStamp(pipeline="p", flow="f", checkpoint="headrace-c", batch=batch, ranges=())

    def apply(self, changes: Sequence[Change], *, batch: int | None = None) -> Committed | None:
        number = next(self.batches) if batch is None else batch
        writer = self.target.begin(self.spark, self.stamp(number))
        if writer is None:
            return None
        with writer, SplitRows(accepted=self.changes(changes)) as rows:
            writer.write(rows)
            return writer.commit()


def create(
    spark: SparkSession, path: Path, columns: str = "", layout: str = "", vectors: str = "true"
) -> Path:
    return create_table(spark, path, f"id INT, ts INT, value STRING{columns}", layout, vectors)


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    """A table with an index of its keys."""
    return Table(spark, create(spark, tmp_path / "t"))


@pytest.fixture(
    params=[*(pytest.param(way, marks=pytest.mark.thorough) for way in ("merge", "positions")), "index"]
)
def either(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    """A table whose changes are applied with a MERGE, by position without an index, and with one."""
    path = create(spark, tmp_path / "t", vectors=str(request.param != "merge").lower())
    return Table(spark, path, index_memory=1 << 30 if request.param == "index" else 0)


@pytest.mark.parametrize(
    ("either", "seed", "truncates"),
    [
        *(("merge", 1, 0), ("positions", 2, 3), ("index", 2, 3)),
        pytest.param("merge", 2, 3, marks=pytest.mark.thorough),
        *(pytest.param(way, 1, 0, marks=pytest.mark.thorough) for way in ("positions", "index")),
    ],
    indirect=["either"],
)
def test_the_table_holds_the_newest_record_of_each_key_however_the_records_were_cut(
    either: Table, seed: int, truncates: int
) -> None:
    changes = random_changes(seed, keys=60, count=400, truncates=truncates)
    if seed == 2:  # as from several partitions: equal sequences do not come in the order of their positions
        random.Random(seed).shuffle(changes)
    applied: list[Change] = []
    totals: list[RowChanges] = []
    for batch in random_batches(seed, changes, 4):
        committed = either.apply(batch)
        assert committed is not None and committed.counts.changes is not None
        totals.append(committed.counts.changes)
        applied += batch
        assert either.rows == current_rows(applied)
        did = committed.counts.changes
        assert committed.counts.accepted == did.inserted + did.updated + did.deleted + did.superseded
        # The index was used, and brought up to date; a truncate needs a MERGE.
        if either.index_memory and not did.truncated and "truncate" not in {one.operation for one in batch}:
            assert either.shared.index is not None
            assert either.shared.index.version == committed.version
    assert sum(one.inserted - one.deleted - one.truncated for one in totals) == len(either.rows)
    assert (sum(one.truncated for one in totals) > 0) == (truncates > 0)


@pytest.mark.parametrize(
    ("columns", "layout", "vectors"),
    [
        ("", "PARTITIONED BY (ts)", "true"),
        ("", "CLUSTER BY (value)", "false"),
        (", twice INT GENERATED ALWAYS AS (id * 2)", "", "true"),
    ],
    ids=["partitioned", "clustered without deletion vectors", "generated column and constraint"],
)
def test_tables_of_every_layout_hold_the_newest_record_of_each_key(
    spark: SparkSession, tmp_path: Path, columns: str, layout: str, vectors: str
) -> None:
    table = Table(spark, create(spark, tmp_path / "t", columns, layout, vectors))
    changes = random_changes(8, keys=40, count=200, truncates=1)
    first, second = random_batches(8, changes, 2)
    table.apply(first)
    spark.sql(f"ALTER TABLE delta.`{table.path}` ADD CONSTRAINT good CHECK (value <> 'bad')")
    before = table.rows
    with pytest.raises(Exception, match="CHECK constraint good"):
        table.apply([*second, Change(999, 1, 9, "upsert", "bad")], batch=1)
    assert table.rows == before
    table.apply(second, batch=1)
    assert table.rows == current_rows(changes)
    rows = spark.read.format("delta").load(str(table.path))
    assert not columns or rows.where("NOT twice <=> id * 2").isEmpty()
    (detail,) = spark.sql(f"DESCRIBE DETAIL delta.`{table.path}`").collect()
    assert (detail.partitionColumns, detail.clusteringColumns) == (
        ["ts"] if "ts" in layout else [],
        ["value"] if "value" in layout else [],
    )


def _typed(records: DataFrame) -> DataFrame:
    """Four key columns: each `id` has values of its own only in all of them together."""
    known = records.where("op <> 'truncate'").selectExpr(
        "*",
        "CAST(id % 2 AS DECIMAL(10, 2)) AS price",
        "DATE_ADD(DATE'2026-01-01', INT(id DIV 2 % 2)) AS day",
        "CAST(CHR(200 + id DIV 4 % 2) AS BINARY) AS code",
        # 0.0 and -0.0 are one key, and so are all NaN.
        "CASE WHEN id DIV 8 = 0 THEN DOUBLE('NaN') WHEN ts % 2 = 0 THEN -0.0D ELSE 0.0D END AS score",
    )
    return known.unionByName(records.where("op = 'truncate'"), allowMissingColumns=True)


def test_keys_of_several_types_find_their_rows(spark: SparkSession, tmp_path: Path) -> None:
    columns = ", price DECIMAL(10, 2), day DATE, code BINARY, score DOUBLE"
    path = create(spark, tmp_path / "t", columns)
    table = Table(spark, path, ("price", "day", "code", "score"), _typed)
    changes = random_changes(9, keys=16, count=120, truncates=1)
    for batch in random_batches(9, changes, 2):
        table.apply(batch)
    assert table.rows == current_rows(changes)


def test_a_filter_finds_exact_decimals_in_files_with_deleted_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The statistics of a file keep all digits when some of its rows are replaced."""
    exact = "CAST('1234567890123456789012345.1234567891' AS DECIMAL(38, 10))"
    path = create(spark, tmp_path / "t", ", price DECIMAL(38, 10)")
    table = Table(spark, path, key_columns=lambda records: records.selectExpr("*", f"{exact} AS price"))
    for batch in ([Change(key, key, 1, "upsert", "a") for key in range(3)], [Change(3, 0, 2, "upsert", "b")]):
        committed = table.apply(batch)
        assert committed is not None and committed.without_index is None
    rows = spark.read.format("delta").load(str(path))
    for condition in (f"price = {exact}", f"price <= {exact}", f"price >= {exact}"):
        assert rows.where(condition).count() == 3, condition


NESTED = {
    "STRUCT<a: INT, b: INT>": ["struct(1, NULL)", "struct(NULL, 1)", "struct(NULL, NULL)"],
    "STRUCT<a: STRUCT<c: DECIMAL(12, 2)>, b: TIMESTAMP>": [
        "struct(NULL, NULL)",
        "struct(struct(NULL), NULL)",
    ],
    "ARRAY<STRING>": ["array()", "array(NULL)", "array(NULL, 'a')", "array('a', NULL)", "array('a')"],
    "ARRAY<ARRAY<DOUBLE>>": ["array(array(1), array(2))", "array(array(1, 2))", "array(NULL)", "array()"],
}
"""Types of keys, with different values that Spark's hash does not tell apart."""


@pytest.mark.parametrize("kind", NESTED)
def test_nested_keys_that_differ_only_in_nulls_or_lengths_are_different_keys(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    path = create(spark, tmp_path / "t", f", key {kind}")
    values = [f"CAST({value} AS {kind})" for value in NESTED[kind]]
    keys = f"element_at(array({', '.join(values)}), id + 1) AS key"
    table = Table(spark, path, ("key",), lambda records: records.selectExpr("*", keys))
    upserts = [Change(n, n, n, "upsert", f"v{n}") for n in range(len(values))]
    for one in upserts:
        table.apply([one])
    assert table.rows == current_rows(upserts)
    # The rows of all keys are found again.
    more = [Change(100 + n, n, 100 + n, "delete" if n == 1 else "upsert", "w") for n in range(len(values))]
    done = table.apply(more)
    assert done is not None and done.without_index is None
    assert table.rows == current_rows([*upserts, *more])


def test_equal_numbers_in_nested_keys_are_one_key(spark: SparkSession, tmp_path: Path) -> None:
    path = create(spark, tmp_path / "t", ", key ARRAY<DOUBLE>")
    # 0.0 and -0.0, and two patterns of NaN.
    keys = "array(if(id % 2 = 0, 0D, -0D), if(id % 2 = 0, double('NaN'), -double('NaN'))) AS key"
    table = Table(spark, path, ("key",), lambda records: records.selectExpr("*", keys))
    for number in range(3):
        table.apply([Change(number, number, number, "upsert", f"v{number}")])
    assert table.rows == {2: "v2"}


def test_the_hash_of_a_row_depends_on_the_place_of_its_nulls(spark: SparkSession) -> None:
    rows = spark.sql(
        "SELECT * FROM VALUES (1, NULL, array(1, NULL), 'a'), (NULL, 1, array(1, NULL), 'a'),"
        " (1, NULL, array(NULL, 1), 'a'), (1, 1, array(1, 1), NULL), (1, 1, array(1, 1), 'a')"
        " AS t(a, b, c, d)"
    )
    found = [one[0] for one in rows.select(row_hash(rows)).collect()]
    assert len(set(found)) == 5
    # Tables keep the hash: that of a row without NULLs and nested values never changes.
    plain = spark.sql("SELECT * FROM VALUES (1, 'a', 2.5D), (2, 'b', NULL) AS t(a, b, c)")
    with_old = plain.select("c", row_hash(plain), functions.xxhash64("a", "b", "c")).collect()
    assert [one[1] == one[2] for one in with_old] == [one[0] is not None for one in with_old]


@pytest.mark.parametrize(
    "index_memory",
    [pytest.param(0, id="positions", marks=pytest.mark.thorough), pytest.param(1 << 30, id="index")],
)
def test_columns_may_have_names_that_begin_with_two_underscores(
    spark: SparkSession, tmp_path: Path, index_memory: int
) -> None:
    def named(records: DataFrame) -> DataFrame:
        return records.selectExpr("*", "id AS __row", "op AS __deleted", "value AS __held")

    path = create(spark, tmp_path / "t", ", __row INT, __deleted STRING, __held STRING")
    table = Table(spark, path, ("id", "__row"), named, index_memory)
    changes = random_changes(11, keys=20, count=80)
    for batch in random_batches(11, changes, 2):
        table.apply(batch)
    assert table.rows == current_rows(changes)
    rows = spark.read.format("delta").load(str(path))
    assert rows.where("NOT (__row = id AND __deleted <=> 'upsert' AND __held <=> value)").isEmpty()


def test_a_column_that_the_query_no_longer_returns_is_null_in_the_rows_that_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = Table(spark, create(spark, tmp_path / "t", ", gone STRING"))
    table.apply([Change(0, 1, 1, "upsert", "a"), Change(1, 2, 1, "upsert", "b")])
    spark.sql(f"UPDATE delta.`{table.path}` SET gone = 'kept'")
    table.apply([Change(2, 1, 2, "upsert", "c"), Change(3, 3, 1, "upsert", "d")])
    rows = spark.read.format("delta").load(str(table.path)).collect()
    assert {(row.id, row.value, row.gone) for row in rows} == {
        (1, "c", None),
        (2, "b", "kept"),
        (3, "d", None),
    }


def _without_tombstones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tombstones, "read", lambda *_: None)


def _without_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last batch wins."""
    real, find = merge.find_effects, KeyIndex.find

    def last_wins(newest: Any, held: Any, *rest: Any) -> Any:
        return real(
            newest,
            held.withColumn("__headrace_held", held["__headrace_held"].withField("value", _lowest())),
            *rest,
        )

    def forget(*given: Any) -> Any:
        known, position, sequence = find(*given)
        return known, position, np.full_like(sequence, UNKNOWN)

    _plant_effects(monkeypatch, last_wins)
    monkeypatch.setattr(KeyIndex, "find", forget)


def _plant_effects(monkeypatch: pytest.MonkeyPatch, planted: Callable[..., DataFrame]) -> None:
    monkeypatch.setattr(merge, "find_effects", planted)


def _ties_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal sequences the one that comes last wins."""
    real = merge.find_effects

    def last_wins(newest: DataFrame, held: DataFrame, *rest: Any) -> DataFrame:
        before = held["__headrace_held"].withField("position", _lowest()).withField("partition", _lowest())
        return real(newest, held.withColumn("__headrace_held", before), *rest)

    _plant_effects(monkeypatch, last_wins)


def _ties_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record with the sequence of the row is older, whatever its position."""
    real = merge.find_effects

    def first_wins(newest: DataFrame, held: DataFrame, *rest: Any) -> DataFrame:
        before = held["__headrace_held"].withField("partition", _highest())
        return real(newest, held.withColumn("__headrace_held", before), *rest)

    _plant_effects(monkeypatch, first_wins)


def _highest() -> Any:
    from pyspark.sql import functions as F

    return F.lit(1 << 40)


def _lowest() -> Any:
    from pyspark.sql import functions as F

    return F.lit(-1)


@pytest.mark.parametrize(
    ("either", "plant"),
    [
        *(("index", plant) for plant in (_without_tombstones, _without_sequences)),
        *(("positions", plant) for plant in (_ties_by_batch, _ties_by_value)),
        *(
            pytest.param("positions", plant, marks=pytest.mark.thorough)
            for plant in (_without_tombstones, _without_sequences)
        ),
        *(
            pytest.param("index", plant, marks=pytest.mark.thorough)
            for plant in (_ties_by_batch, _ties_by_value)
        ),
    ],
    indirect=["either"],
)
def test_the_oracle_finds_a_planted_mistake(
    either: Table, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    changes = random_changes(4, keys=60, count=400)
    random.Random(4).shuffle(changes)
    for batch in random_batches(4, changes, 3):
        either.apply(batch)
    assert either.rows != current_rows(changes)


def test_an_attempt_that_ended_between_tombstones_and_rows_is_repeated(
    either: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = random_changes(5, keys=40, count=200)
    first, second, third = random_batches(5, changes, 3)
    either.apply(first)
    before = either.rows

    def crash(*_: Any, **__: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(keyed, "commit_merge", crash)
        patched.setattr(placed_rows, "commit_batch", crash)
        either.apply(second, batch=1)
    assert either.rows == before
    # The next attempt may have other records: what the first one has deleted does not count.
    kept = [one for one in second if one.operation == "upsert"]
    either.apply(kept, batch=1)
    assert either.apply(kept, batch=1) is None
    either.apply(third, batch=2)
    assert either.rows == current_rows([*first, *kept, *third])


@pytest.mark.parametrize("others", [1, 2])
def test_a_batch_that_waits_while_another_process_commits_it_is_refused(table: Table, others: int) -> None:
    writer = table.target.begin(table.spark, table.stamp(0))
    assert writer is not None
    for number in range(others):
        table.apply([Change(number, 1, number, "upsert", f"v{number}")])
    with pytest.raises(BatchFencedError), writer:
        pass
    table.apply([Change(9, 1, 9, "upsert", "last")], batch=others)
    assert table.rows == {1: "last"}


def test_old_tombstones_are_collected(table: Table) -> None:
    table.apply([Change(0, 1, 5, "delete"), Change(1, 2, 5, "upsert", "two")])
    dead = deltalake.DeltaTable(table.path.with_name("t-dead"))
    table.target.tombstones.collect(table.spark, {})
    dead.update_incremental()
    assert dead.to_pyarrow_table().num_rows == 1
    table.target.tombstones.collect(table.spark, {KEPT_PROPERTY: "-1"})
    dead.update_incremental()
    assert dead.to_pyarrow_table().num_rows == 0
    table.apply([Change(2, 1, 4, "upsert", "older than the collected delete")])
    assert set(table.rows) == {1, 2}


def test_many_files_of_tombstones_are_folded_after_a_batch(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tombstones, "_MANY_FILES", 2)
    for number in range(3):
        table.apply([Change(number, number, 5, "delete")])
    dead = deltalake.DeltaTable(table.path.with_name("t-dead"))
    assert len(dead.file_uris()) == 1
    table.apply([Change(3, 0, 4, "upsert", "older than its delete")])
    assert table.rows == {}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("INT", "-2147483648, -1, 0, 7, 2147483647"),
        ("BOOLEAN", "false, true"),
        ("DATE", "'0001-01-01', '1969-12-31', '2026-11-23'"),
        ("TIMESTAMP", "'1969-12-31 23:59:59.999999', '2026-11-23 01:02:03.000001'"),
        ("STRING", "'', 'a', 'a b', 'abcdefg', 'abcdefgh', 'b', 'é', '€', '\U0001f600'"),
        ("DOUBLE", "NULL, '-Infinity', '-1e300', '-0.5', '0', '1e-9', '0.5', '1e15', 'Infinity', 'NaN'"),
        ("DECIMAL(38, 3)", "NULL, -99999999999999999999.125, -0.001, 0, 0.001, 12345678901234567890.5"),
        ("STRUCT<a: DATE, b: INT>", "(NULL, 9), ('2026-11-22', 5), ('2026-11-23', 1)"),
        ("STRUCT<a: FLOAT, b: INT>", "(NULL, 9), (-1.5, 5), (2, 1)"),
        ("BINARY", "X'00', X'01'"),
    ],
)
def test_the_number_of_a_sequence_does_not_decrease(spark: SparkSession, kind: str, values: str) -> None:
    listed = values if kind.startswith("STRUCT") else ", ".join(f"({one})" for one in values.split(", "))
    text = "(a, b)" if kind.startswith("STRUCT") else "(v)"
    value = "struct(a, b)" if kind.startswith("STRUCT") else "v"
    rows = spark.sql(
        f"SELECT struct(CAST({value} AS {kind}) AS value) AS _sequence FROM VALUES {listed} AS t{text}"
    )
    numbered = rows.select(table_index.key_columns(rows, ())[-1]).collect()
    ordered = rows.orderBy("_sequence")
    assert [one[0] for one in ordered.select(table_index.key_columns(ordered, ())[-1]).collect()] == sorted(
        one[0] for one in numbered
    )


def test_small_files_are_folded_between_batches(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "TablePolicy", partial(TablePolicy, small_files=2))
    changes = random_changes(6, keys=30, count=300)
    for batch in random_batches(6, changes, 8):
        table.apply(batch)
        assert len(deltalake.DeltaTable(table.path).file_uris()) <= 3
    assert table.rows == current_rows(changes)


def test_the_index_follows_the_commits_of_others(table: Table) -> None:
    first, second = random_batches(7, random_changes(7, keys=30, count=300), 2)
    table.apply(first)
    table.apply(second)
    expected = current_rows([*first, *second])
    others = ("append", "optimize", "delete", "restore", "property", "feed", "row tracking", "column mapping")
    for number, change in enumerate(others, start=1):
        _change_from_outside(table, change, expected)
        assert table.rows == expected, change
        sequence = number * 10_000
        late = [
            Change(sequence + key, key, sequence, "upsert", f"{change} {key}") for key in (*range(30), 900)
        ]
        committed = table.apply(late)
        expected = {one.key: one.value for one in late}
        assert table.rows == expected, change
        assert committed is not None
        # Row tracking stays.
        reason = WITHOUT_INDEX.get("row tracking" if change == "column mapping" else change)
        assert committed.without_index == reason, change


def _change_from_outside(table: Table, change: str, expected: dict[int, str]) -> None:
    """Commit as another writer, and change the expected rows likewise."""
    name = f"delta.`{table.path}`"
    match change:
        case "append":
            table.spark.sql(f"INSERT INTO {name} (id, value) VALUES (900, 'foreign'), (1, 'x')").collect()
            table.spark.sql(f"DELETE FROM {name} WHERE id = 1 AND value = 'x'")
            expected[900] = "foreign"
        case "optimize":
            table.spark.sql(f"OPTIMIZE {name}")
        case "delete":
            gone = sorted(expected)[:10]
            table.spark.sql(f"DELETE FROM {name} WHERE id IN ({', '.join(map(str, gone))})")
            for key in gone:
                del expected[key]
        case "restore":
            version = deltalake.DeltaTable(table.path).version()
            table.spark.sql(f"DELETE FROM {name} WHERE true")
            table.spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF {version}")
        case _:
            table.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({PROPERTIES[change]})")


def test_a_table_that_became_append_only_is_not_changed(either: Table) -> None:
    either.apply([Change(0, 1, 5, "upsert", "a")])
    either.spark.sql(f"ALTER TABLE delta.`{either.path}` SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
    with pytest.raises(Exception, match="APPEND_ONLY"):
        either.apply([Change(1, 1, 6, "upsert", "b")], batch=1)
    assert either.rows == {1: "a"}


@pytest.mark.parametrize(
    "either", ["index", pytest.param("positions", marks=pytest.mark.thorough)], indirect=True
)
def test_deleted_keys_are_remembered_after_the_commit_of_another_writer(either: Table) -> None:
    name = f"delta.`{either.path}`"
    either.apply([Change(0, 1, 5, "delete"), Change(1, 2, 1, "upsert", "x")])
    either.apply([Change(2, 1, 10, "upsert", "ten")])
    either.spark.sql(f"DELETE FROM {name} WHERE id = 1")
    either.apply([Change(3, 1, 3, "upsert", "older than the delete")])
    assert either.rows == {2: "x"}
    # A restored row does not make an older record newer than the delete.
    either.apply([Change(4, 2, 5, "delete")])
    either.spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF 2")
    either.apply([Change(5, 2, 3, "upsert", "older than the delete")])
    assert either.rows[2] == "x"


def test_a_partitioned_table_is_not_folded_for_its_partitions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "TablePolicy", partial(TablePolicy, small_files=2))
    table = Table(spark, create(spark, tmp_path / "t", layout="PARTITIONED BY (ts)"))
    for batch in range(3):
        table.apply([Change(10 * batch + n, n, 10 * batch + n, "upsert", "a") for n in range(5)])
    operations = [one["operation"] for one in deltalake.DeltaTable(table.path).history()]
    assert "OPTIMIZE" not in operations


def test_a_row_that_another_writer_adds_during_a_batch_is_a_conflict(
    either: Table, request: pytest.FixtureRequest
) -> None:
    is_merged = request.node.callspec.params["either"] == "merge"
    either.apply([Change(0, 1, 5, "upsert", "a")])
    changes = [Change(1, 1, 6, "upsert", "b"), Change(2, 2, 6, "upsert", "c")]
    writer = either.target.begin(either.spark, either.stamp(1))
    assert writer is not None
    with writer, SplitRows(accepted=either.changes(changes)) as rows:
        writer.write(rows)
        either.spark.sql(f"INSERT INTO delta.`{either.path}` (id, value) VALUES (2, 'foreign')")
        # The class, or the condition if a test has imported the package `delta`.
        conflict = pytest.raises(Exception, match=r"ConcurrentAppend|DELTA_CONCURRENT_APPEND")
        with nullcontext() if is_merged else conflict:
            writer.commit()
    if not is_merged:
        either.spark.sql(f"DELETE FROM delta.`{either.path}` WHERE value = 'foreign'")
        either.apply(changes, batch=1)
    assert either.rows == {1: "b", 2: "c"}


def test_a_batch_is_applied_without_an_index_that_would_be_too_large(table: Table) -> None:
    table.index_memory = 500
    changes = [Change(number, number % 30, number, "upsert", str(number)) for number in range(60)]
    first, second = table.apply(changes[:40]), table.apply(changes[40:])
    assert first is not None and first.without_index is None
    assert second is not None and second.without_index is not None
    assert second.without_index.startswith("the index needs")
    assert table.rows == current_rows(changes)


def test_an_index_without_batches_gives_way_to_that_of_another_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = SharedTables()
    one, other = (
        Table(
            spark,
            create(spark, tmp_path / name),
            index_memory=3500,
            shared=tables.of(locate(tmp_path / name)),
        )
        for name in ("one", "other")
    )
    changes = [Change(number, number % 30, number, "upsert", str(number)) for number in range(60)]
    one.apply(changes[:40])
    assert (both := one.apply(changes[40:])) is not None and both.without_index is None
    other.apply(changes[:40])
    # Built anew, an index needs three times its memory.
    other.shared.index = None
    assert (waits := other.apply(changes[40:50])) is not None and waits.without_index is not None
    assert "of which those of other tables have" in waits.without_index
    monkeypatch.setattr(key_index, "_UNUSED_S", 0)
    assert (built := other.apply(changes[50:])) is not None and built.without_index is None
    assert one.shared.index is not None and one.shared.index.version is None
    assert other.rows == current_rows(changes)
    one.apply([Change(100, 1, 100, "delete", "")])
    assert one.rows == current_rows([*changes, Change(100, 1, 100, "delete", "")])


def test_an_index_is_read_in_parts_that_the_driver_accepts(table: Table) -> None:
    changes = [Change(number, number, number, "upsert", "v") for number in range(6000)]
    table.apply(changes)
    table.shared = SharedTable()
    # A job looks the limit up when its tasks begin.
    settings = table.spark.sparkContext._jsc.sc().conf()
    settings.set("spark.driver.maxResultSize", "100k")
    try:
        with pytest.raises(Exception, match="maxResultSize"):
            table.spark.read.format("delta").load(str(table.path)).toArrow()
        deletes = [Change(9000 + n, n, 9000 + n, "delete", "") for n in range(5999)]
        assert (done := table.apply(deletes)) is not None and done.without_index is None
        table.shared = SharedTable()
        assert (late := table.apply(changes[:5])) is not None and late.without_index is None
    finally:
        settings.remove("spark.driver.maxResultSize")
    assert table.rows == {5999: "v"}


def test_a_batch_without_an_effect_is_committed_with_its_counts(either: Table) -> None:
    either.apply([Change(0, 1, 5, "upsert", "a")])
    committed = either.apply([Change(1, 1, 4, "upsert", "older"), Change(2, 9, 1, "delete")])
    assert committed is not None
    assert committed.counts.changes == RowChanges(superseded=2)
    assert either.rows == {1: "a"}


def test_a_key_that_another_writer_has_added_again_stops_the_batch(either: Table) -> None:
    either.apply([Change(0, 1, 5, "upsert", "a"), Change(1, 2, 5, "upsert", "b")])
    either.spark.sql(f"INSERT INTO delta.`{either.path}` (id, value) VALUES (1, 'foreign')")
    with pytest.raises(KeyTwiceError) as caught:
        either.apply([Change(2, 1, 6, "upsert", "c")], batch=1)
    assert "id = 1 has 2 rows" in caught.value.facts[0]
    # A foreign row of its own key is replaced by the first record of the key.
    either.spark.sql(f"DELETE FROM delta.`{either.path}` WHERE value = 'a'")
    either.apply([Change(2, 1, 6, "upsert", "c")], batch=1)
    assert either.rows == {1: "c", 2: "b"}


@pytest.mark.parametrize(
    ("either", "operation"),
    [
        *(("index", "upsert"), ("positions", "delete")),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (("index", "delete"), ("positions", "upsert"))
        ),
    ],
    indirect=["either"],
)
def test_a_record_replaces_all_rows_of_its_key_if_the_pipeline_says_so(
    either: Table, operation: Literal["upsert", "delete"]
) -> None:
    either.duplicate_keys = "replace"
    either.apply([Change(0, 1, 5, "upsert", "a"), Change(1, 2, 5, "upsert", "b")])
    either.spark.sql(f"INSERT INTO delta.`{either.path}` (id, value) VALUES (1, 'foreign')")
    # An older record changes nothing, and other keys are changed as usual.
    either.apply([Change(2, 1, 4, "upsert", "older"), Change(3, 2, 6, "upsert", "c")])
    held = either.spark.read.format("delta").load(str(either.path))
    assert sorted((row.id, row.value) for row in held.collect()) == [(1, "a"), (1, "foreign"), (2, "c")]
    committed = either.apply([Change(4, 1, 6, operation, "d" if operation == "upsert" else None)])
    assert committed is not None
    is_delete = operation == "delete"
    assert committed.counts.changes == RowChanges(updated=not is_delete, deleted=is_delete, truncated=1)
    assert either.rows == ({2: "c"} if is_delete else {1: "d", 2: "c"})
    again = either.apply([Change(5, 1, 7, "upsert", "e")])
    assert again is not None and again.without_index is None
    assert either.rows == {1: "e", 2: "c"}


def test_the_change_feed_of_such_a_table_is_a_source(table: Table) -> None:
    table.spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    table.apply([Change(0, 1, 5, "upsert", "a")])
    feed = table.spark.read.option("readChangeFeed", "true").option("startingVersion", 1)
    columns = ChangeColumns(keys=("id",), sequence_by="_commit_version", deletes="_change_type = 'delete'")
    (row,) = as_changes(feed.format("delta").load(str(table.path)), columns).collect()
    assert (row.id, row.value, row["_sequence"].value) == (1, "a", 2)
