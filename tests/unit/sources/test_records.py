"""What a user is told of a record that does not fit its schema."""

from __future__ import annotations

import pytest

from headrace.errors import SourceLocation
from headrace.sources.records import unparseable

HERE = SourceLocation("orders.py", 4)
SPARK = (
    "pyspark.errors.exceptions.captured.StreamingQueryException: [STREAM_FAILED] Query terminated\n"
    "Caused by: org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] "
    "HEADRACE_RECORD_UNPARSEABLE {place} {record} SQLSTATE: P0001\n"
    "\tat org.apache.spark.sql.errors.QueryExecutionErrors$.raiseError(QueryExecutionErrors.scala:2843)"
)


def test_the_error_names_the_record_s_place() -> None:
    message = SPARK.format(place='{"topic":"orders","partition":2,"offset":1841}', record='{"id": "x"}')
    error = unparseable(message, "orders", HERE)
    assert error is not None
    assert error.code == "RECORD_UNPARSEABLE"
    assert error.params == {"flow": "orders", "topic": "orders", "partition": 2, "offset": 1841}
    assert error.location == HERE
    assert 'the record begins: {"id": "x"}' in error.facts


def test_a_record_without_a_known_place_is_shown_all_the_same() -> None:
    error = unparseable(SPARK.format(place="{}", record="garbage"), "orders", HERE)
    assert error is not None
    assert error.params == {"flow": "orders"}
    assert "the record begins: garbage" in error.facts


@pytest.mark.parametrize("record", ["", "}{", "HEADRACE_RECORD_UNPARSEABLE {} x", "(no value)"])
def test_no_record_hides_its_own_place(record: str) -> None:
    message = SPARK.format(place='{"topic":"t","partition":0,"offset":7}', record=record)
    error = unparseable(message, "orders", HERE)
    assert error is not None
    assert error.params["offset"] == 7


def test_other_failures_are_not_a_record_s() -> None:
    assert unparseable("org.apache.spark.SparkException: Job aborted", "orders", HERE) is None
