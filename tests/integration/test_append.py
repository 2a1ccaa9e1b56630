"""Appending to a Delta table: what is fast, what is left to Delta's public writer, what is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import deltalake
import pyarrow as pa
import pytest

from headrace.errors import CheckpointBehindTableError
from headrace.model.counts import BatchCounts
from headrace.model.ranges import SourceRange
from headrace.sinks.delta.append import AppendTarget
from headrace.sinks.delta.arrow_files import SmallBatches
from headrace.sinks.delta.commit import batch_metadata
from headrace.sinks.delta.table import CHECKPOINT_PROPERTY, read_checksum, read_state
from headrace.sinks.target import BatchStamp, Committed, OpenedGeneration, SplitRows
from headrace.sources.kafka.position import KafkaOffsets
from headrace.state.facts import Open
from headrace.storage.layout import locate
from proof.shop import take_back_newest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS = "headrace-ours"
PLAIN = "id BIGINT, name STRING"


def stamp(batch: int, checkpoint: str = OURS) -> BatchStamp:
    source = SourceRange(
        index=0,
        kind="kafka",
        identity={"topics": {"t": "id-1"}},
        start=KafkaOffsets({"t": {0: batch * 10}}),
        until=KafkaOffsets({"t": {0: batch * 10 + 10}}),
    )
    return BatchStamp(pipeline="shop", flow="sales", checkpoint=checkpoint, batch=batch, ranges=(source,))


@dataclass(frozen=True)
class Table:
    """A Delta table, written through Headrace and read without Spark."""

    spark: SparkSession
    path: Path
    is_small: bool = False  # whether its batches are small, and may be written without a job of Delta

    @property
    def version(self) -> int:
        return deltalake.DeltaTable(self.path).version()

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        found = deltalake.DeltaTable(self.path).to_pyarrow_table().to_pylist()
        return sorted(tuple(row.values()) for row in found)

    def actions(self, version: int) -> list[dict[str, Any]]:
        text = (self.path / "_delta_log" / f"{version:020d}.json").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def metadata(self, version: int) -> dict[str, Any]:
        (info,) = [action["commitInfo"] for action in self.actions(version) if "commitInfo" in action]
        return dict(json.loads(info["userMetadata"]))

    def transactions(self, version: int) -> dict[str, int]:
        found = [action["txn"] for action in self.actions(version) if "txn" in action]
        return {one["appId"]: one["version"] for one in found}

    def append(
        self,
        df: DataFrame,
        batch: int,
        *,
        checkpoint: str = OURS,
        reads_target: bool = False,
        before: Callable[[], None] = lambda: None,
    ) -> Committed | None:
        small = SmallBatches(_row_bytes=1.0 if self.is_small else None)
        target = AppendTarget(
            spark=self.spark, path=locate(self.path), reads_target=reads_target, small=small
        )
        writer = target.begin(df.sparkSession, stamp(batch, checkpoint))
        if writer is None:
            return None
        with writer, SplitRows(accepted=df, most=10) as rows:
            writer.write(rows)
            before()
            return writer.commit()

    def is_fast(self, version: int) -> bool:
        """Whether a batch was committed through Delta's own transaction and not by its public writer."""
        (info,) = [action["commitInfo"] for action in self.actions(version) if "commitInfo" in action]
        return bool(info["operation"] == "STREAMING UPDATE")

    def frame(self, *rows: tuple[Any, ...], schema: str = PLAIN) -> DataFrame:
        return self.spark.createDataFrame(list(rows), schema)

    def open(self, checkpoint: str, opening: Open, **arguments: Any) -> int:
        opened = OpenedGeneration(
            pipeline="shop", flow="sales", checkpoint=checkpoint, generation=2, opening=opening, **arguments
        )
        return AppendTarget(spark=self.spark, path=locate(self.path)).open_generation(opened)


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture(params=[False, True], ids=["by Delta", "small"])
def make(
    spark: SparkSession, tmp_path: Path, numbers: Iterator[int], request: pytest.FixtureRequest
) -> Callable[..., Table]:
    """Makes an empty table: ``make("id BIGINT", partitioned="PARTITIONED BY (id)")``."""

    def create(columns: str = PLAIN, layout: str = "", **properties: str) -> Table:
        name, path = f"commit_{next(numbers)}", tmp_path / "table"
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        tail = f"TBLPROPERTIES ({listed})" if listed else ""
        spark.sql(f"CREATE TABLE {name} ({columns}) USING delta {layout} LOCATION '{path}' {tail}")
        return Table(spark, path, request.param)

    return create


