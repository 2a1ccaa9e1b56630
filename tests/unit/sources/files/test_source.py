"""What `plan` says of a folder of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException

from headrace.model.folders import FileFolder
from headrace.sources.files.source import describe_folder, load_existing
from headrace.storage.local import LocalFiles


def test_files_are_counted_and_so_are_those_that_a_pattern_leaves_out(tmp_path: Path) -> None:
    assert describe_folder(FileFolder(storage=LocalFiles(), path=str(tmp_path))) == "0 files"
    for name in ("a.json", "b.txt"):
        (tmp_path / name).touch()
    assert describe_folder(FileFolder(storage=LocalFiles(), path=str(tmp_path))) == "2 files"
    matching = describe_folder(FileFolder(storage=LocalFiles(), path=str(tmp_path), glob="*.json"))
    assert matching == "1 file that matches *.json (1 that does not)"
    nothing = describe_folder(FileFolder(storage=LocalFiles(), path=str(tmp_path), glob="*.jsn"))
    assert nothing == "0 files that match *.jsn (2 that do not)"
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "a.json").touch()
    assert (
        describe_folder(FileFolder(storage=LocalFiles(), path=str(tmp_path)))
        == "2 files (1 ignored, the name begins with . or _)"
    )


class _NotFoundError(AnalysisException):
    def getCondition(self) -> str:
        return "PATH_NOT_FOUND"


class _Reader:
    """Loads files as Spark does: a file that is gone is an error."""

    def __init__(self, *there: str) -> None:
        self._there = there

    def load(self, paths: list[str]) -> Any:
        if not set(paths) <= set(self._there):
            raise _NotFoundError("gone")
        return paths


def test_files_of_a_range_are_looked_for_only_if_one_is_gone() -> None:
    def exists(path: str) -> bool:
        looked.append(path)
        return path == "a"

    looked: list[str] = []
    assert load_existing(_Reader("a", "b"), ["a", "b"], exists) == ["a", "b"]
    assert looked == []
    assert load_existing(_Reader("a"), ["a", "b"], exists) == ["a"]
    assert looked == ["a", "b"]
    assert load_existing(_Reader(), ["b"], exists) is None
