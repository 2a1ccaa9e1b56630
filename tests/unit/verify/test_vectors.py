"""Deletion vectors: which rows of a file are deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
from lake import Lake, LakeTable, rows

from headrace.verify.coordinates import CoordinatesUnreadableError, DeletedRows
from headrace.verify.delta_log import load_table_log
from headrace.verify.stored import StoredPath


def deleted_rows(table: LakeTable) -> list[int]:
    log = load_table_log(StoredPath.at(str(table.path)))
    (file,) = log.active().values()
    return [int(row) for row in DeletedRows().load(log, file)]


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize(
    "deleted", [[0, 3], [9], list(range(0, 5000, 7)), list(range(0, 70000, 17)), [66000]]
)
def test_the_rows_that_a_vector_marks(lake: Lake, deleted: list[int], inline: bool) -> None:
    table = lake.table()
    table.flow().append({0: (0, 70001)})
    table.delete(deleted, table.active()[0], inline=inline)
    assert deleted_rows(table) == deleted


def test_a_vector_with_another_number_of_rows_than_the_log_says(lake: Lake) -> None:
    table = lake.table()
    table.commit([table.write(rows(range(10)))])
    (add,) = table.active()
    vector = {**table.vector([1, 2]), "cardinality": 3}
    table.commit([table.remove(add), {"add": {**add, "deletionVector": vector}}], operation="DELETE")
    with pytest.raises(CoordinatesUnreadableError, match="marks 2 rows, and the log states 3"):
        deleted_rows(table)


def test_a_vector_that_is_missing(lake: Lake) -> None:
    table = lake.table()
    table.commit([table.write(rows(range(10)))])
    table.delete([1], table.active()[0])
    next(table.path.glob("deletion_vector_*")).unlink()
    with pytest.raises(CoordinatesUnreadableError):
        deleted_rows(table)


def test_a_vector_that_a_later_one_replaced(lake: Lake) -> None:
    table = lake.table()
    table.commit([table.write(rows(range(10)))])
    for deleted in ([1], [1, 5]):
        table.delete(deleted, table.active()[0])
    log = load_table_log(StoredPath.at(str(table.path)))
    added = [file for commit in log.commits for file in commit.added if file.vector]
    read = DeletedRows()
    assert [read.load(log, file).tolist() for file in added] == [[1], [1, 5]]


@pytest.mark.parametrize("at", ["file"], indirect=True)
def test_a_table_behind_a_symbolic_link(lake: Lake, tmp_path: Path) -> None:
    table = lake.table()
    table.commit([table.write(rows(range(10)))])
    table.delete([1], table.active()[0])
    link = tmp_path / "link"
    link.symlink_to(table.path)
    log = load_table_log(StoredPath.at(str(link)))
    (file,) = log.active().values()
    assert DeletedRows().load(log, file).tolist() == [1]
