"""A vacuum deletes no file that a reader, a pin or the ledger still needs; without Spark."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from stores import At, on_disk

from headrace.errors import PinInvalidError
from headrace.maintain.condition import choose_partitions, delete_log, delete_stored
from headrace.maintain.holders import UNKNOWN, Pin, add_pin, find_holders, lag_seconds, load_pins, remove_pins
from headrace.model.maintenance import TablePolicy
from headrace.model.names import TableName
from headrace.storage.table_snapshot import load_snapshot
from read_table import ORDERS, ReadTable

NOW = datetime.now(UTC)


@pytest.fixture
def desk(at: At, tmp_path: Path) -> ReadTable:
    return ReadTable(at(tmp_path))


def test_each_partition_keeps_one_file_of_a_compaction(desk: ReadTable) -> None:
    found = desk.examine(TablePolicy(small_files=4))
    assert (found.files, found.foldable, found.stored_files, len(found.vacuum.expired)) == (6, 4, 6, 0)
    assert found.size_bytes == found.stored_bytes > 0
    assert found.needs_compaction and not desk.examine().needs_compaction
    assert desk.examine(TablePolicy(commits=3)).needs_compaction
    assert not desk.examine(TablePolicy(target_file_size=4)).foldable
    # Both partitions need it, so no condition is needed.
    assert choose_partitions(found.snapshot, found.policy) == ()
    write_deltalake(on_disk(desk.path), pa.table({"id": [1], "day": ["d"]}), mode="append")
    chosen = choose_partitions(load_snapshot(desk.path), TablePolicy())
    assert sorted(str(one["day"]) for one in chosen) == ["a b", "c"]


def test_files_that_were_removed_within_the_retention_are_kept(desk: ReadTable) -> None:
    desk.age(8)
    desk.compact()
    found = desk.examine()
    assert (found.files, found.stored_files, found.vacuum.expired) == (2, 8, ())
    desk.age(8)
    found = desk.examine()
    assert len(found.vacuum.expired) == 6 and found.vacuum.readable_from == 3
    # Delta's own vacuum would delete the same files.
    assert len(DeltaTable(on_disk(desk.path)).vacuum(retention_hours=168, dry_run=True, full=True)) == 6
    delete_stored(desk.path, found.vacuum.expired)
    assert desk.examine().stored_files == 2
    assert DeltaTable(on_disk(desk.path)).to_pyarrow_table().num_rows == 6


@pytest.mark.parametrize("content", [b"\x00\xff", b"zeros\n", b'{"remove":{"pa'])
def test_a_damaged_commit_that_a_checkpoint_replaces_stops_no_maintenance(
    desk: ReadTable, content: bytes
) -> None:
    desk.compact()
    DeltaTable(on_disk(desk.path)).create_checkpoint()
    desk.age(40)
    for number in (5, 6):
        desk.append(number)
    commit = on_disk(desk.path) / "_delta_log" / f"{3:020d}.json"
    commit.write_bytes(content)
    found = desk.examine(TablePolicy(small_files=2))
    assert found.files == 6 and found.needs_compaction
    # The files that the commit has removed are not known: none is deleted within the retention.
    assert found.vacuum.expired == () and found.log.first == 3
    then = time.time() - 40 * 86400
    os.utime(commit, (then, then))
    found = desk.examine(TablePolicy(small_files=2))
    assert len(found.vacuum.expired) == 6


def test_a_reader_keeps_the_files_that_it_has_not_read(desk: ReadTable) -> None:
    desk.compact()
    desk.age(8)
    # It has read all rows: those that a compaction has written again are nothing to it.
    desk.add_reader(3, index=-100)
    assert desk.expired() == 6
    # It may not have read all files of the last version.
    desk.add_reader(2)
    found = desk.examine().vacuum
    assert (len(found.expired), len(found.held)) == (4, 2) and "flow large" in str(found.holders[0])
    # It reads the files of a snapshot.
    desk.add_reader(1, is_snapshot=True)
    assert desk.expired() == 0
    # It has read nothing, or nobody knows what.
    desk.add_reader(None)
    assert desk.expired() == 0
    desk.add_reader(2)
    (desk.storage.checkpoint(TableName("default", "large"), "large", 1) / "offsets" / "0").replace("broken")
    assert desk.expired() == 0
    assert find_holders(desk.storage, ORDERS, desk.table_id)[0].version == UNKNOWN


def test_a_reader_of_an_idle_table_does_not_lag(desk: ReadTable) -> None:
    desk.add_reader(2)
    desk.compact()
    desk.age(40)
    (holder,) = find_holders(desk.storage, ORDERS, desk.table_id)
    assert lag_seconds(holder, desk.path, load_snapshot(desk.path).commits, NOW) is None
    desk.append(5)
    desk.age(40)
    lag = lag_seconds(holder, desk.path, load_snapshot(desk.path).commits, NOW)
    assert lag is not None and lag > 39 * 86400


def test_a_pinned_version_keeps_its_files_until_the_pin_ends(desk: ReadTable) -> None:
    desk.compact()
    desk.age(8)
    add_pin(desk.storage, Pin(table=ORDERS, version=1, until=NOW + timedelta(days=2)))
    found = desk.examine().vacuum
    assert (len(found.expired), len(found.held)) == (0, 6)
    assert "pin of version 1" in str(found.holders[0])
    assert DeltaTable(on_disk(desk.path), version=1).to_pyarrow_table().num_rows == 4
    assert not load_pins(desk.storage, ORDERS, NOW + timedelta(days=3))
    assert [one.version for one in remove_pins(desk.storage, ORDERS, 1)] == [1]
    assert desk.expired() == 6


def test_a_damaged_file_of_pins_names_what_must_be_pinned_again(desk: ReadTable) -> None:
    file = desk.storage.pins(ORDERS)
    file.replace('[{"dataset": "default.orders", "version": 3, "unt')
    with pytest.raises(PinInvalidError) as caught:
        load_pins(desk.storage, ORDERS)
    assert [one.rpartition(":   ")[2] for one in caught.value.remedies] == [
        file.remove_command,
        "headrace pin orders --version 3 --for 30d",
    ]
    desk.storage.pins(ORDERS).replace("{")
    with pytest.raises(PinInvalidError) as caught:
        load_pins(desk.storage, ORDERS)
    assert caught.value.remedies[-1].endswith(":   headrace pin --help")


def test_the_log_is_cleaned_up_to_what_readers_and_ledger_need(desk: ReadTable) -> None:
    for number in range(3, 9):
        desk.append(number)
        if number == 5:
            DeltaTable(on_disk(desk.path)).create_checkpoint()
    DeltaTable(on_disk(desk.path)).create_checkpoint()
    desk.age(40)
    newest = load_snapshot(desk.path).version
    assert desk.examine().log.first == newest == 8
    assert load_snapshot(desk.path).checkpoints == (5, 8)
    # A reader in the middle needs the checkpoint before it.
    desk.add_reader(7)
    found = desk.examine().log
    assert (found.first, found.commits) == (5, 5) and str(found.held_by) == "flow large"
    desk.add_reader(3)
    assert desk.examine().log.files == ()
    # The ledger of its own flow has no commit yet.
    desk.add_reader(8, index=99)
    (desk.storage.checkpoint(ORDERS, "orders", 1) / "metadata").create("{}")
    assert desk.examine().log.files == ()
    desk.storage.flow_checkpoints(ORDERS, "orders").delete_folder()
    desk.add_reader(7)
    delete_log(desk.path, desk.examine().log)
    left = load_snapshot(desk.path)
    assert (left.commits[0], left.version, len(left.files)) == (5, 8, 18)
    assert DeltaTable(on_disk(desk.path), version=6).to_pyarrow_table().num_rows == 14
    assert desk.examine(TablePolicy(cleans_log=False)).log.files == ()


def test_a_file_that_no_commit_names_yet_is_kept_for_a_day(desk: ReadTable) -> None:
    desk.compact()
    policy = TablePolicy(retention_s=0, allow_short_retention=True)
    named = len(desk.examine(policy).vacuum.expired)
    assert named == 6
    # A compaction that has not committed yet has written it.
    written = on_disk(desk.path) / "day=c" / "part-new.parquet"
    written.write_bytes(b"PAR1")
    assert len(desk.examine(policy).vacuum.expired) == named
    then = time.time() - 2 * 86400
    os.utime(written, (then, then))
    assert len(desk.examine(policy).vacuum.expired) == named + 1
