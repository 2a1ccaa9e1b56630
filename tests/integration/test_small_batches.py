"""Small batches and small files, which are written without a job of Delta: the rows, the statistics, and what
is left to Delta."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow.parquet as pq
import pytest

from headrace.errors import StorageUnreadableError
from headrace.model.declarations import AppendFlow
from headrace.model.ranges import SourceRange
from headrace.run.limits import Execution
from headrace.runtime.gateway import active_session
from headrace.sinks.delta.arrow_files import SmallBatches, merge_files, plain_schema
from headrace.sinks.delta.compaction import compact_files, write_checkpoint
from headrace.sinks.delta.data_files import DataFile
from headrace.sinks.delta.table import newest_snapshot
from headrace.sinks.delta.transaction import WrittenFiles, start_transaction, write_files
from headrace.sources.kafka.position import KafkaOffsets
from headrace.storage.layout import locate
from headrace.storage.table_snapshot import load_added

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = (
    "tiny TINYINT, short SMALLINT, whole INT, long BIGINT, single FLOAT, double DOUBLE, flag BOOLEAN, "
    "text STRING, bytes BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(12,2), "
    "huge DECIMAL(38,10), "
    "inner STRUCT<a: INT, b: STRUCT<c: STRING, d: DATE>>, list ARRAY<INT>, map MAP<STRING, TIMESTAMP>"
)


def random_row(rng: random.Random) -> tuple[Any, ...]:
    """A row of `COLUMNS` with odd values: nulls, long and foreign texts, early and late dates."""

    def maybe(value: Callable[[], Any]) -> Any:
        return None if rng.random() < 0.2 else value()

    def text() -> str:
        letters = rng.choice([string.ascii_letters, 'äöü€😀"\\\n\t', "\uffff\ue000z", "a"])
        return "".join(rng.choices(letters, k=rng.choice([0, 1, 5, 31, 32, 33, 80])))

    def day() -> date:
        return date.fromordinal(
            rng.choice([1, 577_724, 577_736, 719_163, 3_652_059, rng.randint(577_736, 3_652_059)])
        )

    def at() -> datetime:
        whole = datetime.combine(day(), datetime.min.time(), UTC)
        return min(max(whole, datetime(1, 1, 2, tzinfo=UTC)), datetime(9999, 12, 30, tzinfo=UTC)) + timedelta(
            microseconds=rng.choice([0, 1, 999, 1000, 123_456_789])
        )

    def number() -> float:
        return rng.choice([0.0, -0.0, 1.5, -1e300, 5e-324, 0.1, 1e22])

    return (
        maybe(lambda: rng.randint(-128, 127)),
        maybe(lambda: rng.randint(-(2**15), 2**15 - 1)),
        maybe(lambda: rng.randint(-(2**31), 2**31 - 1)),
        maybe(lambda: rng.choice([-(2**63), 2**63 - 1, rng.randint(-(2**63), 2**63 - 1)])),
        maybe(lambda: rng.choice([0.0, -0.0, 0.1, 3e38, -1e-40])),
        maybe(number),
        maybe(lambda: rng.random() < 0.5),
        maybe(text),
        maybe(lambda: rng.randbytes(3)),
        maybe(day),
        maybe(at),
        maybe(lambda: at().replace(tzinfo=None)),
        maybe(lambda: Decimal(rng.randint(-(10**11), 10**11)).scaleb(-2)),
        maybe(lambda: Decimal(rng.randint(-(10**37), 10**37)).scaleb(-10)),
        maybe(lambda: (maybe(lambda: rng.randint(0, 9)), maybe(lambda: (maybe(text), maybe(day))))),
        maybe(lambda: [maybe(lambda: 1)]),
        maybe(lambda: {"k": maybe(at)}),
    )


class Lake:
    """A Delta table to which batches are written in both ways."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark, self.path, self.table = spark, path, locate(path)
        self.small = SmallBatches(_row_bytes=1.0)

    def create(self, columns: str, tail: str = "") -> Lake:
        self.spark.sql(f"CREATE TABLE delta.`{self.path}` ({columns}) USING delta {tail}")
        return self

    def frame(self, *rows: tuple[Any, ...], columns: str = COLUMNS) -> DataFrame:
        return self.spark.createDataFrame(list(rows), columns)

    def write_small(self, rows: DataFrame) -> WrittenFiles | None:
        return self.small.write(start_transaction(self.spark, self.table, "x"), rows, self.table, 10)

    def append(self, rows: DataFrame, *, small: bool) -> dict[str, Any]:
        """Commit rows, and return the statistics of their file."""
        transaction = start_transaction(self.spark, self.table, "x")
        files = (
            self.small.write(transaction, rows, self.table, 10) if small else write_files(transaction, rows)
        )
        assert files is not None
        jvm: Any = self.spark._jvm
        mode = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
        operations = jvm.org.apache.spark.sql.delta.DeltaOperations
        transaction.commit(files.actions, operations.StreamingUpdate(mode, "x", 1, jvm.scala.Option.empty()))
        (found,) = files.statistics
        return dict(found)

    def rows(self) -> list[Any]:
        found = self.spark.read.format("delta").load(str(self.path)).collect()
        return sorted(found, key=repr)

    def files(self) -> list[DataFile]:
        version = newest_snapshot(self.spark, self.table).version()
        return [DataFile(number, text) for number, text in enumerate(load_added(self.table, version), 1)]

    def merge(self) -> tuple[int, int] | None:
        return merge_files(self.spark, self.table, newest_snapshot(self.spark, self.table), self.files())


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path / "lake")


