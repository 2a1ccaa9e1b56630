"""Reading a table as it was: the versions that exist, and the errors for those that do not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.errors import ReadVersionGoneError, ReadVersionUnknownError
from headrace.observe.read import Selection, read_rows
from headrace.observe.versions import readable_versions
from headrace.storage.locate import locate
from headrace.storage.table_log import load_commit


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Versions 0 to 2 hold one number each, their own."""
    path = tmp_path / "my table"
    for number in range(3):
        write_deltalake(path, pa.table({"id": [number]}), mode="overwrite")
    return path


def ids(path: Path, **selection: object) -> list[int]:
    return [id for (id,) in read_rows(locate(path), Selection(**selection)).rows]  # type: ignore[arg-type]


def committed(path: Path, version: int) -> datetime:
    return datetime.fromtimestamp(load_commit(locate(path), version).timestamp_ms / 1000, UTC)


def test_a_version_by_its_number(table: Path) -> None:
    assert [ids(table, version=number) for number in range(3)] == [[0], [1], [2]]
    assert read_rows(locate(table), Selection(version=1)).version == 1


def test_a_version_by_the_moment_at_which_it_was_the_newest(table: Path) -> None:
    tick = timedelta(milliseconds=1)
    assert ids(table, timestamp=committed(table, 1)) == [1]
    assert ids(table, timestamp=committed(table, 2) - tick) == [1]
    assert ids(table, timestamp=datetime.now(UTC)) == [2]
    with pytest.raises(ReadVersionUnknownError, match="no version as old as") as raised:
        ids(table, timestamp=committed(table, 0) - tick)
    assert "the first was committed at" in raised.value.facts[0]
    with pytest.raises(ReadVersionUnknownError, match="future"):
        ids(table, timestamp=datetime.now(UTC) + timedelta(days=1))


def test_a_version_that_does_not_exist_names_those_that_do(table: Path) -> None:
    with pytest.raises(ReadVersionUnknownError) as raised:
        ids(table, version=7)
    assert raised.value.params["versions"] == [0, 2]
    assert raised.value.facts == ("its log has versions 0 to 2",)


def test_a_log_that_was_cleaned_up_begins_at_its_checkpoint(table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    write_deltalake(table, pa.table({"id": [3]}), mode="overwrite")
    for number in (0, 1):
        (table / "_delta_log" / f"{number:020d}.json").unlink()
    assert list(readable_versions(locate(table))) == [2, 3]
    assert ids(table, version=2) == [2]
    with pytest.raises(ReadVersionUnknownError):
        ids(table, version=1)


def test_a_version_whose_files_were_vacuumed_names_those_that_are_whole(table: Path) -> None:
    write_deltalake(table, pa.table({"id": [9]}), mode="append")
    DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    newest = DeltaTable(table).version()
    with pytest.raises(ReadVersionGoneError) as raised:
        ids(table, version=1)
    assert raised.value.params["whole"] == [2, newest]
    assert sorted(ids(table)) == [2, 9]
    assert ids(table, version=2) == [2]
