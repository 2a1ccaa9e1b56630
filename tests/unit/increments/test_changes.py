"""The rows that a table has gained and lost, by its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lake import Lake, LakeTable, rows

from headrace.increments.changes import UnknownChangeError, find_change
from headrace.storage.locate import locate


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    table = Lake(tmp_path / "lake").table()
    table.commit([table.write(rows(range(5)))], operation="WRITE")
    return table


def change(table: LakeTable, first: int) -> Any:
    return find_change(locate(table.path), first, table.version)


def test_rows_that_are_only_moved_are_no_change(table: LakeTable) -> None:
    table.rewrite(table.active(), rows(range(5)))
    assert change(table, 1).is_empty


def test_lines_of_other_writers_can_have_spaces(table: LakeTable) -> None:
    """A line that is not read would be rows that the view never gets."""
    table.commit([table.write(rows(range(5, 8)))], operation="WRITE", engine="somebody")
    file = table.log / f"{table.version:020d}.json"
    file.write_text("\n".join(json.dumps(json.loads(line)) for line in file.read_text().splitlines()))
    assert ' "dataChange": true' in file.read_text()
    assert (change(table, 1).rows, change(table, 1).only_adds) == (3, True)


def test_new_columns_at_the_end_are_no_change_of_rows(table: LakeTable) -> None:
    table.commit([table.metadata()], operation="ADD COLUMNS")
    assert change(table, 1).is_empty


def test_columns_that_can_have_been_dropped_and_added_again_are_unknown(table: LakeTable) -> None:
    table.properties["delta.columnMapping.mode"] = "name"
    table.commit([table.metadata()], operation="DROP COLUMNS")
    with pytest.raises(UnknownChangeError, match="version 2 changes columns or properties"):
        change(table, 1)


def test_a_table_that_is_replaced_with_other_columns_is_unknown(table: LakeTable) -> None:
    """The files that are gone would be read with the new columns."""
    removed = [table.remove(one) for one in table.active()]
    table.commit([table.metadata(), *removed, table.write(rows(range(2)))], operation="WRITE")
    with pytest.raises(UnknownChangeError, match="version 2 replaces the table and its columns"):
        change(table, 1)


@pytest.mark.parametrize("operation", ["RESTORE", "CLONE"])
def test_a_restored_table_is_unknown(table: LakeTable, operation: str) -> None:
    table.commit([table.write(rows(range(2)))], operation=operation)
    with pytest.raises(UnknownChangeError, match=operation):
        change(table, 1)
