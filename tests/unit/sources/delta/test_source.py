"""Whether a stream over a table has anything to read, told without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import deltalake
import pyarrow as pa
import pytest
from stores import At, on_disk

from headrace.errors import SourceLocation, StorageUnsupportedError
from headrace.model.names import TableName
from headrace.sources.delta.facts import DeltaPosition
from headrace.sources.delta.source import DeltaKind, DeltaSource
from headrace.sources.requests import StreamRead
from headrace.storage.layout import Storage

UPSTREAM = TableName("default", "bronze")
HERE = SourceLocation("shop.py", 1)


def is_drained(storage: Storage, version: int, *, erasures_only: bool = True) -> bool:
    """Whether a stream that has read everything before a version has nothing to read."""
    path = str(storage.table(UPSTREAM))
    source = DeltaSource(index=0, folder=0, location=HERE, path=path, erasures_only=erasures_only)
    position = DeltaPosition(table_id="t", version=version, index=-1)
    unused = cast(Any, None)
    return source.is_drained(unused, position, unused)


@pytest.fixture
def storage(at: At, tmp_path: Path) -> Storage:
    """A table of versions 0 to 2."""
    storage = Storage(at(tmp_path))
    for number in range(3):
        deltalake.write_deltalake(
            on_disk(storage.table(UPSTREAM)), pa.table({"id": [number, 10]}), mode="append"
        )
    return storage


def test_a_stream_at_the_end_has_nothing_to_read(storage: Storage) -> None:
    assert is_drained(storage, 3)
    assert not is_drained(storage, 2)


def test_commits_that_bring_a_stream_nothing_are_passed_over(storage: Storage) -> None:
    table = deltalake.DeltaTable(on_disk(storage.table(UPSTREAM)))
    table.optimize.compact()
    table.delete("id = 1")
    assert is_drained(storage, 3)
    assert not is_drained(storage, 3, erasures_only=False)
    table.update({"id": "7"}, predicate="id = 2")
    assert not is_drained(storage, 3)


def test_a_log_that_has_lost_what_comes_next_is_left_to_spark(storage: Storage) -> None:
    for version in (0, 1):
        (storage.table(UPSTREAM) / "_delta_log" / f"{version:020d}.json").delete()
    assert not is_drained(storage, 1)


@pytest.mark.parametrize("written", ["file://{path}", "file:{path}", "{path}/", "{path}"])
def test_a_stream_over_a_table_has_one_path_however_it_is_written(tmp_path: Path, written: str) -> None:
    path = tmp_path / "orders"
    assert build(written.replace("{path}", str(path))).path == str(path)


def test_a_stream_over_a_table_in_an_object_store_is_refused_at_its_line() -> None:
    with pytest.raises(StorageUnsupportedError) as caught:
        build("gs://bucket/orders")
    assert caught.value.location == HERE


def build(path: str) -> DeltaSource:
    unused = cast(Any, None)
    return DeltaKind().build(
        StreamRead(
            format="delta",
            index=0,
            folder=0,
            read=0,
            location=HERE,
            options={"path": path},
            adaptive=False,
            table=None,
            settings=unused,
        )
    )
