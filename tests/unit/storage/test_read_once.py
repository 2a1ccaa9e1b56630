"""A storage for a command that only reads: each listing and each small file is read once."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.storage.layout import Storage
from headrace.storage.location import Location
from object_server import ObjectServer
from s3_proxy import S3Proxy


def test_each_listing_and_each_file_of_a_bucket_is_asked_for_once(
    object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with S3Proxy(object_server.url) as proxy:
        object_server.reach(monkeypatch, proxy.url)
        storage = Storage.at(f"s3://{object_server.make_bucket()}/v1")
        (storage.root / "logs" / "0.json").create("first")
        once, _ = storage.read_once()
        for _ in range(3):
            log = once.root / "logs"
            assert log.list_files() == ["0.json"]
            assert log.read_files(["0.json", "1.json"]) == {"0.json": b"first"}
            assert (log / "0.json").exists()
            assert not (log / "1.json").exists(), "its listing says so"
            assert log.exists()
            assert not (once.root / "other").exists()
        found = Counter(one.path.partition("/v1/")[2] for one in proxy.requests if one.operation != "PUT")
        assert found == {"logs/": 1, "logs/0.json": 1, "other": 1, "other/": 1}


def test_what_was_read_stays_until_it_is_forgotten(location: Location) -> None:
    storage = Storage(location)
    folder = location / "folds"
    (folder / "0").replace("old")
    once, files = storage.read_once()
    seen = once.root / "folds"
    assert (seen.list_files(), (seen / "0").exists(), (seen / "1").exists()) == (["0"], True, False)
    (folder / "1").replace("new")
    assert (seen.list_files(), (seen / "1").exists()) == (["0"], False)
    with pytest.raises(FileNotFoundError):
        (seen / "1").read_text()
    # A run reads the storage itself.
    assert (storage.root / "folds").list_files() == ["0", "1"]
    files.forget()
    assert (seen.list_files(), (seen / "1").read_text()) == (["0", "1"], "new")


def test_a_small_object_that_is_replaced_stays_as_it_was_read(location: Location) -> None:
    if location.is_local:
        pytest.skip("a local file is opened")
    (location / "fold").replace("old")
    once, files = Storage(location).read_once()
    assert (once.root / "fold").read_text() == "old"
    (location / "fold").replace("new")
    assert (once.root / "fold").read_text() == "old"
    files.forget()
    assert (once.root / "fold").read_text() == "new"


def test_nothing_can_be_written(location: Location) -> None:
    (location / "0").replace("{}")
    once, _ = Storage(location).read_once()
    file, new = once.root / "0", once.root / "1"
    with pytest.raises(AssertionError):
        new.create("")
    with pytest.raises(AssertionError):
        file.replace("")
    with pytest.raises(AssertionError):
        file.swap(b"{}", "")
    with pytest.raises(AssertionError):
        file.update_json(lambda _: [1])
    with pytest.raises(AssertionError):
        file.delete()
    with pytest.raises(AssertionError):
        once.root.delete_files(["0"])
    with pytest.raises(AssertionError):
        once.root.delete_folder()
    assert (location / "0").read_text() == "{}"
