"""Where things lie in a storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import StorageUnsupportedError
from headrace.storage.layout import Storage, shown_path
from object_server import open_buckets


def test_a_pipeline_within_the_storage_has_a_record_of_its_own(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path / "lake")
    names = {
        folder: storage.last_plan(tmp_path / folder).name
        for folder in ("shop", "lake/ingest", "lake/ingest/trial")
    }
    assert names == {
        "shop": "last.json",
        "lake/ingest": "ingest-last.json",
        "lake/ingest/trial": "ingest-trial-last.json",
    }


@pytest.mark.parametrize("text", ["s3://lake/a#b", "s3a://lake/a?b", "s3://lake/a%2520b"])
def test_a_prefix_that_clients_read_in_different_ways_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_buckets(monkeypatch)
    with pytest.raises(StorageUnsupportedError, match=r"it has the character `[%#?]`"):
        Storage.at(text)
    assert Storage.at("s3://lake/a%20b").root.path == "s3://lake/a b"


def test_a_path_is_shown_relative_to_its_pipeline_and_a_uri_whole(tmp_path: Path) -> None:
    assert shown_path(str(tmp_path / "lake" / "t"), tmp_path) == "./lake/t"
    assert shown_path("/elsewhere", tmp_path) == "/elsewhere"
    assert shown_path("s3://lake/t", tmp_path) == "s3://lake/t"
