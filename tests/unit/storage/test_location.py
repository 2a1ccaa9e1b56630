"""Files and folders of a storage, on every kind of storage."""

from __future__ import annotations

import errno
import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.errors import StorageUnsupportedError, StorageUnwritableError
from headrace.storage import objects
from headrace.storage.layout import locate
from headrace.storage.location import Location
from object_server import open_buckets


@pytest.fixture(autouse=True, params=["whole", "in parts"])
def part_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are read with one request, or as large ones are."""
    if request.param == "in parts":
        if "location" not in request.fixturenames:
            pytest.skip("it reads no object")
        if request.getfixturevalue("location").is_local:
            pytest.skip("a local file is always read in the same way")
        monkeypatch.setattr(objects, "_WHOLE_BYTES", 4)
        monkeypatch.setattr(objects, "PART_BYTES", 3)


def test_a_large_file_is_read_as_a_small_one(location: Location) -> None:
    lines = [f"line {number}" for number in range(20)]
    text = "\n".join(lines)
    (location / "f").replace(text)
    assert (location / "f").read_text() == text
    assert list((location / "f").read_lines()) == lines
    assert location.read_files(["f", "missing"]) == {"f": text.encode()}
    with (location / "f").open() as file:
        assert file.readable() and file.seekable() and not file.closed
        assert file.seek(-7, os.SEEK_END) == len(text) - 7
        assert file.read() == b"line 19"
        assert file.read() == file.read(5) == b""
        file.seek(5)
        assert file.readline() == b"0\n"
        with io.TextIOWrapper(file) as wrapped:
            assert wrapped.read() == "\n".join(lines[1:])
    assert file.closed


def test_a_large_object_that_is_replaced_is_not_mixed_with_the_new_one(location: Location) -> None:
    if location.is_local:
        pytest.skip("it has no object")
    file = location / "f"
    file.replace("0123456789" * 10)
    with file.open() as opened:
        if isinstance(opened, io.BytesIO):
            pytest.skip("it is read with one request")
        assert opened.read(3) == b"012"
        file.replace("abcdefghij" * 10)
        with pytest.raises(OSError):
            opened.read()


def test_what_is_written_is_read(location: Location) -> None:
    file = location / "plans" / "last.json"
    file.replace_json({"a": "ä"})
    assert file.read_json() == {"a": "ä"}
    file.replace("one\ntwo \u2028 two\n")
    assert list(file.read_lines()) == ["one", "two \u2028 two"]
    with file.open() as opened:
        opened.seek(4)
        assert opened.read(3) == b"two"


def test_a_missing_file_is_told_from_an_empty_one(location: Location) -> None:
    file = location / "f"
    with pytest.raises(FileNotFoundError):
        file.read_bytes()
    assert not file.exists()
    file.replace("")
    assert file.exists()
    assert file.read_bytes() == b""


def test_a_folder_lists_its_own_files_and_folders(location: Location) -> None:
    for name in ("b", "a", "x/c", "x/y/d"):
        (location / name).replace(name)
    assert location.list_files() == ["a", "b"]
    assert location.list_folders() == ["x"]
    assert (location / "x").list_files() == (location / "x/").list_files() == ["c"]
    assert (location / "x").exists()
    assert (location / "nowhere").list_files() == (location / "nowhere").list_folders() == []
    assert (location / "a").list_files() == []


def test_a_file_is_created_once(location: Location) -> None:
    file = location / "schemas" / "one.json"
    assert file.create("first")
    assert not file.create("second")
    assert file.read_text() == "first"
    assert file.parent.list_files() == ["one.json"]


def test_of_many_that_create_a_file_one_succeeds(location: Location) -> None:
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda number: (location / "f").create(str(number)), range(32)))
    assert done.count(True) == 1
    assert (location / "f").read_text() == str(done.index(True))


def test_a_file_is_swapped_only_if_nobody_has_changed_it(location: Location) -> None:
    file = location / "lease"
    assert not file.swap(b"", "new")
    file.replace("old")
    assert not file.swap(b"other", "new")
    assert file.swap(b"old", "new")
    assert not file.swap(b"old", "newer")
    assert file.read_text() == "new"


def test_of_many_that_swap_a_file_one_succeeds(location: Location) -> None:
    file = location / "lease"
    file.replace("old")
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda number: file.swap(b"old", str(number)), range(32)))
    assert done.count(True) == 1
    assert file.read_text() == str(done.index(True))


def test_files_are_copied_and_deleted_and_so_are_folders(location: Location) -> None:
    for name in ("a/one", "a/deep/two", "b"):
        (location / name).replace(name)
    for _ in range(2):
        (location / "a" / "deep" / "two").copy(location / "c" / "d")
    assert (location / "c" / "d").read_text() == (location / "a" / "deep" / "two").read_text() == "a/deep/two"
    (location / "b").copy(location / "c" / "d")
    assert (location / "c" / "d").read_text() == "b"
    for _ in range(2):
        (location / "a").delete_folder()
        (location / "b").delete()
    assert not (location / "a").exists()
    assert not (location / "b").exists()
    with pytest.raises(FileNotFoundError):
        (location / "b").copy(location / "e")


def test_a_local_file_that_cannot_be_copied_because_it_cannot_be_read_is_no_failure_to_write(
    tmp_path: Path,
) -> None:
    (tmp_path / "a folder").mkdir()
    with pytest.raises(IsADirectoryError):
        (locate(tmp_path) / "a folder").copy(locate(tmp_path) / "new")


def test_a_storage_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file where the folder should be")
    file = locate(tmp_path) / "lake" / "f"
    for write in (file.replace, file.create):
        with pytest.raises(StorageUnwritableError) as caught:
            write("text")
        assert caught.value.params == {"path": str(tmp_path / "lake" / "f")}
        assert f"{tmp_path}/lake is a file, not a folder" in caught.value.summary


def test_a_location_is_a_path_and_a_uri(tmp_path: Path) -> None:
    found = locate(tmp_path / "a b") / "c.json"
    assert (found.name, found.stem, found.parent.name) == ("c.json", "c", "a b")
    assert str(found) == str(tmp_path / "a b" / "c.json")
    assert found.uri == f"file://{tmp_path}/a%20b/c.json"
    assert found.local_path == tmp_path / "a b" / "c.json"
    assert locate(found.uri) == found
    assert len({found, locate(found.uri)}) == 1


def test_a_location_of_another_kind_has_no_local_path(location: Location) -> None:
    if location.is_local:
        assert location.local_path.is_dir()
        return
    with pytest.raises(StorageUnsupportedError):
        _ = location.local_path


def test_relative_paths_begin_in_the_folder_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("lake") == locate("./x/../lake/") == locate(tmp_path / "lake")
    assert locate("lake", tmp_path / "shop") == locate(tmp_path / "shop" / "lake")
    assert locate("/lake#1?", tmp_path).path == "/lake#1?"


@pytest.mark.parametrize(
    "text", ["file:///lake", "file:/lake", "file://localhost/lake", "file:///lake/", "/lake", "FILE:///lake"]
)
def test_a_file_uri_is_a_local_path(text: str) -> None:
    assert locate(text).path == "/lake"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "s3:/bucket/x",
            "s3:///x",
            "s3://b/../x",
            "s3n://b/x",
            "s3://b_c/x",
            "gs://b/x",
            "abfss://c@a/x",
            "az:x",
        ),
        *("hdfs://n:8020/x", "https://h/x", "memory://x", "file://elsewhere/x", "file:lake"),
    ],
)
def test_a_uri_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(StorageUnsupportedError) as caught:
        locate(text)
    assert caught.value.params["storage"] == text
    assert caught.value.params["supported"] == ["file", "s3"]


@pytest.mark.parametrize("text", ["s3://b/x y", "s3a://b/x y/", "S3A://b//x y", "s3://b/./x y"])
def test_a_location_in_s3_has_one_spelling(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_buckets(monkeypatch)
    assert locate(text).path == "s3://b/x y"
    assert locate(text) == locate(locate(text).uri)


def test_special_characters_of_a_uri_are_part_of_its_path() -> None:
    assert str(locate("file:///a#b/c?d").local_path) == "/a#b/c?d"


def report(free: int, blocks: int = 1000) -> SimpleNamespace:
    return SimpleNamespace(f_bavail=free, f_frsize=1, f_blocks=blocks)


def test_a_full_disk_is_refused_before_a_write_with_its_free_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = locate(str(tmp_path)) / "not yet" / "events"
    monkeypatch.setattr(os, "statvfs", lambda _: report(1_500_000))
    table.check_space(100_000)
    with pytest.raises(StorageUnwritableError, match="no space is left on the disk of") as caught:
        table.check_space(1_000_000)
    assert caught.value.params == {"path": table.path, "free": 1_500_000}
    assert caught.value.facts == ("free: 1,500,000 bytes",)
    assert "headrace run" in caught.value.remedies[0]


def test_a_disk_that_reports_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = locate(str(tmp_path)) / "events"
    monkeypatch.setattr(os, "statvfs", lambda _: report(0, 0))
    table.check_space(1_000_000)


def test_a_write_that_meets_a_full_disk_names_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageUnwritableError, match="no space is left on the disk of"):
        (locate(str(tmp_path)) / "lease.json").replace("{}")
