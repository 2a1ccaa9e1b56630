"""Which files belong to a folder: as Spark lists them."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.folders import FileFolder, plain_path
from headrace.storage.local import LocalFiles
from headrace.storage.location import Location


def put(root: Location, *names: str) -> None:
    for name in names:
        (root / name).create(name)


def folder_at(location: Location, below: str = "", **choice: Any) -> FileFolder:
    return FileFolder(path=location.path + below, storage=location.files, **choice)


def found(location: Location, below: str = "", **choice: Any) -> list[str]:
    files = folder_at(location, below, **choice).files()
    return sorted(file.path.removeprefix(f"{location.path}/") for file in files)


def test_hidden_names_and_folders_below_are_passed_over(location: Location) -> None:
    put(location, "a.json", ".a.json", "_a.json", "b._COPYING_", "a.json.tmp", "x/b.json", "_x/c.json")
    assert found(location) == ["a.json", "a.json.tmp"]
    assert found(location, recursive=True) == ["a.json", "a.json.tmp", "x/b.json"]
    assert found(location, recursive=True, glob="*.json") == ["a.json", "x/b.json"]


def test_folders_named_for_a_value_count(location: Location) -> None:
    put(location, "day=01/a", "day=01/_temporary/b", "_day=02/hour=3/c")
    assert found(location) == ["_day=02/hour=3/c", "day=01/a"]
    assert folder_at(location, recursive=True).partition_columns() == ()
    assert folder_at(location, "/day=01").partition_columns() == ()


def test_columns_come_from_the_names_of_folders(location: Location) -> None:
    put(location, "day=01/hour=3/a")
    assert folder_at(location).partition_columns() == ("day", "hour")


def test_columns_come_from_folders_beside_which_files_lie(location: Location) -> None:
    put(location, "a", "b", "_c=1/x", "day=01/_hidden", "day=02/hour=3/a", "z")
    assert folder_at(location).partition_columns() in {("_c",), ("day", "hour")}


@pytest.mark.parametrize("pattern", ["*", "day=*", "day=*/*", "day=0[12]/hour=?/*.json"])
def test_columns_come_from_folders_that_a_pattern_matches(location: Location, pattern: str) -> None:
    put(location, "day=01/hour=3/a.json", "day=02/hour=4/a.json", "b.json")
    assert folder_at(location, f"/{pattern}").partition_columns() == ("day", "hour")


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
def test_a_path_may_be_a_pattern(location: Location, pattern: str, names: list[str]) -> None:
    put(location, "2026-01/a.json", "2026-02/b.json", "2026-01/_c.json", "other/d.json")
    assert found(location, f"/{pattern}") == names


def test_a_missing_folder_is_no_empty_one(location: Location) -> None:
    with pytest.raises(FileNotFoundError):
        list(folder_at(location, "/nowhere").files())


def test_the_base_of_a_pattern_is_what_must_be_there() -> None:
    assert FileFolder(path="/in/2026-*/x", storage=LocalFiles()).base == "/in"
    assert FileFolder(path="/in/x", storage=LocalFiles()).base == "/in/x"
    assert FileFolder(path="/*", storage=LocalFiles()).base == "/"


def test_paths_behind_uris() -> None:
    assert plain_path("file:///in/a%20b%25%23%3F.json") == "/in/a b%#?.json"
    assert plain_path("file:/in/a") == "/in/a"
    assert plain_path("/in/a%20b") == "/in/a%20b"
    assert plain_path("s3a://bucket/a%20b") == "s3://bucket/a b"


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///a#b?c", "/a#b?c"),
        ("file:/a%23b%20c", "/a#b c"),
        ("file://localhost/a", "/a"),
        ("file://other/a", "file://other/a"),
        ("FILE:///a", "/a"),
        ("s3://a/b", "s3://a/b"),
        ("/a#b%20c", "/a#b%20c"),
    ],
)
def test_a_uri_is_read_as_a_path(uri: str, path: str) -> None:
    assert plain_path(uri) == path
