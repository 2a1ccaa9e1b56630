"""The markers of snapshots: in order, and read back as they were written."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from headrace.model.snapshots import SnapshotMarker, Version, version_type
from headrace.state.snapshot_log import SnapshotLog
from headrace.storage.location import Location


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
    location: Location, version: Version, after: Version | None
) -> None:
    log = SnapshotLog(location / "snapshots")
    assert log.load() == ()
    log.add(marker(version, after))
    assert log.load() == (marker(version, after),)
    assert type(log.load()[0].version) is type(version)


def test_other_types_are_not_versions() -> None:
    for other in (True, b"1", None, [1]):
        with pytest.raises(TypeError):
            version_type(other)  # type: ignore[arg-type]


def test_each_marker_has_a_file_of_its_own_and_a_number_above_all_others(location: Location) -> None:
    log = SnapshotLog(location)
    for version in range(1, 12):
        log.add(marker(version, version - 1))
    assert [one.version for one in SnapshotLog(location).load()] == list(range(1, 12))
    (location / location.list_files()[-1]).delete()
    log.add(marker(12))
    assert [one.version for one in log.load()] == [*range(1, 11), 12]
