"""Finding the one record on which a query fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import FlowFailedError, RecordUnparseableError, SourceLocation
from headrace.model.declarations import Expectation
from headrace.model.ranges import SourceRange
from headrace.run.narrowing import RecordSearch, _after, _without, find_first, find_reason, ranges_of
from headrace.sources.files.lists import FilePosition
from headrace.sources.kafka.kind import KIND
from headrace.sources.kafka.position import KafkaOffsets, KafkaPart
from headrace.sources.parts import FilePart, FileParts, Part


def batch(*sizes: int) -> list[KafkaPart]:
    return [
        KafkaPart(topic="orders", partition=number, start=100, until=100 + size)
        for number, size in enumerate(sizes)
    ]


class Query:
    """Fails on given records, and counts how often it was asked."""

    def __init__(self, *bad: tuple[int, int]) -> None:
        self.bad = bad
        self.asked = 0

    def __call__(self, parts: Sequence[Part]) -> bool:
        self.asked += 1
        return any(_number(part) == p and part.start <= o < part.until for part in parts for p, o in self.bad)


def _number(part: Part) -> int:
    """The number of a partition, or of a file such as ``f3``."""
    return part.partition if isinstance(part, KafkaPart) else int(part.place["path"][1:])


@pytest.mark.parametrize("place", [(0, 100), (0, 199), (3, 100), (3, 500_099), (2, 107)])
def test_one_record_is_found_in_few_looks(place: tuple[int, int]) -> None:
    query = Query(place)
    found = find_first(batch(100, 7, 300_000, 500_000), query, lambda: True)
    assert [(_number(one), one.start, one.is_record) for one in found] == [(*place, True)]
    assert query.asked <= 22


@pytest.mark.parametrize("place", [(0, 0), (2, 15), (2, 16), (5, 1_000_000)])
def test_a_row_of_a_file_is_found_though_the_length_of_the_file_is_not_known(place: tuple[int, int]) -> None:
    query = Query(place)
    found = find_first([FilePart(path=f"f{n}") for n in range(6)], query, lambda: True)
    assert [(_number(one), one.start, one.is_record) for one in found] == [(*place, True)]
    assert query.asked <= (12 if place[1] < 17 else 30)


@pytest.mark.parametrize(("rows", "row", "looks"), [(1, 0, 1), (2, 0, 1), (2, 1, 2), (1000, 999, 11)])
def test_a_row_of_a_parquet_file_is_found_by_the_length_of_the_file(
    tmp_path: Path, rows: int, row: int, looks: int
) -> None:
    pq.write_table(pa.table({"id": range(rows)}), tmp_path / "f0")
    asked: list[Part] = []

    def fails(parts: Sequence[Part]) -> bool:
        asked.extend(parts)
        return any(part.start <= row < part.until for part in parts)

    found = find_first([FilePart(path=(tmp_path / "f0").as_uri())], fails, lambda: True)
    assert [(one.start, one.is_record) for one in found] == [(row, True)]
    assert len(asked) == looks


def test_of_several_the_first_of_a_partition_is_found() -> None:
    found = find_first(batch(1000), Query((0, 950), (0, 140), (0, 141)), lambda: True)
    assert [str(one) for one in found] == ["topic orders, partition 0, offset 140"]


def test_without_time_the_narrowest_place_is_told() -> None:
    looks = iter([True] * 4)
    found = find_first(batch(1000, 1000), Query((1, 500)), lambda: next(looks, False))
    assert [str(one) for one in found] == ["topic orders, partition 1, offsets 475 to 599"]


def test_a_batch_is_cut_into_partitions_and_files() -> None:
    kafka = SourceRange(
        0,
        "kafka",
        {"topics": {"orders": "id"}},
        KafkaOffsets({"orders": {0: 5}}),
        KafkaOffsets({"orders": {0: 9, 1: 3}}),
    )
    files = SourceRange(1, "files", {}, None, FilePosition(1))
    parts = KIND.parts(kafka, None, None, None)
    assert parts == [
        KafkaPart(topic="orders", partition=0, start=5, until=9),
        KafkaPart(topic="orders", partition=1, start=0, until=3),
    ]
    a, b = FilePart(path="a", source=1), FilePart(path="b", source=1)
    some, rest = ranges_of([parts[1], b], [kafka, files])
    assert (some.index, some.start, some.until) == (
        0,
        KafkaOffsets({"orders": {1: 0}}),
        KafkaOffsets({"orders": {1: 3}}),
    )
    assert rest.until == FileParts(FilePosition(1), (b,))
    assert ranges_of([a], [kafka, files]) == [replace(files, until=FileParts(FilePosition(1), (a,)))]


def test_records_are_left_out_of_the_middle_of_a_partition_or_file() -> None:
    a, b = FilePart(path="a"), FilePart(path="b")
    first, second = replace(a, start=3, until=4), replace(a, start=4, until=5)
    third = replace(b, start=0, until=1)
    assert _after(first, [a, b]) == [replace(a, start=4), b]
    assert _without([first, second, third], [a, b]) == [
        replace(a, until=3),
        replace(a, start=5),
        replace(b, start=1),
    ]
    assert str(first) == "file a, row 3" and str(a) == "file a"
    of_table = replace(first, of="table bronze, version 7")
    assert str(of_table) == "table bronze, version 7, file a, row 3"


CAST = """An error occurred while calling o1.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times:
SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'x' of the type "STRING" cannot be \
cast to "BIGINT". SQLSTATE: 22018
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.invalid(QueryExecutionErrors.scala:1)
"""
PYTHON = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
  File "shop.py", line 7, in whole
    return int(text)
           ^^^^^^^^^
ValueError: invalid literal for int() with base 10: 'x'

\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)
"""


