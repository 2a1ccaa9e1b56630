"""The rows that a table has gained and lost, by its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lake import Lake, LakeTable, rows

from headrace.increments.changes import find_change
from headrace.increments.increment import NotIncrementalError
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


def test_new_columns_and_properties_are_told(table: LakeTable) -> None:
    """A column can have been dropped and added again, which no data file shows."""
    table.commit([table.metadata()], operation="ADD COLUMNS")
    found = change(table, 1)
    assert (found.is_empty, found.alters) == (True, True)


@pytest.mark.parametrize("operation", ["RESTORE", "CLONE"])
def test_a_restored_table_is_unknown(table: LakeTable, operation: str) -> None:
    table.commit([table.write(rows(range(2)))], operation=operation)
    with pytest.raises(NotIncrementalError, match=operation):
        change(table, 1)