@pytest.fixture
def table(make: Callable[..., Table]) -> Table:
    return make()


def test_a_batch_is_one_commit_with_its_transaction_and_its_ranges(table: Table) -> None:
    appended = table.append(table.frame((1, "a"), (2, "b")), 0)
    assert appended is not None
    assert (appended.version, appended.counts) == (1, BatchCounts(input=2, accepted=2))
    assert table.is_fast(1)
    assert table.rows == [(1, "a"), (2, "b")]
    assert table.transactions(1) == {OURS: 0}
    assert table.metadata(1) == {
        "headrace": 1,
        "pipeline": "shop",
        "flow": "sales",
        "checkpoint": OURS,
        "batch": 0,
        "input": 2,
        "accepted": 2,
        "quarantined": 0,
        "dropped": 0,
        "sources": [
            {
                "index": 0,
                "kind": "kafka",
                "identity": {"topics": {"t": "id-1"}},
                "from": {"t": {"0": 0}},
                "until": {"t": {"0": 10}},
            }
        ],
    }


@pytest.mark.parametrize("reads_target", [False, True], ids=["fast", "public"])
def test_an_empty_batch_commits_its_position(table: Table, reads_target: bool) -> None:
    appended = table.append(table.frame(), 0, reads_target=reads_target)
    assert appended is not None and appended.counts.accepted == 0
    assert table.metadata(1)["accepted"] == 0
    assert table.transactions(1) == {OURS: 0}
    assert not [action for action in table.actions(1) if "add" in action]
    assert table.append(table.frame(), 0, reads_target=reads_target) is None


# What the fast path leaves to Delta's public writer.

PUBLIC = {
    "columns in another order": ("name STRING, id BIGINT", PLAIN, (1, "a"), {"name": "a", "id": 1}),
    "a missing column": (f"{PLAIN}, more STRING", PLAIN, (1, "a"), {"id": 1, "name": "a", "more": None}),
    "a name in another case": ("Id BIGINT, name STRING", PLAIN, (1, "a"), {"Id": 1, "name": "a"}),
    "a bounded string": ("id BIGINT, name VARCHAR(5)", PLAIN, (1, "a"), {"id": 1, "name": "a"}),
    "a generated column": (
        "id BIGINT, twice BIGINT GENERATED ALWAYS AS (id * 2)",
        "id BIGINT",
        (4,),
        {"id": 4, "twice": 8},
    ),
    "a generated column that is given": (
        "id BIGINT, twice BIGINT GENERATED ALWAYS AS (id * 2)",
        "id BIGINT, twice BIGINT",
        (4, 8),
        {"id": 4, "twice": 8},
    ),
    "an identity column": (
        "id BIGINT, number BIGINT GENERATED ALWAYS AS IDENTITY",
        "id BIGINT",
        (4,),
        {"id": 4, "number": ANY},
    ),
    "an identity column by default": (
        "id BIGINT, number BIGINT GENERATED BY DEFAULT AS IDENTITY",
        "id BIGINT, number BIGINT",
        (4, 9),
        {"id": 4, "number": 9},
    ),
}


