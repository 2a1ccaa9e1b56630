"""Which files belong to a folder: as Spark lists them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.model.folders import FileFolder, local_path


def put(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def found(path: Path | str, *, recursive: bool = False, glob: str | None = None) -> list[str]:
    folder = FileFolder(path=str(path), recursive=recursive, glob=glob)
    return sorted(os.path.relpath(file.path, folder.base) for file in folder.files())


def test_hidden_names_and_folders_below_are_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "a.json", ".a.json", "_a.json", "b._COPYING_", "a.json.tmp", "x/b.json", "_x/c.json")
    assert found(tmp_path) == ["a.json", "a.json.tmp"]
    assert found(tmp_path, recursive=True) == ["a.json", "a.json.tmp", "x/b.json"]
    assert found(tmp_path, recursive=True, glob="*.json") == ["a.json", "x/b.json"]


def test_folders_named_for_a_value_count(tmp_path: Path) -> None:
    put(tmp_path, "day=01/a", "day=01/_temporary/b", "_day=02/hour=3/c")
    assert found(tmp_path) == ["_day=02/hour=3/c", "day=01/a"]
    assert FileFolder(path=str(tmp_path), recursive=True).partition_columns() == ()
    assert FileFolder(path=str(tmp_path / "day=01")).partition_columns() == ()


def test_columns_come_from_the_names_of_folders(tmp_path: Path) -> None:
    put(tmp_path, "day=01/hour=3/a")
    assert FileFolder(path=str(tmp_path)).partition_columns() == ("day", "hour")


def test_columns_come_from_folders_beside_which_files_lie(tmp_path: Path) -> None:
    put(tmp_path, "a", "b", "_c=1/x", "day=01/_hidden", "day=02/hour=3/a", "z")
    assert FileFolder(path=str(tmp_path)).partition_columns() in {("_c",), ("day", "hour")}


@pytest.mark.parametrize("pattern", ["*", "day=*", "day=*/*", "day=0[12]/hour=?/*.json"])
def test_columns_come_from_the_names_of_folders_that_a_pattern_matches(tmp_path: Path, pattern: str) -> None:
    put(tmp_path, "day=01/hour=3/a.json", "day=02/hour=4/a.json", "b.json")
    assert FileFolder(path=f"{tmp_path}/{pattern}").partition_columns() == ("day", "hour")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("2026-*", ["2026-01/a.json", "2026-02/b.json"]),
        ("2026-0[12]/*.json", ["2026-01/a.json", "2026-02/b.json"]),
        ("2026-0[^1]", ["2026-02/b.json"]),
        ("{2026-01/a,2026-02/b}.json", ["2026-01/a.json", "2026-02/b.json"]),
        ("2026-01/?.json", ["2026-01/a.json"]),
        ("2027*", []),
    ],
)
def test_a_path_may_be_a_pattern(tmp_path: Path, pattern: str, names: list[str]) -> None:
    put(tmp_path, "2026-01/a.json", "2026-02/b.json", "2026-01/_c.json", "other/d.json")
    assert (
        sorted(
            Path(f.path).relative_to(tmp_path).as_posix()
            for f in FileFolder(path=f"{tmp_path}/{pattern}").files()
        )
        == names
    )


def test_a_missing_folder_is_no_empty_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(FileFolder(path=str(tmp_path / "nowhere")).files())


def test_the_base_of_a_pattern_is_what_must_be_there() -> None:
    assert FileFolder(path="/in/2026-*/x").base == Path("/in")
    assert FileFolder(path="/in/x").base == Path("/in/x")
    assert FileFolder(path="/*").base == Path("/")


def test_paths_behind_uris() -> None:
    assert local_path("file:///in/a%20b%25%23%3F.json") == "/in/a b%#?.json"
    assert local_path("file:/in/a") == "/in/a"
    assert local_path("/in/a%20b") == "/in/a%20b"
    assert local_path("s3a://bucket/a") is None


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///a#b?c", "/a#b?c"),
        ("file:/a%23b%20c", "/a#b c"),
        ("file://localhost/a", "/a"),
        ("file://other/a", None),
        ("FILE:///a", "/a"),
        ("s3://a/b", None),
        ("/a#b%20c", "/a#b%20c"),
    ],
)
def test_a_uri_is_read_as_a_path(uri: str, path: str | None) -> None:
    assert local_path(uri) == path