SQL = "cast(v as int) > 0"
LINE = SourceLocation("shop.py", 3)
CONDITION = """[CAST_INVALID_INPUT] The value 'x' cannot be cast. SQLSTATE: 22018
== SQL (line 1, position 1) ==
cast(v as int) > 0
^^^^^^^^^^^^^^
"""


def test_the_exception_of_the_query_is_the_reason() -> None:
    failed = FlowFailedError("orders failed", facts=("something else",))
    name, message = find_reason(CAST, failed)
    assert name == "CAST_INVALID_INPUT"
    assert message == 'The value \'x\' of the type "STRING" cannot be cast to "BIGINT".'
    assert find_reason(PYTHON, failed) == ("ValueError", "invalid literal for int() with base 10: 'x'")
    assert find_reason("other", failed) == ("FLOW_FAILED", "something else")
    raising = Expectation(name="a number", condition=SQL, text=SQL, action="warn", location=LINE)
    assert find_reason(CONDITION, failed, [raising]) == (
        "CAST_INVALID_INPUT",
        "expectation `a number`: The value 'x' cannot be cast.",
    )
    assert find_reason(CAST, RecordUnparseableError("bad")) == ("RECORD_UNPARSEABLE", "bad")


def test_a_batch_whose_equal_reads_ended_at_different_versions_fails_as_a_whole() -> None:
    """Read again, both would have the range of the first: the second would lose rows, or have some twice."""
    failure = FlowFailedError("the query failed", location=SourceLocation("a.py", 1))

    def build_ranges(*_: Any, **__: Any) -> Any:
        raise AssertionError("the batch was read again")

    planned: Any = SimpleNamespace(
        flow=SimpleNamespace(name="orders"),
        sources=[SimpleNamespace(index=n, read=0, options={}) for n in (0, 1)],
        stateful=False,
    )
    failures: Any = SimpleNamespace(as_error=lambda *_: failure)
    search = RecordSearch(
        planned=planned,
        build_ranges=build_ranges,
        failures=failures,
        stop=None,  # type: ignore[arg-type]
        checkpoint=None,  # type: ignore[arg-type]
    )
    ranges = [
        SourceRange(n, "kafka", {}, KafkaOffsets({"orders": {0: 0}}), KafkaOffsets({"orders": {0: end}}))
        for n, end in ((0, 5), (1, 4))
    ]
    with pytest.raises(FlowFailedError) as caught:
        search.narrow(failure, None, ranges)  # type: ignore[arg-type]
    assert caught.value is failure
