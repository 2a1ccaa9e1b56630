"""The log entries of an erasure are deleted as soon as no reader needs them; without Spark."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from stores import At, on_disk

from decoded import files_with
from headrace.maintain.condition import TableCondition, delete_stored
from headrace.maintain.erasures import ErasedRest, finish_erasure, load_erasure, record_erasure
from headrace.maintain.holders import DatasetTable, Pin, add_pin, find_holders, remove_pins
from headrace.model.maintenance import TablePolicy
from headrace.model.names import TableName
from headrace.state.checkpoint import QUERY, QueryRecord
from headrace.storage.location import Location
from headrace.storage.table_log import (
    CLOSES,
    commit_file,
    erased_since,
    find_missing,
    newest_version,
    versions,
)
from read_table import ORDERS, ReadTable

TARGET = DatasetTable(ORDERS)
POLICY = TablePolicy(retention_s=0, allow_short_retention=True)


@pytest.fixture
def desk(at: At, tmp_path: Path) -> Iterator[ReadTable]:
    """A table with an erasure of the rows of day c in version 3, which is closed by version 4."""
    desk = ReadTable(at(tmp_path))
    DeltaTable(on_disk(desk.path)).delete("day = 'c'")
    record_erasure(desk.storage, TARGET, desk.table_id)
    desk.age(8)
    record = desk.storage.care(ORDERS)
    found = record.read_json()
    found["erased"]["at"] = (datetime.now(UTC) - timedelta(days=8)).isoformat()
    record.replace_json(found)
    close(desk.path)
    return desk


def close(table: Location) -> None:
    newest = newest_version(table)
    claim = json.dumps({CLOSES: [erased_since(table, newest), newest + 1]})
    commit(table, operation="STREAMING UPDATE", userMetadata=claim)
    DeltaTable(on_disk(table)).create_checkpoint()


def commit(table: Location, **given: str) -> None:
    info = {"timestamp": int(time.time() * 1000), **given}
    text = json.dumps({"commitInfo": info}, separators=(",", ":"))
    assert commit_file(table, newest_version(table) + 1).create(text)


def read_until(desk: ReadTable, version: int, *, batches: int = 2) -> None:
    """A flow that has read all commits before a version, and skips erasures."""
    desk.add_reader(version, index=-1)
    checkpoint = desk.storage.checkpoint(TableName("default", "large"), "large", 1)
    for batch in range(1, batches):
        for folder in ("offsets", "commits"):
            (checkpoint / folder / str(batch)).replace((checkpoint / folder / "0").read_text())
    (checkpoint / QUERY).replace_json(QueryRecord(fingerprint="f", skips_erasures=(0,)).to_json())


def finish(desk: ReadTable) -> ErasedRest | None:
    """A vacuum, and the cleanup of the log."""

    def examine() -> TableCondition:
        return desk.examine(POLICY)

    delete_stored(desk.path, examine().vacuum.expired)
    return finish_erasure(desk.storage, TARGET, examine, close)[0]


def test_a_reader_that_has_read_all_rows_holds_nothing_of_an_erasure(desk: ReadTable) -> None:
    read_until(desk, 3)
    assert files_with(on_disk(desk.path), "day=c")
    assert finish(desk) is None
    assert files_with(on_disk(desk.path), "day=c") == []
    assert versions(desk.path) == (4,)
    assert DeltaTable(on_disk(desk.path)).to_pyarrow_table()["id"].to_pylist() == [2, 1, 0]
    # The flow continues with the commit that closes the erasure, and with the rows behind it.
    desk.append(5)
    assert find_missing(desk.path, 3, 5) is None
    (holder,) = find_holders(desk.storage, ORDERS, desk.table_id)
    assert holder.version == 5
    # A flow that has not read version 2 would lose rows.
    assert find_missing(desk.path, 2, 5) == 2


def test_a_reader_that_has_not_read_all_rows_keeps_them(desk: ReadTable) -> None:
    read_until(desk, 2)
    rest = finish(desk)
    assert rest is not None and rest.files == 3 and rest.commits == 4
    assert any("kept for flow large:   headrace run" in line for line in rest.lines())
    read_until(desk, 3)
    assert finish(desk) is None


def test_a_flow_with_a_single_batch_has_to_run_once(desk: ReadTable) -> None:
    read_until(desk, 3, batches=1)
    rest = finish(desk)
    # The files are gone. Spark plans the first batch again from the log.
    assert rest is not None and (rest.files, rest.commits) == (0, 4)
    assert any("kept for flow large:   headrace run" in line for line in rest.lines())
    read_until(desk, 5)
    assert finish(desk) is None


def test_an_empty_file_that_no_commit_names_is_nothing_of_an_erasure(desk: ReadTable) -> None:
    read_until(desk, 3)
    file = on_disk(desk.path) / "part-00000-empty.snappy.parquet"
    for rows, left in ((["c"], 1), ([], 0)):
        pq.write_table(pa.table({"day": pa.array(rows, pa.string())}), file)
        young = (datetime.now(UTC) - timedelta(hours=1)).timestamp()
        os.utime(file, (young, young))
        record = desk.storage.care(ORDERS)
        found = record.read_json()
        found["erased"]["at"] = (datetime.now(UTC) - timedelta(minutes=30)).isoformat()
        record.replace_json(found)
        rest = finish(desk)
        assert (0 if rest is None else rest.files) == left


def test_a_pin_keeps_erased_rows_until_it_ends(desk: ReadTable) -> None:
    add_pin(desk.storage, Pin(table=ORDERS, version=1, until=datetime.now(UTC) + timedelta(days=2)))
    rest = finish(desk)
    assert rest is not None and rest.files == 3
    assert any("headrace pin orders --version 1 --remove" in line for line in rest.lines())
    remove_pins(desk.storage, ORDERS, 1)
    assert finish(desk) is None


def test_a_claim_counts_only_in_the_version_that_it_names(desk: ReadTable) -> None:
    text = commit_file(desk.path, 4).read_text()
    assert commit_file(desk.path, 5).create(text)
    commit_file(desk.path, 3).delete()
    assert find_missing(desk.path, 3, 5) is None
    commit_file(desk.path, 4).delete()
    assert find_missing(desk.path, 3, 5) == 3


def test_an_erasure_that_was_interrupted_is_never_due(desk: ReadTable) -> None:
    record_erasure(desk.storage, TARGET, desk.table_id, unfinished=True)
    desk.age(8)
    rest, deleted = finish_erasure(desk.storage, TARGET, desk.examine, close)
    assert rest is not None and not deleted
    assert list(rest.lines()) == [
        "orders  the erasure was interrupted. Repeat it:   headrace erase orders --where .."
    ]


def test_the_first_refresh_takes_the_rows_from_a_view(desk: ReadTable) -> None:
    record_erasure(desk.storage, TARGET, desk.table_id, awaits_refresh=True)
    waiting = load_erasure(desk.storage, TARGET, desk.table_id)
    assert waiting is not None and waiting.awaits_refresh
    for _ in range(3):
        commit(desk.path, operation="WRITE", userMetadata=json.dumps({"headrace": 1, "view": "orders"}))
    found = load_erasure(desk.storage, TARGET, desk.table_id)
    assert found is not None and (found.version, found.awaits_refresh) == (5, False)
