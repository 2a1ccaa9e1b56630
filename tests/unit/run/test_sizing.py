"""How many tasks write a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.model.declarations import AppendFlow, AutoCdcFlow
from headrace.model.ranges import SourceRange
from headrace.run.limits import Execution, count_records
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


@dataclass
class Rows:
    """Notes how many partitions the rows were brought to, and the settings of their session."""

    partitions: int | None = None
    settings: dict[str, str] = field(default_factory=dict)

    def coalesce(self, number: int) -> Rows:
        self.partitions = number
        return self

    @property
    def sparkSession(self) -> Any:
        settings = self.settings
        conf = SimpleNamespace(get=settings.get, set=settings.__setitem__, unset=settings.pop)
        return SimpleNamespace(conf=conf)


def flow(*reads: bool, stateful: bool = False, kind: type[Any] = AppendFlow) -> Any:
    """A planned flow that reads other tables; `reads`: whether each is read as a stream."""
    read = [SimpleNamespace(streaming=streaming) for streaming in reads]
    return SimpleNamespace(stateful=stateful, flow=object.__new__(kind), reads=read)


def partitions(*ranges: SourceRange, stateful: bool = False) -> int | None:
    rows = Rows()
    Execution(flow(stateful=stateful), tasks=8).prepare(cast(Any, rows), ranges)
    return rows.partitions


def test_few_records_make_one_file_and_many_use_all_tasks() -> None:
    assert partitions(kafka({0: 0}, {0: 20_000})) == 1
    assert partitions(kafka({0: 0}, {0: 20_001})) == 8


def test_other_sources_use_all_tasks() -> None:
    files = SourceRange(index=1, kind="files", identity={}, start=None, until=FilePosition(3))
    assert partitions(kafka({0: 0}, {0: 10}), files) == 8


def test_the_partitions_of_a_query_with_state_stay() -> None:
    assert partitions(kafka({0: 0}, {0: 10}), stateful=True) is None


CODE = "spark.sql.codegen.factoryMode"


def codes(planned: Any, *records: int, setting: str | None = None) -> list[str | None]:
    """How the code of batches with so many records comes about; ``None`` for Spark's default. `setting`: the
    user's."""
    execution, found = Execution(planned, tasks=8), []
    rows = Rows(settings={} if setting is None else {CODE: setting})
    for count in records:
        execution.prepare(cast(Any, rows), (kafka({0: 0}, {0: count}),))
        found.append(rows.settings.get(CODE))
    return found


def test_few_records_are_evaluated_without_generated_code() -> None:
    assert codes(flow(), 10, 2_000, 2_001, 9_999, 5) == ["NO_CODEGEN", "NO_CODEGEN", None, None, "NO_CODEGEN"]
    assert codes(flow(True), 10) == ["NO_CODEGEN"]


def test_a_setting_of_the_user_stays() -> None:
    for setting in ("FALLBACK", "CODEGEN_ONLY", "NO_CODEGEN"):
        assert codes(flow(), 10, 9_999, 10, setting=setting) == [setting] * 3


def test_a_batch_that_computes_with_other_rows_keeps_generated_code() -> None:
    assert codes(flow(True, False), 10) == [None]
    assert codes(flow(stateful=True), 10) == [None]
    assert codes(flow(kind=AutoCdcFlow), 10) == [None]
