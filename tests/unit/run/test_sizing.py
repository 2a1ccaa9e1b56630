"""How many tasks write a batch."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace.model.ranges import SourceRange
from headrace.run.limits import count_records, limit_tasks
from headrace.sources.files.lists import FilePosition
from headrace.sources.kafka.position import KafkaOffsets


def kafka(start: dict[int, int] | None, until: dict[int, int]) -> SourceRange:
    return SourceRange(
        index=0,
        kind="kafka",
        identity={},
        start=None if start is None else KafkaOffsets({"t": start}),
        until=KafkaOffsets({"t": until}),
    )


@pytest.mark.parametrize(
    ("start", "until", "expected"),
    [
        ({0: 0, 1: 0}, {0: 10, 1: 5}, 15),
        ({0: 7, 1: 5}, {0: 10, 1: 5}, 3),
        ({0: 7}, {0: 7, 1: 4}, 4),
        (None, {0: 7}, 7),
    ],
    ids=["first batch", "one partition moved", "a new partition", "no start"],
)
def test_the_offsets_of_a_batch(start: dict[int, int] | None, until: dict[int, int], expected: int) -> None:
    assert count_records((kafka(start, until),)) == expected


def test_other_sources_have_no_offsets() -> None:
    files = SourceRange(index=0, kind="files", identity={}, start=None, until=FilePosition(3))
    assert count_records((files,)) is None


class Rows:
    """Notes how many partitions the rows were brought to."""

    partitions: int | None = None

    def coalesce(self, number: int) -> Rows:
        self.partitions = number
        return self


def partitions(*ranges: SourceRange, stateful: bool = False) -> int | None:
    rows = Rows()
    limit_tasks(cast(Any, rows), ranges, stateful=stateful, tasks=8)
    return rows.partitions


def test_few_records_make_one_file_and_many_use_all_tasks() -> None:
    assert partitions(kafka({0: 0}, {0: 20_000})) == 1
    assert partitions(kafka({0: 0}, {0: 20_001})) == 8


def test_other_sources_use_all_tasks() -> None:
    files = SourceRange(index=1, kind="files", identity={}, start=None, until=FilePosition(3))
    assert partitions(kafka({0: 0}, {0: 10}), files) == 8


def test_the_partitions_of_a_query_with_state_stay() -> None:
    assert partitions(kafka({0: 0}, {0: 10}), stateful=True) is None
