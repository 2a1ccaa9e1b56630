"""Histories of change records whose NULLs leave a column as it is, against what plain Python says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cdc_oracle import Change, Version, history_rows, random_batches, random_events
from cdc_table import SEQUENCE, CdcTable, create_table, history_target, use_merge
from headrace.contracts.changes import ChangeColumns
from headrace.model.counts import HistoryChanges
from headrace.model.names import ChosenColumns
from headrace.sinks.delta import history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRACKED = ChosenColumns(excluded=("note",))
COLUMNS = ChangeColumns(
    keys=("id",),
    sequence_by="ts",
    deletes="op = 'delete'",
    excluded=("op", "ts"),
    tracked=TRACKED,
    kept_if_null=ChosenColumns(included=("Note", "VALUE")),
)


class Table(CdcTable):
    @property
    def rows(self) -> set[Version]:
        found = [Version(*row) for row in self.select('id, "__START_AT", "__END_AT", value, note')]
        assert len(found) == len(set(found))
        return set(found)

    def did(self, *changes: Change) -> HistoryChanges:
        committed = self.apply(changes)
        assert committed is not None and isinstance(committed.counts.changes, HistoryChanges)
        return committed.counts.changes


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    sequences = f"_sequences STRUCT<value: {SEQUENCE}, note: {SEQUENCE}>"
    columns = f"id INT, value STRING, note STRING, __START_AT INT, __END_AT INT, {sequences}"
    path = create_table(spark, tmp_path / "t", columns)
    target = history_target(spark, path, TRACKED)
    return Table(spark, path, COLUMNS, target)


def partial_events(seed: int, count: int) -> list[Change]:
    values, notes = ("A", "A", "B", None), ("x", "y", None, None)
    changes = random_events(seed, keys=40, count=count, values=values, notes=notes)
    random.Random(seed).shuffle(changes)
    return changes


@pytest.mark.parametrize("seed", [1, 2])
def test_a_null_leaves_a_column_as_it_is_however_the_records_were_cut(table: Table, seed: int) -> None:
    changes = partial_events(seed, 500)
    if seed == 2:
        use_merge(table)
    applied: list[Change] = []
    rows = 0
    for batch in random_batches(seed, changes, 6):
        did = table.did(*batch)
        applied += batch
        assert table.rows == history_rows(applied, keeps=True)
        assert len(batch) == did.inserted + did.updated + did.deleted + did.superseded
        rows += did.rows_added - did.rows_removed
        assert rows == len(table.rows)


def test_the_oracle_finds_values_that_are_taken_for_those_of_a_record(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unchanged(events: Any, *_: Any) -> Any:
        return events

    monkeypatch.setattr(history, "_as_given", unchanged)
    changes = partial_events(3, 300)
    for batch in random_batches(3, changes, 3):
        table.apply(batch)
    assert table.rows != history_rows(changes, keeps=True)


def test_a_late_record_changes_what_later_rows_have_kept(table: Table) -> None:
    def upsert(offset: int, sequence: int, value: str | None, note: str | None = None) -> Change:
        return Change(offset, 1, sequence, "upsert", value, note)

    assert table.did(upsert(0, 10, "A", "n")) == HistoryChanges(inserted=1, rows_added=1)
    assert table.did(upsert(1, 30, "C")) == HistoryChanges(inserted=1, rows_added=1, rows_changed=1)
    assert table.rows == {Version(1, 10, 30, "A", "n"), Version(1, 30, None, "C", "n")}
    # The value of the row does not change: only its note does, and that of the row after it.
    assert table.did(upsert(2, 20, None, "m")) == HistoryChanges(updated=1, rows_changed=2)
    assert table.rows == {Version(1, 10, 30, "A", "m"), Version(1, 30, None, "C", "m")}
    # A delete before them ends the note's life, not the values that are newer.
    assert table.did(Change(3, 1, 25, "delete")) == HistoryChanges(deleted=1, rows_changed=2)
    assert table.rows == {Version(1, 10, 25, "A", "m"), Version(1, 30, None, "C", None)}
    assert table.did(upsert(4, 27, None, "late")) == HistoryChanges(inserted=1, rows_added=1, rows_changed=1)
    assert table.rows == {
        Version(1, 10, 25, "A", "m"),
        Version(1, 27, 30, None, "late"),
        Version(1, 30, None, "C", "late"),
    }


def test_a_row_is_split_in_two_after_its_hidden_records_were_removed(table: Table, tmp_path: Path) -> None:
    """The start of the row has the values of the row, also those that a later record has given."""
    table.did(Change(0, 1, 10, "upsert", "A", "x"))
    table.did(Change(1, 1, 20, "upsert", None, None), Change(2, 1, 30, "upsert", None, "y"))
    table.spark.sql(f"DELETE FROM delta.`{tmp_path / 't-hidden'}`").collect()
    table.did(Change(3, 1, 25, "upsert", "B", None))
    assert table.rows == {Version(1, 10, 25, "A", "y"), Version(1, 25, None, "B", "y")}
