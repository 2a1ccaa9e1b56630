"""A table's own log: which commit is which, and what streams may have read of it."""

from __future__ import annotations

import io
import itertools
import json
import shutil
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stores import At, memory_location

from headrace.model.names import TableName
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.row_counts import count_moved_rows, count_rows_on_disk
from headrace.storage.table_log import (
    checksum_matches_log,
    commit_file,
    commit_mark,
    describe_rollback,
    find_commit,
    follow_commits,
    is_followed,
    is_table,
    iter_commits,
    last_checkpoint,
    load_commit,
    mark_newest,
    mark_version,
    newest_commits,
    property_since,
    read_actions,
    readable_versions,
    undone_versions,
    versions,
)
from headrace.storage.table_snapshot import SnapshotUnreadableError, is_part, load_held_batch


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A real table of four commits."""
    path = tmp_path / "table"
    for number in range(4):
        deltalake.write_deltalake(path, pa.table({"id": [number]}), mode="append")
    return path


def test_commits_are_followed_to_the_end_of_the_log(at: At, table: Path) -> None:
    assert [commit.version for commit in follow_commits(at(table), 2)] == [2, 3]
    assert [commit.version for commit in follow_commits(at(table), 4)] == []
    (table / "_delta_log" / f"{1:020d}.json").unlink()
    assert [commit.version for commit in follow_commits(at(table), 0, 2)] == [0, 2]


def test_a_version_is_marked_by_its_commit(at: At, table: Path) -> None:
    assert mark_version(at(table), 2) == {"version": 2, "commit": commit_mark(at(table), 2)}
    assert mark_version(at(table), -1) is None
    assert mark_newest(at(table)) == mark_version(at(table), 3)
    assert mark_newest(at(table.parent)) is None


def test_every_commit_has_a_mark_of_its_own(at: At, table: Path) -> None:
    marks = [commit_mark(at(table), version) for version in range(4)]
    assert len(set(marks)) == 4
    assert commit_mark(at(table), 4) is None


def test_commits_bear_out_only_what_they_say_themselves(at: At, tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()

    def commit(version: int, *lines: str) -> None:
        (log / f"{version:020d}.json").write_text("".join(f"{line}\n" for line in lines))

    def txn(name: str, number: int) -> str:
        return f'{{"txn":{{"appId":"{name}","version":{number}}}}}'

    commit(0, '{"commitInfo":{}}')
    commit(1, txn("a", 0))
    commit(2, txn("a", 1), txn("b", 7))
    commit(3, '{"commitInfo":{}}')
    assert checksum_matches_log(at(tmp_path), 3, {})
    assert checksum_matches_log(at(tmp_path), 3, {"a": 1, "b": 7})
    assert checksum_matches_log(at(tmp_path), 3, {"a": 1, "never": None})
    assert checksum_matches_log(at(tmp_path), 1, {"a": 0, "b": None})
    assert not checksum_matches_log(at(tmp_path), 3, {"a": 2})
    assert not checksum_matches_log(at(tmp_path), 3, {"a": None})
    assert not checksum_matches_log(at(tmp_path), 3, {"never": 0})
    commit(1, '{"txn":{"appId"')
    assert checksum_matches_log(at(tmp_path), 3, {"a": 1}), "what lies behind the answer is not read"
    assert not checksum_matches_log(at(tmp_path), 3, {"never": None})
    for version in (0, 1):
        (log / f"{version:020d}.json").unlink()
    assert not checksum_matches_log(at(tmp_path), 3, {"never": None}), (
        "a log that was cleaned does not say everything"
    )


def test_a_property_is_known_from_the_commit_that_set_it_last(at: At, table: Path) -> None:
    name = "delta.appendOnly"

    def turn(value: str) -> None:
        deltalake.DeltaTable(table).alter.set_table_properties({name: value})

    assert property_since(at(table), name) == 4, "the version that is to come"
    turn("true")
    deltalake.write_deltalake(table, pa.table({"id": [5]}), mode="append")
    deltalake.DeltaTable(table).alter.set_table_description("with another commit of metadata")
    assert property_since(at(table), name) == 4
    turn("false")
    assert property_since(at(table), name) == 8
    turn("true")
    assert property_since(at(table), name) == 8
    for version in (0, 4, 6, 7, 8):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    assert property_since(at(table), name) is None


def test_a_table_that_goes_on_from_an_older_copy_has_other_commits(
    at: At, table: Path, tmp_path: Path
) -> None:
    seen = mark_version(at(table), 3)
    assert seen is not None
    assert describe_rollback(at(table), seen) is None
    copy = tmp_path / "copy"
    shutil.copytree(table, copy)
    for version in (2, 3):
        (copy / "_delta_log" / f"{version:020d}.json").unlink()
    assert "ends at version 1" in str(describe_rollback(at(copy), seen))
    for number in itertools.repeat(9, 2):
        deltalake.write_deltalake(copy, pa.table({"id": [number]}), mode="append")
    assert "another commit" in str(describe_rollback(at(copy), seen))


def test_what_the_log_has_forgotten_contradicts_nothing(at: At, table: Path) -> None:
    seen = mark_version(at(table), 1)
    assert seen is not None
    (table / "_delta_log" / f"{1:020d}.json").unlink()
    assert describe_rollback(at(table), seen) is None


def test_an_erasure_is_told_from_other_changes(at: At, table: Path) -> None:
    deltalake.DeltaTable(table).delete("id = 1")
    deltalake.DeltaTable(table).update({"id": "7"}, predicate="id = 2")
    appended, deleted, updated = (load_commit(at(table), version) for version in (3, 4, 5))
    assert (appended.changes_data, appended.removes_data) == (True, False)
    assert (deleted.removes_data, deleted.is_erasure) == (True, True)
    assert (updated.removes_data, updated.is_erasure) == (True, False)


def test_the_log_of_a_table_in_an_object_store_is_read_alike(at: At, table: Path) -> None:
    stored = memory_location() / "tables" / "default" / "orders"
    for file in (table / "_delta_log").iterdir():
        (stored / "_delta_log" / file.name).replace(file.read_text())
    assert versions(stored) == versions(at(table)) == (0, 1, 2, 3)
    assert list(iter_commits(stored)) == list(iter_commits(at(table)))
    assert mark_version(stored, 3) == mark_version(at(table), 3)
    assert Storage(stored.parent.parent.parent).find_tables() == (TableName("default", "orders"),)
    assert count_moved_rows(stored, 3) == (1, 0)


def test_the_newest_commits_come_first(at: At, table: Path) -> None:
    assert [commit.version for commit in newest_commits(at(table))] == [3, 2, 1, 0]
    assert [commit.version for commit in newest_commits(at(table), 2)] == [3, 2]
    assert load_commit(at(table), 3).at.timestamp() * 1000 == load_commit(at(table), 3).timestamp_ms


def test_the_actions_of_a_commit_are_read_by_name(at: At, table: Path) -> None:
    assert [name for name, _ in read_actions(commit_file(at(table), 0), "add", "metaData")] == [
        "metaData",
        "add",
    ]


def test_versions_can_be_read_from_a_checkpoint_on(at: At, table: Path, tmp_path: Path) -> None:
    assert (list(readable_versions(at(table))), last_checkpoint(at(table))) == ([0, 1, 2, 3], -1)
    deltalake.DeltaTable(table, version=2).create_checkpoint()
    for version in range(2):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    assert (list(readable_versions(at(table))), last_checkpoint(at(table))) == ([2, 3], 2)
    assert is_table(at(table))
    assert not is_table(at(tmp_path))


def test_the_rows_of_a_file_are_counted_by_its_path_in_spark(tmp_path: Path) -> None:
    file = tmp_path / "a day=1%2 ü" / "part.parquet"
    file.parent.mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3]}), file)
    assert count_rows_on_disk(file.as_uri().replace("file://", "file:")) == 3
    assert count_rows_on_disk(f"file:{tmp_path}/missing.parquet") is None
    assert count_rows_on_disk("wasb://lake/part.parquet") is None


def _commit(log: Location, version: int, name: str, number: int) -> None:
    info = {"commitInfo": {"userMetadata": json.dumps({"headrace": 1})}}
    lines = [info, {"txn": {"appId": name, "version": number}}]
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    (log / f"{version:020d}.json").replace(text)


def _checkpoint(log: Location, version: int, form: str = "", **transactions: int) -> None:
    kind = pa.struct([("appId", pa.string()), ("version", pa.int64())])
    rows = [{"appId": name, "version": number} for name, number in transactions.items()]
    data = io.BytesIO()
    pq.write_table(pa.table({"txn": pa.array([None, *rows], kind)}), data)
    log.files.replace(str(log / f"{version:020d}.checkpoint.{form}parquet"), data.getvalue())
    (log / "_last_checkpoint").replace_json({"version": version, "size": len(rows)})


@pytest.mark.parametrize("kind", ["disk", "objects"])
def test_a_commit_below_a_gap_is_not_part_of_the_table(at: At, tmp_path: Path, kind: str) -> None:
    table = at(tmp_path / "table") if kind == "disk" else memory_location()
    log = table / "_delta_log"
    log.make_folder()
    for version in range(4):
        _commit(log, version, "ours", version)
    assert is_followed(table, 2) and load_held_batch(table, "ours") == 3
    # Another process writes up to version 9, a checkpoint of version 8, and cleans what is before it.
    _checkpoint(log, 8, ours=5, theirs=2)
    for version in range(8, 10):
        _commit(log, version, "theirs", version - 6)
    for version in range(4):
        (log / f"{version:020d}.json").delete()
    _commit(log, 4, "ours", 6)
    assert not is_followed(table, 3)
    assert versions(table) == (8, 9)
    assert find_commit(table, -1, lambda one: one.transactions == {"ours": 6}) is None
    assert find_commit(table, 6, lambda one: one.transactions == {"theirs": 3}) == load_commit(table, 9)
    assert (load_held_batch(table, "ours"), load_held_batch(table, "theirs")) == (5, 3)
    assert load_held_batch(table, "unknown") == -1
    (log / f"{9:020d}.json").delete()
    _commit(log, 10, "theirs", 4)
    with pytest.raises(SnapshotUnreadableError):
        load_held_batch(table, "ours")


@pytest.mark.parametrize("form", ["", "80a083e8-7026-4e79-81be-64bd76c43a11."], ids=["classic", "V2"])
def test_a_commit_that_a_checkpoint_covers_is_not_part_of_the_table(location: Location, form: str) -> None:
    """The log was cleaned up to the version that a writer then wrote again: no gap shows it."""
    table = location / "table"
    log = table / "_delta_log"
    log.make_folder()
    _checkpoint(log, 5, form, ours=4)
    for version in (5, 6):
        _commit(log, version, "ours", version)
    assert not is_part(table, 4, 5)
    assert is_part(table, 5, 6) and load_held_batch(table, "ours") == 6


def test_the_first_commit_of_a_table_is_part_of_it(at: At, table: Path) -> None:
    assert is_followed(at(table), -1)
    deltalake.DeltaTable(table).create_checkpoint()
    assert [is_followed(at(table), version) for version in (-1, 2, 3)] == [False, False, True]


def test_a_restore_names_the_commits_that_it_has_undone(at: At, tmp_path: Path) -> None:
    log = at(tmp_path) / "_delta_log"
    log.make_folder()
    add = '{"add":{"path":"a","dataChange":true}}'
    for version in range(4):
        said = {"headrace": 1, "checkpoint": "ours", "batch": version}
        info = {"commitInfo": {"timestamp": 1000 * version, "userMetadata": json.dumps(said)}}
        txn = {"txn": {"appId": "ours", "version": version}}
        lines = [*(json.dumps(one, separators=(",", ":")) for one in (info, txn)), *[add][: version % 2]]
        (log / f"{version:020d}.json").replace("\n".join(lines))
    restore = {
        "commitInfo": {"operation": "RESTORE", "operationParameters": {"version": 0, "timestamp": None}}
    }
    (log / f"{4:020d}.json").replace(json.dumps(restore, separators=(",", ":")))
    commit = load_commit(at(tmp_path), 4)
    assert commit.restores == 0
    assert undone_versions(at(tmp_path), commit) == (1, 3), "batch 2 has no rows"
    assert undone_versions(at(tmp_path), load_commit(at(tmp_path), 3)) == ()
    # By its time: version 1 was the newest one.
    restore["commitInfo"]["operationParameters"] = {"version": None, "timestamp": "1970-01-01 00:00:01.5"}
    (log / f"{4:020d}.json").replace(json.dumps(restore, separators=(",", ":")))
    assert undone_versions(at(tmp_path), load_commit(at(tmp_path), 4)) == (3,)
