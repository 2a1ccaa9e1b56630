"""The error for a record that cannot be decoded."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from headrace.errors import HeadraceError, SourceLocation
from headrace.sources.records import BadRecord
from headrace.sources.registry import show_record

HERE = SourceLocation("orders.py", 4)
SPARK = (
    "pyspark.errors.exceptions.captured.StreamingQueryException: [STREAM_FAILED] Query terminated\n"
    "Caused by: org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] "
    "HEADRACE_BAD_RECORD {facts} SQLSTATE: P0001\n"
    "\tat org.apache.spark.sql.errors.QueryExecutionErrors$.raiseError(QueryExecutionErrors.scala:2843)"
)
AT = {"topic": "orders", "partition": 2, "offset": 1841}
SCHEMA = {"type": "struct", "fields": [{"name": "id", "type": "long"}]}


def error_of(
    value: bytes | None, at: dict[str, Any] | None = AT, code: str = "RECORD_UNPARSEABLE"
) -> HeadraceError:
    """The error for a record, by way of Spark's message."""
    facts: dict[str, Any] = {"problem": code, "schema": json.dumps(SCHEMA)}
    facts |= {} if at is None else {"at": at}
    facts |= {} if value is None else {"record": base64.b64encode(value).decode()}
    bad = BadRecord.find(SPARK.format(facts=json.dumps(facts)))
    assert bad is not None
    return bad.to_error("orders", HERE, remedies=show_record(bad.at))


def test_the_error_names_the_field_the_coordinates_and_the_command_that_prints_the_record() -> None:
    error = error_of(b'{"id": "x1"}')
    assert error.code == "RECORD_UNPARSEABLE"
    assert error.params == {"flow": "orders", **AT}
    assert error.location == HERE
    assert 'field `id`: expected LONG, got "x1"' in error.summary
    assert 'the record begins: {"id": "x1"}' in error.facts
    assert error.remedies[0].endswith("headrace consume orders --partition 2 --from 1841 --limit 1")
    assert 'bad_records="quarantine", then:   headrace run' in error.remedies[1]
    assert 'format="raw" and no schema' in error.remedies[2]


def test_a_field_that_a_schema_lacks_can_be_let_into_the_table() -> None:
    error = error_of(b'{"id": 1, "coupon": "a"}', code="RECORD_DRIFTED")
    assert error.remedies[1].endswith(': drift={"*": "fail", "coupon": "evolve"}')


def test_a_record_without_coordinates_is_shown_too() -> None:
    error = error_of(b"garbage", at=None)
    assert error.params == {"flow": "orders"}
    assert "the record begins: garbage" in error.facts
    assert "not valid JSON: expecting value at character 1" in error.summary


@pytest.mark.parametrize("record", [b"", b"}{", b"HEADRACE_BAD_RECORD {} x", b'a\nb"c', None])
def test_no_record_hides_its_own_coordinates(record: bytes | None) -> None:
    assert error_of(record).params["offset"] == 1841


def test_a_record_without_a_value_has_remedies_of_its_own() -> None:
    error = error_of(None)
    assert "the record has no value" in error.summary
    assert any('tombstones="skip"' in remedy for remedy in error.remedies)


def test_the_first_byte_that_is_not_utf8_is_named() -> None:
    error = error_of(b"caf\xe9 au lait", code="RECORD_NOT_UTF8")
    assert (error.code, error.params["offset"]) == ("RECORD_NOT_UTF8", 1841)
    assert "byte 0xe9 at position 4" in error.summary
    assert any('invalid_utf8="replace"' in remedy for remedy in error.remedies)
    assert any("headrace consume" in remedy for remedy in error.remedies)


@pytest.mark.parametrize(
    "message", ["org.apache.spark.SparkException: Job aborted", "HEADRACE_BAD_RECORD {cut"]
)
def test_other_failures_are_not_the_fault_of_a_record(message: str) -> None:
    assert BadRecord.find(message) is None
