"""Change records whose NULLs leave a column as it is, against what plain Python says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdc_oracle import Change, partial_rows, random_batches, random_events
from cdc_table import SEQUENCE, CdcTable, create_table, merge_target, use_merge
from headrace.contracts.changes import ChangeColumns
from headrace.model.counts import RowChanges
from headrace.model.names import ChosenColumns
from headrace.sinks.delta import merge
from headrace.sinks.delta.effects import deletes_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ChangeColumns(
    keys=("id",),
    sequence_by="ts",
    deletes="op = 'delete'",
    excluded=("op", "ts"),
    kept_if_null=ChosenColumns(included=("Note",)),
)


class Table(CdcTable):
    @property
    def rows(self) -> dict[int, tuple[str | None, str | None]]:
        found = self.select("id, value, note")
        rows = {key: (value, note) for key, value, note in found}
        assert len(rows) == len(found), "a key has two rows"
        return rows

    def did(self, *changes: Change) -> RowChanges | None:
        committed = self.apply(changes)
        return None if committed is None else committed.counts.changes


@pytest.fixture(params=["index", pytest.param("positions", marks=pytest.mark.thorough)])
def table(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    """A table whose rows are found with an index of its keys, and without one."""
    columns = f"id INT, value STRING, note STRING, _sequences STRUCT<note: {SEQUENCE}>"
    path = create_table(spark, tmp_path / "t", columns)
    target = merge_target(spark, path, 1 << 30 if request.param == "index" else 0, is_partial=True)
    return Table(spark, path, COLUMNS, target)


@pytest.mark.parametrize(
    ("table", "seed"),
    [
        *(("index", 3), ("positions", 2)),
        *(pytest.param(way, 1, marks=pytest.mark.thorough) for way in ("index", "positions")),
    ],
    indirect=["table"],
)
def test_a_null_leaves_a_column_as_it_is_however_the_records_were_cut(table: Table, seed: int) -> None:
    changes = random_events(seed, keys=30, count=400, notes=("x", "y", None, None))
    if seed == 2:
        use_merge(table)
    if seed > 1:
        random.Random(seed).shuffle(changes)
    applied: list[Change] = []
    rows = 0
    for batch in random_batches(seed, changes, 5):
        committed = table.apply(batch)
        assert committed is not None and committed.without_index is None
        did = committed.counts.changes
        applied += batch
        assert table.rows == partial_rows(applied)
        assert isinstance(did, RowChanges)
        assert len(batch) == did.inserted + did.updated + did.deleted + did.superseded
        rows += did.inserted - did.deleted
        assert rows == len(table.rows)


def _no_deletes(effects: DataFrame, keys: list[str]) -> DataFrame:
    return deletes_of(effects, keys).where("false")


def test_the_oracle_finds_a_delete_that_leaves_older_values(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "deletes_of", _no_deletes)
    changes = random_events(3, keys=30, count=300, notes=("x", None, None))
    random.Random(3).shuffle(changes)
    for batch in random_batches(3, changes, 3):
        table.apply(batch)
    assert table.rows != partial_rows(changes)


def test_what_a_partial_change_does_is_counted(table: Table) -> None:
    assert table.did(Change(0, 1, 10, "upsert", "a", "n")) == RowChanges(inserted=1)
    assert table.did(Change(1, 1, 20, "upsert", "b", None)) == RowChanges(updated=1)
    assert table.rows == {1: ("b", "n")}
    # It is older than the row, but newer than the note.
    assert table.did(Change(2, 1, 15, "upsert", "older", "m")) == RowChanges(updated=1)
    assert table.rows == {1: ("b", "m")}
    assert table.did(Change(3, 1, 12, "upsert", "older", "o")) == RowChanges(superseded=1)
    # The row is newer than the delete, its note is not.
    assert table.did(Change(4, 1, 16, "delete")) == RowChanges(updated=1)
    assert table.rows == {1: ("b", None)}
    assert table.did(Change(5, 1, 17, "upsert", "older", "late")) == RowChanges(updated=1)
    assert table.rows == {1: ("b", "late")}
    assert table.did(Change(6, 1, 30, "delete")) == RowChanges(deleted=1)
    assert table.did(Change(7, 1, 25, "upsert", "dead", "dead")) == RowChanges(superseded=1)
    assert table.rows == {}