@pytest.mark.parametrize("seed", range(6))
def test_rows_and_statistics_are_those_of_delta_s_writer(lake: Lake, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    rows = [random_row(rng) for _ in range(rng.choice([1, 3, 40]))]
    lake.create(COLUMNS)
    other = Lake(lake.spark, tmp_path / "other").create(COLUMNS)
    ours = lake.append(lake.frame(*rows).coalesce(1), small=True)
    theirs = other.append(other.frame(*rows).coalesce(1), small=False)
    assert lake.rows() == other.rows()
    assert ours["numRecords"] == theirs["numRecords"] == len(rows)
    assert ours["nullCount"] == theirs["nullCount"]
    for name, low, high in leaves(theirs):
        our_low, our_high = at_path(ours["minValues"], name), at_path(ours["maxValues"], name)
        assert our_low is not None and our_high is not None, name
        if name[-1] in ("text", "c"):
            # Delta counts the characters of a prefix in another way.
            texts = [
                one for row in lake.rows() if (one := at_path(row.asDict(recursive=True), name)) is not None
            ]
            assert our_low <= min(texts) and our_high >= max(texts)
            assert our_low == min(texts)[:32] and our_high[:32] == max(texts)[:32]
        else:
            assert (our_low, our_high) == (low, high), name
    # A filter at each bound finds the rows: no file is skipped that holds one.
    for column in ("tiny", "long", "double", "text", "day", "at", "local", "price", "huge", "inner.b.c"):
        for row in rows[:5]:
            condition = f"{column} <=> (SELECT {column} FROM one)"
            lake.frame(row).createOrReplaceTempView("one")
            found = lake.spark.read.format("delta").load(str(lake.path)).where(condition).count()
            expected = other.spark.read.format("delta").load(str(other.path)).where(condition).count()
            assert found == expected >= 1, column


def leaves(statistics: dict[str, Any]) -> list[tuple[tuple[str, ...], Any, Any]]:
    found = []

    def walk(low: dict[str, Any], high: dict[str, Any], path: tuple[str, ...]) -> None:
        for name, value in low.items():
            if isinstance(value, dict):
                walk(value, high.get(name, {}), (*path, name))
            else:
                found.append(((*path, name), value, high.get(name)))

    walk(statistics["minValues"], statistics["maxValues"], ())
    return found


def at_path(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        values = (values or {}).get(name)
    return values


def test_values_without_an_exact_json_form_have_no_bounds(lake: Lake) -> None:
    lake.create("x DOUBLE, s STRING, b BINARY, d DATE")
    rows = lake.spark.sql(
        "SELECT double('NaN') AS x, cast(unhex('FF41') AS STRING) AS s, unhex('FF') AS b, "
        "date_add(date'9999-12-31', 5) AS d UNION ALL SELECT double('Infinity'), 'a', null, null"
    )
    found = lake.append(rows.coalesce(1), small=True)
    assert (found["minValues"], found["nullCount"]) == ({}, {"x": 0, "s": 0, "b": 1, "d": 1})
    delta = lake.spark.read.format("delta").load(str(lake.path))
    assert delta.where("isnan(x) AND hex(s) = 'FF41' AND d > date'9999-12-31'").count() == 1


@pytest.mark.parametrize("kind", ["{}", "ARRAY<{}>", "MAP<STRING, {}>"])
def test_structs_can_be_null_whose_fields_never_are(lake: Lake, kind: str, tmp_path: Path) -> None:
    """As a query gives them that sometimes makes a struct of constants."""
    columns = "id BIGINT, x " + kind.format("STRUCT<a: BIGINT, b: STRUCT<c: STRING>>")
    lake.create(columns)
    value = "IF(id % 2 = 0, NULL, struct(id AS a, struct('x' AS c) AS b))"
    value = {"{}": value, "ARRAY<{}>": f"array({value})"}.get(kind, f"map('k', {value})")
    rows = lake.spark.sql(f"SELECT id, {value} AS x FROM range(5)").coalesce(1)
    lake.append(rows, small=True)
    other = Lake(lake.spark, tmp_path / "other").create(columns)
    other.append(rows, small=False)
    assert lake.rows() == other.rows()


LEFT_TO_DELTA = {
    "a partition": ("id BIGINT, day STRING", "PARTITIONED BY (day)"),
    "a column that forbids null": ("id BIGINT NOT NULL", ""),
    "a generated column": ("id BIGINT, twice BIGINT GENERATED ALWAYS AS (id * 2)", ""),
    "mapped columns": ("id BIGINT", "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"),
    "a bounded string": ("name VARCHAR(5)", ""),
    "row tracking": ("id BIGINT", "TBLPROPERTIES ('delta.enableRowTracking' = 'true')"),
    "chosen statistics": ("id BIGINT", "TBLPROPERTIES ('delta.dataSkippingNumIndexedCols' = '0')"),
    "clustering": ("id BIGINT", "CLUSTER BY (id)"),
    "more columns than have statistics": (", ".join(f"c{n} INT" for n in range(33)), ""),
    "a constraint": ("id BIGINT", "TBLPROPERTIES ('delta.constraints.c' = 'id > 0')"),
}


@pytest.mark.parametrize(("columns", "tail"), LEFT_TO_DELTA.values(), ids=LEFT_TO_DELTA)
def test_what_needs_more_is_left_to_delta(lake: Lake, columns: str, tail: str) -> None:
    lake.create(columns, tail)
    snapshot = newest_snapshot(lake.spark, lake.table)
    assert plain_schema(lake.spark, snapshot.metadata(), snapshot.protocol()) is None
    rows = lake.spark.read.format("delta").load(str(lake.path))
    assert lake.write_small(rows) is None


def test_the_folder_of_a_disk_that_is_away_is_not_made(lake: Lake) -> None:
    lake.create("id BIGINT")
    transaction = start_transaction(lake.spark, lake.table, "x")
    lake.path.rename(lake.path.with_name("away"))
    with pytest.raises(StorageUnreadableError):
        lake.small.write(transaction, lake.spark.range(3), lake.table, 10)
    assert not lake.path.exists()


def test_a_large_batch_is_left_to_delta(lake: Lake) -> None:
    lake.create("id BIGINT")
    rows = lake.spark.range(3)
    transaction = start_transaction(lake.spark, lake.table, "x")
    assert SmallBatches().write(transaction, rows, lake.table, 10) is None  # the first batch: unknown rows
    assert SmallBatches(_row_bytes=1e6).write(transaction, rows, lake.table, 10) is None
    # One task would take longer for them than several, however small their file is.
    assert SmallBatches(_row_bytes=1.0).write(transaction, rows, lake.table, 20_001) is None
    assert lake.small.write(transaction, rows, lake.table, None) is None


NAN_FILTERS = (
    "x > 5",
    "y > 5",
    "s.z > 5",
    "x = double('NaN')",
    "NOT x <= 5",
    "x <> 1",
    "x IN (double('NaN'))",
)


def nan_rows(lake: Lake) -> DataFrame:
    inner = "named_struct('z', double('{0}'))"
    rows = (f"SELECT double('{x}') AS x, float('{x}') AS y, {inner.format(x)} AS s" for x in ("1", "NaN"))
    return lake.spark.sql(" UNION ALL ".join(rows)).coalesce(1)


def test_filters_find_nan_in_small_and_in_merged_files(lake: Lake) -> None:
    lake.create("x DOUBLE, y FLOAT, s STRUCT<z: DOUBLE>")
    for _ in range(2):
        lake.append(nan_rows(lake), small=True)
    other = Lake(lake.spark, lake.path.with_name("other")).create("x DOUBLE, y FLOAT, s STRUCT<z: DOUBLE>")
    for _ in range(2):
        other.append(nan_rows(lake), small=False)
    for merged in (False, True):
        if merged:
            assert lake.merge() is not None and other.merge() is not None
        for one in (lake, other):
            found = one.spark.read.format("delta").load(str(one.path))
            assert {text: found.where(text).count() for text in NAN_FILTERS} == dict.fromkeys(NAN_FILTERS, 2)


@pytest.mark.parametrize(
    "change", ["ALTER COLUMN s.a AFTER b", "ADD COLUMNS (s.z INT)", "ADD COLUMNS (s.z INT AFTER a)"]
)
def test_files_with_other_fields_in_a_struct_are_left_to_spark(lake: Lake, change: str) -> None:
    lake.create("k INT, s STRUCT<a: INT, b: INT>")
    for number in range(4):
        rows = lake.spark.sql(f"SELECT {number} AS k, named_struct('a', {number}, 'b', {100 + number}) AS s")
        lake.append(rows.coalesce(1), small=number % 2 == 0)
    lake.spark.sql(f"ALTER TABLE delta.`{lake.path}` {change}")
    assert lake.merge() is None
    assert compact_files(lake.spark, lake.table, light=True).removed == 4
    found = lake.spark.read.format("delta").load(str(lake.path))
    counts = [found.where(text).count() for text in ("s.a = 2", "s.b = 102", "s.a < 50", "s.b > 50")]
    assert counts == [1, 1, 4, 4]


def test_files_of_both_writers_are_merged_in_a_commit_that_changes_no_rows(lake: Lake) -> None:
    lake.create(COLUMNS)
    rng = random.Random(7)
    for number in range(6):
        rows = lake.frame(*(random_row(rng) for _ in range(5)))
        # Spark writes instants in maps in another form, which is left to Spark.
        lake.append(rows.coalesce(1), small=number % 2 == 0)
    before = lake.rows()
    assert lake.merge() is None
    assert len(lake.files()) == 6

    flat = COLUMNS.partition(", list")[0]
    other = Lake(lake.spark, lake.path.with_name("flat")).create(flat)
    for number in range(6):
        rows = lake.frame(*(random_row(rng)[:-2] for _ in range(5)), columns=flat)
        other.append(rows.coalesce(1), small=number % 2 == 0)
    before = other.rows()
    merged = other.merge()
    assert merged is not None and merged[0] > merged[1]
    assert other.rows() == before
    (file,) = other.files()
    assert (file.rows, file.text["dataChange"]) == (30, False)
    names = pq.read_schema(other.path / file.name).names
    assert names == [one.partition(" ")[0] for one in flat.split(", ") if not one.startswith(("b:", "d:"))]
    versions = sorted((other.path / "_delta_log").glob("*.json"))
    removed = [json.loads(one) for one in versions[-1].read_text().splitlines() if one.startswith('{"remove')]
    assert len(removed) == 6 and not any(one["remove"]["dataChange"] for one in removed)


def test_a_file_that_another_writer_changes_meanwhile_is_not_merged(lake: Lake) -> None:
    lake.create("id BIGINT", "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    for number in range(3):
        lake.append(lake.spark.range(10 * number, 10 * number + 10).coalesce(1), small=True)
    snapshot, files = newest_snapshot(lake.spark, lake.table), lake.files()
    lake.spark.sql(f"DELETE FROM delta.`{lake.path}` WHERE id IN (3, 14)")
    with pytest.raises(Exception, match=r"DELTA_CONCURRENT_DELETE_DELETE|ConcurrentDeleteDelete"):
        merge_files(lake.spark, lake.table, snapshot, files)
    assert lake.merge() is None  # files with deleted rows are Spark's
    assert len(lake.rows()) == 28
    done = compact_files(lake.spark, lake.table, light=True)
    assert (done.removed, len(lake.rows())) == (3, 28)


def test_files_that_lack_a_new_column_are_left_to_spark(lake: Lake) -> None:
    lake.create("id BIGINT")
    lake.append(lake.spark.range(3).coalesce(1), small=True)
    lake.spark.sql(f"ALTER TABLE delta.`{lake.path}` ADD COLUMNS (name STRING)")
    lake.append(lake.spark.sql("SELECT 9L AS id, 'x' AS name"), small=True)
    assert lake.merge() is None
    assert compact_files(lake.spark, lake.table, light=True).removed == 2
    assert [one.name for one in lake.rows() if one.id == 9] == ["x"]


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "with deleted rows"])
def test_a_log_checkpoint_gives_the_state_that_the_commits_give(lake: Lake, masked: bool) -> None:
    kept = "'delta.enableExpiredLogCleanup' = 'false'"
    lake.create(COLUMNS, f"TBLPROPERTIES ({kept}, 'delta.enableDeletionVectors' = '{str(masked).lower()}')")
    rng = random.Random(3)
    for number in range(5):
        lake.append(lake.frame(*(random_row(rng) for _ in range(5))).coalesce(1), small=number % 2 == 0)
    lake.spark.sql(f"DELETE FROM delta.`{lake.path}` WHERE tiny > 0")
    by_commits, rows = state(lake), lake.rows()
    write_checkpoint(lake.spark, lake.table)
    version = newest_snapshot(lake.spark, lake.table).version()
    written = list((lake.path / "_delta_log").glob("*.checkpoint*.parquet"))
    assert [int(one.name[:20]) for one in written] == [version]
    assert "parquet-mr" not in pq.read_metadata(written[0]).created_by
    for commit in (lake.path / "_delta_log").glob("*.json"):
        if int(commit.stem) < version:
            commit.unlink()
    for checksum in (lake.path / "_delta_log").glob("*.crc"):
        checksum.unlink()
    lake.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    assert state(lake) == by_commits
    assert lake.rows() == rows


def test_files_of_a_checkpoint_with_statistics_as_columns_are_compacted(lake: Lake) -> None:
    forms = "'delta.checkpoint.writeStatsAsStruct' = 'true', 'delta.checkpoint.writeStatsAsJson' = 'false'"
    lake.create("day DATE, name STRING", f"PARTITIONED BY (name) TBLPROPERTIES ({forms})")
    for number in range(4):
        rows = lake.spark.sql(f"SELECT date_add(date'2026-01-01', {number}) AS day, 'x' AS name")
        lake.append(rows.coalesce(1), small=False)
    write_checkpoint(lake.spark, lake.table)
    before = lake.rows()
    done = compact_files(lake.spark, lake.table, light=True)
    assert (done.added, done.removed, lake.rows()) == (1, 4, before)


def state(lake: Lake) -> dict[str, list[str]]:
    """The live files, the removed ones, the transactions, metadata and protocol, as Delta computes them."""
    snapshot = newest_snapshot(lake.spark, lake.table)
    found = {name: getattr(snapshot, name)().toJSON().collectAsList() for name in ("allFiles", "tombstones")}
    texts = {name: sorted(map(str, values)) for name, values in found.items()}
    # Delta keeps the statistics of a removed file only as the number of its rows.
    texts["tombstones"] = sorted(json.loads(one)["path"] for one in texts["tombstones"])
    texts["allFiles"] = [json.dumps(json.loads(one), sort_keys=True) for one in texts["allFiles"]]
    transactions = sorted(str(one) for one in snapshot.setTransactions().mkString("\n").splitlines())
    return texts | {
        "transactions": transactions,
        "metadata": [snapshot.metadata().json()],
        "protocol": [snapshot.protocol().json()],
    }


def test_few_records_are_evaluated_without_generated_code(spark: SparkSession) -> None:
    session, jvm = spark.newSession(), cast(Any, spark._jvm)
    # The session of the tests generates no code.
    session.conf.unset("spark.sql.codegen.factoryMode")
    flow = SimpleNamespace(stateful=False, flow=object.__new__(AppendFlow), reads=())

    def evaluates_with(execution: Execution, records: int) -> str:
        """The class that evaluates an expression of a batch."""
        execution.prepare(session.range(3), (kafka_range(records),))
        with active_session(session):
            types = session.range(1)._jdf.schema()
            return str(
                jvm.org.apache.spark.sql.catalyst.expressions.UnsafeProjection.create(types).getClass()
            )

    execution = Execution(cast(Any, flow), tasks=4)
    assert "InterpretedUnsafeProjection" in evaluates_with(execution, 10)
    assert "GeneratedClass" in evaluates_with(execution, 100_000)
    assert "InterpretedUnsafeProjection" in evaluates_with(execution, 2_000)
    session.conf.set("spark.sql.codegen.factoryMode", "CODEGEN_ONLY")
    assert "GeneratedClass" in evaluates_with(Execution(cast(Any, flow), tasks=4), 10)


def kafka_range(records: int) -> SourceRange:
    return SourceRange(
        index=0,
        kind="kafka",
        identity={},
        start=KafkaOffsets({"t": {0: 0}}),
        until=KafkaOffsets({"t": {0: records}}),
    )
