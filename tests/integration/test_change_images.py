"""Tables with changes by key whose change feed is enabled: the feed has every change of every row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cdc_oracle import current_rows, history_rows, random_batches, random_changes, random_events
from cdc_table import CdcTable, create_table, history_target, merge_target
from headrace.contracts.changes import ChangeColumns
from headrace.model.names import ChosenColumns
from headrace.sinks.delta import placed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRACKED = ChosenColumns(excluded=("note",))
COLUMNS = ChangeColumns(
    keys=("id",), sequence_by="ts", deletes="op = 'delete'", excluded=("op", "ts"), tracked=TRACKED
)
WAYS = pytest.mark.parametrize(
    ("index_memory", "layout"),
    [(1 << 30, "PARTITIONED BY (value)"), (0, "")],
    ids=["index, partitioned", "positions"],
)
Make = Callable[..., CdcTable]


@pytest.fixture
def current(spark: SparkSession, tmp_path: Path) -> Make:
    """Makes a table with the current row of each key, and a change feed."""

    def make(index_memory: int, layout: str) -> CdcTable:
        path = create_table(spark, tmp_path / "t", "id INT, value STRING, note STRING", layout)
        _enable_feed(spark, path)
        return CdcTable(spark, path, COLUMNS, merge_target(spark, path, index_memory))

    return make


@pytest.fixture
def histories(spark: SparkSession, tmp_path: Path) -> Make:
    """Makes a table with histories, and a change feed."""

    def make(index_memory: int, layout: str) -> CdcTable:
        columns = "id INT, value STRING, note STRING, __START_AT INT, __END_AT INT"
        path = create_table(spark, tmp_path / "t", columns, layout)
        _enable_feed(spark, path)
        return CdcTable(spark, path, COLUMNS, history_target(spark, path, TRACKED, index_memory))

    return make


def _enable_feed(spark: SparkSession, path: Path) -> None:
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")


def replayed(table: CdcTable, identity: tuple[str, ...]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The rows that a reader of the change feed has, which checks each change against the rows before it."""
    reader = table.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
    feed = reader.load(str(table.path))
    names = [name for name in feed.columns if not name.startswith("_c")]
    versions: dict[int, list[Any]] = defaultdict(list)
    for row in feed.collect():
        versions[row["_commit_version"]].append(row)
    held: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for version in sorted(versions):
        by_kind: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = defaultdict(dict)
        for row in versions[version]:
            key = tuple(row[name] for name in identity)
            of_kind = by_kind[row["_change_type"]]
            assert key not in of_kind, "a row has two changes of a kind"
            of_kind[key] = tuple(row[name] for name in names)
        before, after = by_kind["update_preimage"], by_kind["update_postimage"]
        assert before.keys() == after.keys()
        for key, values in (before | by_kind["delete"]).items():
            assert held.pop(key) == values
        inserted = by_kind["insert"]
        assert not inserted.keys() & held.keys() and not inserted.keys() & after.keys()
        held |= after | inserted
    return held


@WAYS
def test_the_feed_has_every_change_of_a_current_row(current: Make, index_memory: int, layout: str) -> None:
    table = current(index_memory, layout)
    changes = random_changes(5, keys=30, count=200)
    for batch in random_batches(5, changes, 4):
        committed = table.apply(batch)
        assert committed is not None and committed.without_index is None
    rows = replayed(table, ("id",))
    assert {key: values[1] for (key,), values in rows.items()} == current_rows(changes)
    history = table.spark.sql(f"DESCRIBE HISTORY delta.`{table.path}`").collect()
    assert {row["operation"] for row in history} & {"MERGE"} == set()


@WAYS
def test_the_feed_has_every_change_of_a_history(histories: Make, index_memory: int, layout: str) -> None:
    table = histories(index_memory, layout)
    changes = random_events(3, keys=20, count=200)
    for batch in random_batches(3, changes, 4):
        committed = table.apply(batch)
        assert committed is not None and committed.without_index is None
    rows = replayed(table, ("id", "__START_AT"))
    found = {(values[0], values[3], values[4], values[1]) for values in rows.values()}
    wanted = {(one.key, one.start, one.end, one.value) for one in history_rows(changes)}
    assert found == wanted


def test_a_missing_image_is_found(current: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    real = placed_rows._matched

    def without_updates(*args: Any) -> Any:
        return real(*args).where("_change_type <> 'update_preimage'")

    monkeypatch.setattr(placed_rows, "_matched", without_updates)
    table = current(1 << 30, "")
    for batch in random_batches(5, random_changes(5, keys=30, count=200), 4):
        table.apply(batch)
    with pytest.raises(AssertionError):
        replayed(table, ("id",))
