"""Finding the one record on which a query fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.errors import FlowFailedError, RecordUnparseableError
from headrace.model.ranges import SourceRange
from headrace.run.narrowing import Part, find_first, find_reason, parts_of, ranges_of
from headrace.sources.delta.position import DeltaPosition
from headrace.sources.kafka.position import KafkaOffsets


def batch(*sizes: int) -> list[Part]:
    return [Part("orders", number, 100, 100 + size) for number, size in enumerate(sizes)]


class Query:
    """Fails on given records, and counts how often it was asked."""

    def __init__(self, *bad: tuple[int, int]) -> None:
        self.bad = bad
        self.asked = 0

    def __call__(self, parts: Sequence[Part]) -> bool:
        self.asked += 1
        return any(
            part.partition == p and part.start <= o < part.until for part in parts for p, o in self.bad
        )


@pytest.mark.parametrize("place", [(0, 100), (0, 199), (3, 100), (3, 500_099), (2, 107)])
def test_one_record_is_found_in_few_looks(place: tuple[int, int]) -> None:
    query = Query(place)
    found = find_first(batch(100, 7, 300_000, 500_000), query, lambda: True)
    assert [(one.partition, one.start, one.is_record) for one in found] == [(*place, True)]
    assert query.asked <= 22


def test_of_several_the_first_of_a_partition_is_found() -> None:
    found = find_first(batch(1000), Query((0, 950), (0, 140), (0, 141)), lambda: True)
    assert [str(one) for one in found] == ["topic orders, partition 0, offset 140"]


def test_without_time_the_narrowest_place_is_told() -> None:
    looks = iter([True] * 4)
    found = find_first(batch(1000, 1000), Query((1, 500)), lambda: next(looks, False))
    assert [str(one) for one in found] == ["topic orders, partition 1, offsets 475 to 599"]


def test_a_batch_is_what_it_has_read_of_kafka() -> None:
    kafka = SourceRange(
        0,
        "kafka",
        {"topics": {"orders": "id"}},
        KafkaOffsets({"orders": {0: 5}}),
        KafkaOffsets({"orders": {0: 9, 1: 3}}),
    )
    delta = SourceRange(1, "delta", {}, None, DeltaPosition(table_id="t", version=1, index=-1))
    parts = parts_of([kafka, delta])
    assert parts == (Part("orders", 0, 5, 9), Part("orders", 1, 0, 3))
    (some,) = ranges_of(parts[1:], [kafka, delta])
    assert (some.index, some.start, some.until) == (
        0,
        KafkaOffsets({"orders": {1: 0}}),
        KafkaOffsets({"orders": {1: 3}}),
    )


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


def test_the_exception_of_the_query_is_the_reason() -> None:
    failed = FlowFailedError("orders failed", facts=("something else",))
    name, message = find_reason(CAST, failed)
    assert name == "CAST_INVALID_INPUT"
    assert message == 'The value \'x\' of the type "STRING" cannot be cast to "BIGINT".'
    assert find_reason(PYTHON, failed) == (
        "ValueError",
        "invalid literal for int() with base 10: 'x'",
    )
    assert find_reason("other", failed) == ("FLOW_FAILED", "something else")
    assert find_reason(CAST, RecordUnparseableError("bad")) == ("RECORD_UNPARSEABLE", "bad")
