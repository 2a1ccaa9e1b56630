"""The markers of snapshots: in the order of their files' times, and read back as they were written."""

from __future__ import annotations

import os
import time
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from headrace.model.snapshots import SnapshotMarker, Version, version_type
from headrace.state.snapshot_log import SnapshotLog
from headrace.storage.locate import locate


def marker(version: Version, after: Version | None = None) -> SnapshotMarker:
    return SnapshotMarker(version=version, after=after, location={"path": "x"}, schema={"fields": []})


@pytest.mark.parametrize(
    ("version", "after"),
    [
        (2, 1),
        (2.5, None),
        ("b", "a"),
        (date(2026, 1, 2), date(2026, 1, 1)),
        (datetime(2026, 1, 2, 3, 4, 5, 6), None),
        (datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_marker_is_read_back_as_it_was_written(
    tmp_path: Path, version: Version, after: Version | None
) -> None:
    log = SnapshotLog(locate(tmp_path / "snapshots"))
    assert log.load() == ()
    log.add(marker(version, after))
    assert log.load() == (marker(version, after),)
    assert type(log.load()[0].version) is type(version)


def test_other_types_are_not_versions() -> None:
    for other in (True, b"1", None, [1]):
        with pytest.raises(TypeError):
            version_type(other)  # type: ignore[arg-type]


def test_each_marker_is_newer_than_the_one_before_by_the_time_of_its_file(tmp_path: Path) -> None:
    log = SnapshotLog(locate(tmp_path))
    log.add(marker(1))
    (first,) = tmp_path.glob("*.json")
    # The clock was ahead when the first one was written.
    ahead_ns = (time.time_ns() // 1_000_000 + 3_600_000) * 1_000_000
    os.utime(first, ns=(ahead_ns, ahead_ns))
    for version in range(2, 12):
        log.add(marker(version, version - 1))
    assert [one.version for one in log.load()] == list(range(1, 12))
    times = [path.stat().st_mtime_ns // 1_000_000 for path in sorted(tmp_path.glob("*.json"))]
    assert times == sorted(set(times))
    assert not list(tmp_path.glob(".*")), "no staged file is left"
