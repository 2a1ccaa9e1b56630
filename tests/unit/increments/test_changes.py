"""What has changed in a table between two versions, from its log alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.increments.changes import TableChange, find_change
from headrace.increments.increment import NotIncrementalError
from headrace.storage.layout import locate

Action = Mapping[str, Mapping[str, Any]]


def add(path: str, *, changes: bool = True, **more: Any) -> Action:
    stats = json.dumps({"numRecords": 10})
    return {
        "add": {"path": path, "partitionValues": {}, "size": 7, "stats": stats, "dataChange": changes, **more}
    }


def remove(path: str, *, changes: bool = True, **more: Any) -> Action:
    return {"remove": {"path": path, "partitionValues": {}, "size": 7, "dataChange": changes, **more}}


def vector(cardinality: int) -> Mapping[str, Any]:
    return {"storageType": "i", "pathOrInlineDv": str(cardinality), "cardinality": cardinality}


class Log:
    def __init__(self, folder: Path) -> None:
        self.table = locate(folder / "orders")
        self._log = folder / "orders" / "_delta_log"
        self._log.mkdir(parents=True)

    def commit(self, version: int, *actions: Action, operation: str = "WRITE", **dumps: Any) -> None:
        lines = [{"commitInfo": {"operation": operation}}, *actions]
        text = "\n".join(json.dumps(one, **dumps) for one in lines)
        (self._log / f"{version:020d}.json").write_text(text + "\n")

    def change(self, first: int, last: int) -> TableChange:
        return find_change(self.table, first, last)

    def refused(self, first: int, last: int) -> str:
        with pytest.raises(NotIncrementalError) as raised:
            self.change(first, last)
        return raised.value.code


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_the_files_that_commits_add_and_remove_are_the_change(log: Log, separators: tuple[str, str]) -> None:
    log.commit(1, add("a"), add("b"), separators=separators)
    log.commit(2, remove("old"), remove("b"), add("c"), separators=separators)
    change = log.change(0, 2)
    assert sorted(one["path"] for one in change.added) == ["a", "c"]
    assert [one["path"] for one in change.removed] == ["old"]
    assert (change.replaced, change.only_adds, change.rows) == ({"old"}, False, 20)


def test_a_compaction_changes_nothing_but_its_old_files_are_needed(log: Log) -> None:
    log.commit(1, add("a"))
    log.commit(2, remove("a", changes=False), add("z", changes=False), operation="OPTIMIZE")
    change = log.change(0, 2)
    assert [one["path"] for one in change.added] == ["a"] and change.only_adds
    assert log.change(1, 2).is_empty
    with pytest.raises(NotIncrementalError) as raised:
        change.check_files()
    assert raised.value.code == "DATA_FILE_MISSING"
    (Path(str(log.table)) / "a").touch()
    change.check_files()


def test_other_deleted_rows_of_a_file_are_the_difference_of_its_vectors(log: Log) -> None:
    log.commit(1, remove("a"), add("a", deletionVector=vector(2)))
    log.commit(2, remove("a", deletionVector=vector(2)), add("a", deletionVector=vector(5)))
    change = log.change(0, 2)
    ((before, after),) = change.kept
    assert (before.get("deletionVector"), after["deletionVector"]["cardinality"]) == (None, 5)
    assert (change.rows, change.is_empty, change.only_adds) == (5, False, False)
    assert [after["deletionVector"]["cardinality"] for _, after in log.change(1, 2).kept] == [5]


def test_a_change_that_the_log_does_not_describe_is_refused(log: Log) -> None:
    log.commit(1, add("a"))
    log.commit(2, operation="RESTORE")
    log.commit(3, {"protocol": {"minReaderVersion": 3}})
    log.commit(4, {"remove": {"path": "a", "dataChange": True}})
    log.commit(5, {"metaData": {"schemaString": "{}"}})
    assert log.refused(1, 2) == "CHANGE_SET_MISSING"
    assert log.refused(2, 3) == "DELTA_PROTOCOL_CHANGED"
    assert log.refused(3, 4) == "CHANGE_SET_MISSING"
    assert log.refused(5, 6) == "CHANGE_SET_MISSING"
    assert log.refused(5, 4) == "CHANGE_SET_MISSING"
    assert log.refused(0, 3_000) == "TOO_MANY_FILE_ACTIONS"
    assert log.change(4, 5).alters and log.change(4, 5).is_empty
