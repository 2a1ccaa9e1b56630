"""Reading a table as it was: the versions that exist, and the errors for those that do not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from stores import At

from headrace.errors import ReadVersionGoneError, ReadVersionUnknownError
from headrace.observe.read import Selection, read_rows
from headrace.storage.location import Location
from headrace.storage.table_log import load_commit, readable_versions


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Versions 0 to 2 hold one number each, their own."""
    path = tmp_path / "my table"
    for number in range(3):
        write_deltalake(path, pa.table({"id": [number]}), mode="overwrite")
    return path


def ids(path: Location, **selection: object) -> list[int]:
    return [id for (id,) in read_rows(path, Selection(**selection)).rows]  # type: ignore[arg-type]


def committed(path: Location, version: int) -> datetime:
    return datetime.fromtimestamp(load_commit(path, version).timestamp_ms / 1000, UTC)


def test_a_version_by_its_number(at: At, table: Path) -> None:
    assert [ids(at(table), version=number) for number in range(3)] == [[0], [1], [2]]
    assert read_rows(at(table), Selection(version=1)).version == 1


def test_a_version_by_the_moment_at_which_it_was_the_newest(at: At, table: Path) -> None:
    tick = timedelta(milliseconds=1)
    assert ids(at(table), timestamp=committed(at(table), 1)) == [1]
    assert ids(at(table), timestamp=committed(at(table), 2) - tick) == [1]
    assert ids(at(table), timestamp=datetime.now(UTC)) == [2]
    with pytest.raises(ReadVersionUnknownError, match="no version as old as") as raised:
        ids(at(table), timestamp=committed(at(table), 0) - tick)
    assert "the first was committed at" in raised.value.facts[0]
    with pytest.raises(ReadVersionUnknownError, match="future"):
        ids(at(table), timestamp=datetime.now(UTC) + timedelta(days=1))


def test_a_version_that_does_not_exist_names_those_that_do(at: At, table: Path) -> None:
    with pytest.raises(ReadVersionUnknownError) as raised:
        ids(at(table), version=7)
    assert raised.value.params["versions"] == [0, 2]
    assert raised.value.facts == ("its log has versions 0 to 2",)


def test_a_log_that_was_cleaned_up_begins_at_its_checkpoint(at: At, table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    write_deltalake(table, pa.table({"id": [3]}), mode="overwrite")
    for number in (0, 1):
        (table / "_delta_log" / f"{number:020d}.json").unlink()
    assert list(readable_versions(at(table))) == [2, 3]
    assert ids(at(table), version=2) == [2]
    with pytest.raises(ReadVersionUnknownError):
        ids(at(table), version=1)


def test_a_version_whose_files_were_vacuumed_names_those_that_are_whole(at: At, table: Path) -> None:
    write_deltalake(table, pa.table({"id": [9]}), mode="append")
    DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    newest = DeltaTable(table).version()
    with pytest.raises(ReadVersionGoneError) as raised:
        ids(at(table), version=1)
    assert raised.value.params["whole"] == [2, newest]
    assert sorted(ids(at(table))) == [2, 9]
    assert ids(at(table), version=2) == [2]
