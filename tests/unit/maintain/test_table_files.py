"""What compaction and a vacuum would do to a table, read without Spark."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.maintain.table_files import measure_files
from headrace.sinks.delta.compaction import MANY_FILES, retention_of
from headrace.storage.locate import locate


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with three files in each of two partitions."""
    path = tmp_path / "orders"
    for number in range(3):
        rows = pa.table({"id": [number, number + 10], "day": ["a b", "c"]})
        write_deltalake(path, rows, mode="append", partition_by=["day"])
    return path


def age(table: Path, days: float) -> None:
    """Make all data files and commits of a table older."""
    then = time.time() - days * 86400
    for file in table.rglob("*"):
        os.utime(file, (then, then))
    for file in (table / "_delta_log").glob("*.json"):
        text = file.read_text()
        for key in ("timestamp", "deletionTimestamp"):
            parts = text.split(f'"{key}":')
            text = f'"{key}":'.join(
                [parts[0], *(f"{int(then * 1000)}{p.lstrip('0123456789')}" for p in parts[1:])]
            )
        file.write_text(text)


def test_each_partition_keeps_one_file_of_a_compaction(table: Path) -> None:
    found = measure_files(locate(str(table)))
    assert (found.files, found.foldable, found.stored_files, found.expired) == (6, 4, 6, 0)
    assert found.size_bytes == found.stored_bytes > 0
    assert not found.needs_compaction
    assert MANY_FILES > 4


def test_files_that_were_removed_within_the_retention_are_kept(table: Path) -> None:
    age(table, 8)
    held = DeltaTable(table)
    held.optimize.compact()
    found = measure_files(locate(str(table)))
    # They are old, but were removed now.
    assert (found.files, found.stored_files, found.expired) == (2, 8, 0)
    age(table, 8)
    found = measure_files(locate(str(table)))
    assert (found.expired, found.needs_vacuum) == (6, True)
    # Spark would delete them, too.
    assert len(DeltaTable(table).vacuum(retention_hours=168, dry_run=True, full=True)) == 6


@pytest.mark.parametrize(
    ("text", "days"), [("interval 2 weeks", 14), ("INTERVAL 30 DAYS", 30), ("36 hours", 1.5), ("odd", 7)]
)
def test_the_retention_is_the_property_of_the_table(text: str, days: float) -> None:
    found = retention_of({"delta.deletedFileRetentionDuration": text})
    assert found.total_seconds() == days * 86400