@pytest.mark.parametrize(("columns", "schema", "row", "expected"), PUBLIC.values(), ids=PUBLIC)
def test_what_delta_would_change_goes_through_delta_s_own_writer(
    make: Callable[..., Table], columns: str, schema: str, row: tuple[Any, ...], expected: Mapping[str, Any]
) -> None:
    table = make(columns)
    appended = table.append(table.frame(row, schema=schema), 0)
    assert appended is not None and not table.is_fast(1)
    assert (appended.counts.accepted, appended.version) == (1, 1)
    (found,) = table.spark.read.format("delta").load(str(table.path)).collect()
    assert found.asDict(recursive=True) == expected
    assert table.metadata(1) == batch_metadata(stamp(0), BatchCounts(input=1, accepted=1))
    assert table.transactions(1) == {OURS: 0}
    assert table.append(table.frame(row, schema=schema), 0) is None


def test_a_default_goes_through_delta_s_own_writer(make: Callable[..., Table]) -> None:
    feature = {"delta.feature.allowColumnDefaults": "supported"}
    table = make("id BIGINT, name STRING DEFAULT 'none'", **feature)
    appended = table.append(table.frame((1, "a")), 0)
    assert appended is not None and not table.is_fast(appended.version)
    assert table.spark.read.format("delta").load(str(table.path)).collect() == [(1, "a")]


def test_a_query_that_reads_its_target_goes_through_delta_s_own_writer(table: Table) -> None:
    table.append(table.frame((1, "a")), 0)
    seen = table.spark.read.format("delta").load(str(table.path))
    appended = table.append(seen.selectExpr("id + 1 AS id", "name"), 1, reads_target=True)
    assert appended is not None and not table.is_fast(appended.version)
    assert table.rows == [(1, "a"), (2, "a")]


def test_mapped_columns_go_through_delta_s_own_writer(make: Callable[..., Table]) -> None:
    table = make(**{"delta.columnMapping.mode": "name"})
    appended = table.append(table.frame((1, "a")), 0)
    assert appended is not None and not table.is_fast(appended.version)
    assert table.spark.read.format("delta").load(str(table.path)).collect() == [(1, "a")]


def test_a_column_too_many_is_refused_and_nothing_committed(table: Table) -> None:
    with pytest.raises(Exception, match="DELTA_METADATA_MISMATCH"):
        table.append(table.frame((1, "a", "x"), schema=f"{PLAIN}, more STRING"), 0)
    assert table.version == 0


@pytest.mark.parametrize(
    ("columns", "schema", "row"),
    [
        ("id STRING", "id BIGINT", (7,)),
        ("id BIGINT", "id INT", (7,)),
        ("id INT", "id BIGINT", (2**40,)),
        ("s STRUCT<a: BIGINT, b: STRING>", "s STRUCT<a: INT, b: STRING>", ((1, "x"),)),
        ("a ARRAY<BIGINT>", "a ARRAY<INT>", ([1, 2],)),
    ],
    ids=["long into string", "int into long", "long into int", "in a struct", "in an array"],
)
def test_another_type_is_refused_and_nothing_committed(
    make: Callable[..., Table], columns: str, schema: str, row: tuple[Any, ...]
) -> None:
    """A long that went into a string column unconverted has made a table unreadable."""
    table = make(columns)
    with pytest.raises(Exception, match="DELTA_FAILED_TO_MERGE_FIELDS"):
        table.append(table.frame(row, schema=schema), 0)
    assert (table.version, table.rows) == (0, [])


# What the fast path itself must not skip.


def test_a_null_never_enters_a_column_that_forbids_it(make: Callable[..., Table]) -> None:
    table = make("id BIGINT NOT NULL, name STRING")
    appended = table.append(table.frame((1, "a")), 0)
    assert appended is not None and table.is_fast(appended.version)
    with pytest.raises(Exception, match="DELTA_NOT_NULL_CONSTRAINT_VIOLATED"):
        table.append(table.frame((None, "a")), 1)
    assert (table.version, table.rows) == (1, [(1, "a")])


def test_a_check_constraint_holds(table: Table) -> None:
    table.spark.sql(f"ALTER TABLE delta.`{table.path}` ADD CONSTRAINT positive CHECK (id > 0)")
    table.append(table.frame((1, "a")), 0)
    with pytest.raises(Exception, match="DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"):
        table.append(table.frame((-1, "a")), 1)
    assert table.rows == [(1, "a")]


