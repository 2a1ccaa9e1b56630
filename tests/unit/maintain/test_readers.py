"""The streams that hold a vacuum back."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.maintain.readers import find_lagging, find_readers
from headrace.model.names import TableName
from headrace.sources.delta.position import DeltaPosition
from headrace.state.identity import CheckpointIdentity, SourceIdentity, write_checkpoint
from headrace.state.offset_log import seed_files
from headrace.storage.layout import Storage

ORDERS = TableName("default", "orders")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = Storage.at(tmp_path)
    for number in range(3):
        write_deltalake(str(storage.table(ORDERS)), pa.table({"id": [number]}), mode="append")
    return storage


def add_reader(storage: Storage, version: int | None, generation: int = 1) -> None:
    """A flow that has read the table up to a version; ``None`` for one that has read nothing."""
    target = TableName("default", "large")
    source = SourceIdentity(index=0, kind="delta", identity={"table_id": "t1", "path": "x"})
    identity = CheckpointIdentity.create(
        pipeline="shop",
        flow="large",
        dataset=str(target),
        generation=generation,
        table_id="t2",
        sources=(source,),
    )
    at = {} if version is None else {0: DeltaPosition(table_id="t1", version=version, index=-1, format=1)}
    seed = seed_files(at, (source,), "2") if version is not None else {}
    write_checkpoint(storage.checkpoint(target, "large", generation), identity, seed)


def lagging(storage: Storage, kept_since: float) -> int | None:
    found = find_lagging(find_readers(storage, "t1"), storage.table(ORDERS), kept_since * 1000)
    return None if found is None else found.version


def test_a_reader_behind_the_retention_needs_files_that_a_vacuum_would_delete(storage: Storage) -> None:
    add_reader(storage, 2)
    assert lagging(storage, time.time() + 60) is None
    add_reader(storage, 1, generation=2)
    # Only the newest checkpoint of a flow counts.
    assert lagging(storage, time.time() + 60) == 1
    # All versions are within the retention.
    assert lagging(storage, time.time() - 3600) is None
    assert not list(find_readers(storage, "t9"))


@pytest.mark.parametrize("damaged", [False, True])
def test_a_reader_whose_position_is_not_known_needs_all_files(storage: Storage, damaged: bool) -> None:
    add_reader(storage, 2 if damaged else None)
    if damaged:
        folder = storage.checkpoint(TableName("default", "large"), "large", 1)
        (folder / "offsets" / "0").replace(json.dumps("broken"))
    assert lagging(storage, time.time() + 60) == -1
