"""When partitions end, by their values."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headrace.maintain.dataset_tables import closed_before, partition_end


@pytest.mark.parametrize(
    ("values", "end"),
    [
        ({"date": "2026-11-20"}, "2026-11-21T00"),
        ({"city": "Bern", "date": "2026-12-31"}, "2027-01-01T00"),
        ({"month": "2026-12"}, "2027-01-01T00"),
        ({"at": "2026-11-20 14:00:00"}, "2026-11-20T15"),
        ({"at": "2026-11-20T14:00:00.000000Z"}, "2026-11-20T15"),
        ({"at": "2026-11-20 00:00:00"}, "2026-11-21T00"),
        ({"slot": "2026-11-20-07"}, "2026-11-20T08"),
        ({"date": "2026-11-20", "hour": "23"}, "2026-11-21T00"),
        ({"year": "2026", "month": "11", "day": "5"}, "2026-11-06T00"),
        ({"Year": "2026", "Month": "2"}, "2026-03-01T00"),
        ({"from": "2026-01-01", "until": "2026-01-05"}, "2026-01-06T00"),
        ({"city": "Bern"}, None),
        ({"date": "2026-13-40"}, None),
        ({"date": None}, None),
        ({}, None),
    ],
)
def test_the_end_of_a_partition(values: dict[str, str | None], end: str | None) -> None:
    found = partition_end(values)
    assert found == (None if end is None else datetime.fromisoformat(f"{end}:00:00+00:00"))


def test_a_partition_is_closed_after_the_delay() -> None:
    partition = (("date", "2026-11-20"),)
    for hour, is_closed in ((0, False), (1, True)):
        now = datetime(2026, 11, 21, hour, tzinfo=UTC)
        assert closed_before(3600, now)(partition) is is_closed
    assert not closed_before(0)((("date", None),))