def test_a_comment_and_a_partition_are_no_reason_to_be_slow(make: Callable[..., Table]) -> None:
    table = make("id BIGINT COMMENT 'the key', name STRING", "PARTITIONED BY (name)")
    appended = table.append(table.frame((1, "a"), (2, "b")), 0)
    assert appended is not None and table.is_fast(appended.version)
    added = [action["add"] for action in table.actions(1) if "add" in action]
    assert sorted(one["partitionValues"]["name"] for one in added) == ["a", "b"]
    assert sorted(deltalake.DeltaTable(table.path).to_pyarrow_table()["id"].to_pylist()) == [1, 2]


# What the table holds is told from the snapshot's checksum, and without it.


def forget(spark: SparkSession) -> None:
    """Let Delta read tables from disk again, as a new process would."""
    spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]


def test_a_table_without_its_checksum_file_is_fenced_all_the_same(table: Table) -> None:
    for batch in range(2):
        table.append(table.frame((batch, "a")), batch)
    for path in (table.path / "_delta_log").glob("*.crc"):
        path.unlink()
    forget(table.spark)
    assert table.append(table.frame((1, "a")), 1) is None
    with pytest.raises(CheckpointBehindTableError):
        table.append(table.frame((0, "a")), 0)
    appended = table.append(table.frame((2, "a")), 2)
    assert appended is not None and table.is_fast(appended.version)
    assert [row[0] for row in table.rows] == [0, 1, 2]


def test_the_checksum_of_a_commit_that_was_taken_back_is_not_believed(table: Table) -> None:
    for batch in range(3):
        table.append(table.frame((batch, "a")), batch)
    # Somebody takes the newest commit out of the log and leaves its checksum; another writer takes its place.
    log = table.path / "_delta_log" / f"{table.version:020d}.json"
    info = {"commitInfo": {"timestamp": 1, "operation": "WRITE", "operationParameters": {}, "txnId": "b"}}
    log.with_name(f".{log.name}.crc").unlink(missing_ok=True)
    log.write_text(json.dumps(info) + "\n")
    assert json.loads(log.with_suffix(".crc").read_text())["setTransactions"][0]["version"] == 2
    forget(table.spark)
    assert read_checksum(locate(table.path)) is None
    assert read_state(table.spark, locate(table.path)).transactions == {OURS: 1}
    appended = table.append(table.frame((2, "b")), 2)
    assert appended is not None, "the batch was taken for one that the table holds"
    assert table.rows == [(0, "a"), (1, "a"), (2, "b")]


def test_a_checksum_that_was_derived_from_one_of_another_commit_is_not_believed(
    make: Callable[..., Table],
) -> None:
    table = make(**{f"{CHECKPOINT_PROPERTY}sales": OURS})
    for batch in range(3):
        table.append(table.frame((batch, "a")), batch)
    take_back_newest(table.spark, table.path)
    assert read_checksum(locate(table.path)) is None
    assert read_state(table.spark, locate(table.path)).transactions == {OURS: 1}
    appended = table.append(table.frame((2, "b")), 2)
    assert appended is not None, "the batch was taken for one that the table holds"
    assert table.append(table.frame((2, "b")), 2) is None
    assert table.rows == [(0, "a"), (1, "a"), (2, "b")]


def test_a_checksum_that_lacks_a_batch_for_the_same_reason_is_not_believed(table: Table) -> None:
    def write_beside() -> None:
        forget(table.spark)
        table.frame((9, "foreign")).write.format("delta").mode("append").save(str(table.path))
        forget(table.spark)

    write_beside()
    log = table.path / "_delta_log" / f"{table.version:020d}.json"
    log.unlink()
    log.with_name(f".{log.name}.crc").unlink(missing_ok=True)
    forget(table.spark)
    assert table.append(table.frame((0, "a")), 0) is not None
    write_beside()
    write_beside()
    derived = max((table.path / "_delta_log").glob("*.crc")).read_text()
    assert OURS not in derived, "Delta has found the fault itself"
    assert table.append(table.frame((0, "a")), 0) is None, "the batch would be there twice"


