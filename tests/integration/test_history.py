"""Histories (SCD type 2) in a real Delta table, against what plain Python says that the table must hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from cdc_oracle import Change, Version, history_rows, random_batches, random_events
from cdc_table import SEQUENCE, CdcTable, create_table, history_target, use_merge
from headrace.contracts.changes import ChangeColumns
from headrace.errors import KeyTwiceError
from headrace.model.counts import HistoryChanges
from headrace.model.names import KEPT_PROPERTY, ChosenColumns
from headrace.sinks.delta import history, key_events, keyed, placed_rows
from headrace.sinks.delta.history import HistoryTarget
from headrace.sinks.delta.tombstones import HiddenEvents
from headrace.storage.layout import locate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRACKED = ChosenColumns(excluded=("NOTE",))
COLUMNS = ChangeColumns(
    keys=("id",), sequence_by="ts", deletes="op = 'delete'", excluded=("op", "ts"), tracked=TRACKED
)


class Table(CdcTable):
    """A table with histories."""

    @property
    def rows(self) -> set[Version]:
        found = [Version(*row) for row in self.select('id, "__START_AT", "__END_AT", value, note')]
        assert len(found) == len(set(found))
        return set(found)

    def did(self, *changes: Change) -> HistoryChanges:
        """What a batch did to the rows."""
        committed = self.apply(changes)
        assert committed is not None and isinstance(committed.counts.changes, HistoryChanges)
        return committed.counts.changes


@pytest.fixture(params=["index", pytest.param("positions", marks=pytest.mark.thorough)])
def table(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    """A table whose histories are changed with an index of its keys, and without one."""
    columns = "id INT, value STRING, note STRING, __START_AT INT, __END_AT INT"
    path = create_table(spark, tmp_path / "t", columns)
    target = history_target(spark, path, TRACKED, 1 << 30 if request.param == "index" else 0)
    return Table(spark, path, COLUMNS, target)


@pytest.mark.parametrize(
    ("table", "seed"), [("index", 1), ("index", 2), ("positions", 1)], indirect=["table"]
)
def test_the_table_holds_the_history_of_each_key_however_the_records_were_cut(
    table: Table, seed: int
) -> None:
    changes = random_events(seed, keys=40, count=500)
    if seed == 2:  # as from several partitions: equal sequences do not come in the order of their places
        random.Random(seed).shuffle(changes)
        use_merge(table)
    applied: list[Change] = []
    rows = 0
    for batch in random_batches(seed, changes, 6):
        committed = table.apply(batch)
        assert committed is not None and isinstance(committed.counts.changes, HistoryChanges)
        applied += batch
        assert table.rows == history_rows(applied)
        did = committed.counts.changes
        assert committed.counts.accepted == len(batch)
        assert committed.counts.accepted == did.inserted + did.updated + did.deleted + did.superseded
        rows += did.rows_added - did.rows_removed
        assert rows == len(table.rows)


def _without_hidden_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HiddenEvents, "read", lambda *_: None)


def _every_change_begins_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import functions as F

    for module in (history, key_events):
        monkeypatch.setattr(module, "tracked_values", lambda *_: F.rand())


def _ties_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    real = history._timeline

    def by_batch(events: DataFrame, *rest: Any) -> DataFrame:
        sequence = events["_sequence"].withField("position", events[history._ORIGIN])
        return real(events.withColumn("_sequence", sequence), *rest)

    monkeypatch.setattr(history, "_timeline", by_batch)


@pytest.mark.parametrize("plant", [_without_hidden_events, _every_change_begins_a_row, _ties_by_batch])
@pytest.mark.parametrize("table", ["positions"], indirect=True)
def test_the_oracle_finds_a_planted_mistake(
    table: Table, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    changes = random_events(4, keys=40, count=300)
    random.Random(4).shuffle(changes)
    for batch in random_batches(4, changes, 3):
        table.apply(batch)
    assert table.rows != history_rows(changes)


def test_what_each_record_does_is_counted(table: Table) -> None:
    def upsert(offset: int, sequence: int, value: str, note: str = "") -> Change:
        return Change(offset, 1, sequence, "upsert", value, note)

    assert table.did(upsert(0, 10, "A")) == HistoryChanges(inserted=1, rows_added=1)
    assert table.did(upsert(1, 20, "A", "n")) == HistoryChanges(updated=1, rows_changed=1)
    assert table.did(upsert(2, 12, "A", "unseen")) == HistoryChanges(superseded=1)
    assert table.did(upsert(3, 15, "B")) == HistoryChanges(inserted=1, rows_added=2, rows_changed=1)
    assert table.rows == {
        Version(1, 10, 15, "A", "unseen"),
        Version(1, 15, 20, "B"),
        Version(1, 20, None, "A", "n"),
    }
    assert table.did(upsert(4, 15, "A", "again")) == HistoryChanges(
        updated=0, superseded=1, rows_changed=1, rows_removed=2
    )
    assert table.did(Change(5, 1, 30, "delete"), Change(6, 2, 5, "delete")) == HistoryChanges(
        deleted=1, superseded=1, rows_changed=1
    )
    assert table.did(Change(7, 2, 1, "upsert", "late")) == HistoryChanges(inserted=1, rows_added=1)
    assert table.rows == {Version(1, 10, 30, "A", "n"), Version(2, 1, 5, "late")}


def test_an_attempt_that_ended_between_hidden_events_and_rows_is_repeated(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = random_batches(5, random_events(5, keys=20, count=200), 3)
    table.apply(first)
    before = table.rows
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(keyed, "commit_merge", Mock(side_effect=KeyboardInterrupt))
        patched.setattr(placed_rows, "commit_batch", Mock(side_effect=KeyboardInterrupt))
        table.apply(second, batch=1)
    assert table.rows == before
    # The next attempt may have other records: what the first one has hidden does not count.
    kept = second[::2]
    table.apply(kept, batch=1)
    assert table.apply(kept, batch=1) is None
    table.apply(third, batch=2)
    assert table.rows == history_rows([*first, *kept, *third])


def test_a_late_event_finds_the_edges_of_rows_whose_events_were_collected(table: Table) -> None:
    table.apply([Change(0, 1, 10, "upsert", "A"), Change(1, 1, 20, "upsert", "A", "last")])
    table.apply([Change(2, 1, 30, "delete")])
    assert isinstance(table.target, HistoryTarget)
    table.target.tombstones.collect(table.spark, {KEPT_PROPERTY: "-1"})
    table.apply([Change(3, 1, 15, "upsert", "B")])
    table.apply([Change(4, 1, 25, "delete")])
    # The delete at 30 is the end of no row any more.
    table.apply([Change(5, 1, 27, "upsert", "C")])
    assert table.rows == {
        Version(1, 10, 15, "A", "last"),
        Version(1, 15, 20, "B"),
        Version(1, 20, 25, "A", "last"),
        Version(1, 27, 30, "C"),
    }


def test_rows_that_another_writer_has_deleted_do_not_come_back(table: Table) -> None:
    table.apply([Change(0, 1, 10, "upsert", "A"), Change(1, 1, 20, "upsert", "A")])
    table.spark.sql(f"DELETE FROM delta.`{table.path}`")
    table.apply([Change(2, 1, 30, "upsert", "B")])
    assert table.rows == {Version(1, 30, None, "B")}


def test_a_row_that_another_writer_has_added_again_stops_the_batch(table: Table) -> None:
    table.apply([Change(0, 1, 10, "upsert", "A")])
    table.spark.sql(f"INSERT INTO delta.`{table.path}` SELECT * FROM delta.`{table.path}`")
    with pytest.raises(KeyTwiceError) as caught:
        table.apply([Change(1, 1, 20, "upsert", "B")])
    assert "id = 1 has 2 rows" in caught.value.facts[0]


def test_a_sequence_can_be_a_struct(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    kind = "STRUCT<ts: INT, op: STRING>"
    path = tmp_path / "structs"
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id INT, value STRING, note STRING, __START_AT {kind}, "
        f"__END_AT {kind}, _sequence {SEQUENCE.replace('INT', kind, 1)}) USING delta"
    )
    target = replace(table.target, path=locate(path))
    structs = Table(spark, path, replace(COLUMNS, sequence_by="struct(ts, op)"), target)
    structs.apply([Change(0, 1, 10, "upsert", "A"), Change(1, 1, 20, "upsert", "A")])
    # Of two changes at 15, the delete has the lesser sequence.
    structs.apply([Change(2, 1, 15, "upsert", "B"), Change(3, 1, 15, "delete")])
    rows = structs.select('value, "__START_AT", "__END_AT"')
    times = [(value, start["ts"], None if end is None else end["ts"]) for value, start, end in rows]
    assert sorted(times, key=lambda one: one[1]) == [("A", 10, 15), ("B", 15, 20), ("A", 20, None)]


def test_a_column_that_came_later_is_part_of_the_history(table: Table) -> None:
    from pyspark.sql import functions as F

    table.apply([Change(0, 1, 10, "upsert", "A"), Change(1, 1, 20, "upsert", "A")])
    table.spark.sql(f"ALTER TABLE delta.`{table.path}` ADD COLUMNS (city STRING)")
    later = table.changes([Change(2, 1, 30, "upsert", "A")]).withColumn("city", F.lit("Basel"))
    table.apply_rows(later)
    table.apply([Change(3, 1, 15, "upsert", "A"), Change(4, 1, 12, "upsert", "B")])
    assert table.rows == {
        Version(1, 10, 12, "A"),
        Version(1, 12, 15, "B"),
        Version(1, 15, 30, "A"),
        Version(1, 30, None, "A"),
    }


def test_a_struct_that_grows_grows_in_the_hidden_events(table: Table) -> None:
    from pyspark.sql import functions as F

    table.spark.sql(f"ALTER TABLE delta.`{table.path}` ADD COLUMNS (place STRUCT<city: STRING>)")
    place = F.struct(F.lit("Basel").alias("city"))
    changes = [Change(0, 1, 10, "upsert", "A"), Change(1, 1, 20, "upsert", "A")]
    table.apply_rows(table.changes(changes).withColumn("place", place))
    table.spark.sql(f"ALTER TABLE delta.`{table.path}` ADD COLUMNS (place.country STRING)")
    place = F.struct(F.lit("Basel").alias("city"), F.lit("CH").alias("country"))
    changes = [Change(2, 1, 30, "upsert", "B"), Change(3, 1, 15, "upsert", "B")]
    table.apply_rows(table.changes(changes).withColumn("place", place))
    found = table.spark.read.format("delta").load(str(table.path)).select("__START_AT", "value", "place.*")
    assert sorted(map(tuple, found.collect())) == [
        (10, "A", "Basel", None),
        (15, "B", "Basel", "CH"),
        (20, "A", "Basel", None),
        (30, "B", "Basel", "CH"),
    ]


def test_columns_may_have_names_with_spaces(spark: SparkSession, tmp_path: Path) -> None:
    """A late and a joined record need the hidden events of the key."""
    columns = "id INT, value STRING, `a note` STRING, __START_AT INT, __END_AT INT"
    mapped = "true, delta.columnMapping.mode = 'name'"
    path = create_table(spark, tmp_path / "t", columns, vectors=mapped)
    tracked = ChosenColumns(included=("value",))
    target = history_target(spark, path, tracked)
    named = replace(COLUMNS, tracked=tracked)
    table = Table(spark, path, named, target)

    def apply(*changes: Change) -> None:
        source = table.changes(changes).withColumnRenamed("note", "a note")
        assert table.apply_rows(source) is not None

    apply(Change(0, 1, 10, "upsert", "A", "x"), Change(1, 1, 20, "upsert", "A", "y"))
    apply(Change(2, 1, 15, "upsert", "B", "z"))
    rows = spark.read.format("delta").load(str(path)).orderBy("__START_AT").collect()
    assert [(row["__START_AT"], row["value"], row["a note"]) for row in rows] == [
        (10, "A", "x"),
        (15, "B", "z"),
        (20, "A", "y"),
    ]