def test_more_transactions_than_a_checksum_holds_are_fenced_all_the_same(table: Table) -> None:
    for batch in range(2):
        table.append(table.frame((batch, "a")), batch)
    others = [{"txn": {"appId": f"other-{n}", "version": n, "lastUpdated": 1}} for n in range(120)]
    info = {"commitInfo": {"timestamp": 1, "operation": "STREAMING UPDATE", "operationParameters": {}}}
    log = table.path / "_delta_log" / f"{table.version + 1:020d}.json"
    log.write_text("\n".join(json.dumps(action) for action in (info, *others)) + "\n")
    assert table.append(table.frame((1, "a")), 1) is None
    for batch in range(2, 4):
        appended = table.append(table.frame((batch, "a")), batch)
        assert appended is not None and appended.counts.accepted == 1
        assert table.append(table.frame((batch, "a")), batch) is None
    with pytest.raises(CheckpointBehindTableError):
        table.append(table.frame((119, "a")), 118, checkpoint="other-119")
    assert [row[0] for row in table.rows] == [0, 1, 2, 3]


def test_an_id_that_begins_like_ours_is_another(table: Table) -> None:
    table.append(table.frame((1, "a")), 0, checkpoint=f"{OURS}-2")
    appended = table.append(table.frame((2, "b")), 0)
    assert appended is not None
    assert table.rows == [(1, "a"), (2, "b")]


# Other writers.


def foreign(table: Table, *ids: int) -> None:
    rows = pa.table({"id": pa.array(ids, pa.int64()), "name": ["foreign"] * len(ids)})
    deltalake.write_deltalake(table.path, rows, mode="append")


def test_a_writer_beside_ours_between_two_batches_harms_neither(table: Table) -> None:
    table.append(table.frame((1, "a")), 0)
    foreign(table, 7)
    assert table.append(table.frame((1, "a")), 0) is None
    assert table.append(table.frame((2, "b")), 1) is not None
    assert table.rows == [(1, "a"), (2, "b"), (7, "foreign")]


@pytest.mark.parametrize("reads_target", [False, True], ids=["fast", "public"])
def test_a_writer_beside_ours_within_a_batch_harms_neither(table: Table, reads_target: bool) -> None:
    table.append(table.frame((1, "a")), 0, reads_target=reads_target, before=lambda: foreign(table, 7))
    assert table.rows == [(1, "a"), (7, "foreign")]
    assert table.transactions(2) == {OURS: 0}


# Opening a generation.


def feeding(table: Table, version: int) -> str | None:
    (found,) = [a["metaData"]["configuration"] for a in table.actions(version) if "metaData" in a]
    return dict(found).get(f"{CHECKPOINT_PROPERTY}sales")


def test_an_opening_names_the_checkpoint_that_feeds_the_table(table: Table) -> None:
    version = table.open(OURS, Open(reason="first"))
    assert feeding(table, version) == OURS
    assert table.transactions(version) == {}
    assert table.metadata(version)["opens"] == {
        "generation": 2,
        "reason": "first",
        "fences": None,
        "losses": [],
    }


def test_a_renamed_flow_changes_its_flow_s_name_only(table: Table) -> None:
    table.spark.sql(
        f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('{CHECKPOINT_PROPERTY}old' = '{OURS}')"
    )
    table.append(table.frame((1, "a")), 0)
    version = table.open(OURS, Open(reason="renamed"), renamed_from="old")
    (properties,) = [a["metaData"]["configuration"] for a in table.actions(version) if "metaData" in a]
    assert properties[f"{CHECKPOINT_PROPERTY}sales"] == OURS
    assert f"{CHECKPOINT_PROPERTY}old" not in properties
    assert table.transactions(version) == {}
    assert table.metadata(version)["opens"]["renamed_from"] == {"flow": "old"}
    assert table.append(table.frame((1, "a")), 0) is None
    assert table.append(table.frame((2, "b")), 1) is not None
