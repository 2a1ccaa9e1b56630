"""The reason why a JSON record does not match its schema."""

from __future__ import annotations

import pytest

from headrace.sources.records import find_problem

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "day", "type": "date"},
        {"name": "at", "type": "timestamp"},
        {"name": "price", "type": "decimal(4,2)"},
        {"name": "share", "type": "double"},
        {"name": "lines", "type": {"type": "array", "elementType": {
            "type": "struct", "fields": [{"name": "n", "type": "integer"}],
        }}},
        {"name": "tags", "type": {"type": "map", "keyType": "string", "valueType": "boolean"}},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ('{"id": "x1"}', 'field `id`: expected LONG, got "x1"'),
        ('{"id": 99999999999999999999}', "field `id`: expected LONG, got 99999999999999999999"),
        ('{"id": true}', "field `id`: expected LONG, got true"),
        ('{"id": 1.5}', "field `id`: expected LONG, got 1.5"),
        ('{"day": "soon"}', 'field `day`: expected DATE, got "soon"'),
        ('{"at": "soon"}', 'field `at`: expected TIMESTAMP, got "soon"'),
        ('{"price": 100.5}', "field `price`: expected DECIMAL(4,2), got 100.5"),
        ('{"price": 0.001}', "field `price`: expected DECIMAL(4,2), got 0.001"),
        ('{"price": "NaN"}', 'field `price`: expected DECIMAL(4,2), got "NaN"'),
        ('{"price": 1.5000}', None),
        ('{"share": "1.5"}', 'field `share`: expected DOUBLE, got "1.5"'),
        ('{"lines": [{"n": 1}, {"n": "two"}]}', 'field `lines[].n`: expected INT, got "two"'),
        ('{"lines": 1}', "field `lines`: expected an array, got 1"),
        ('{"tags": {"a": "yes"}}', 'field `tags{}`: expected BOOLEAN, got "yes"'),
        ("[1]", "the record: expected an object, got [1]"),
        ("null", "the record: expected an object, got null"),
        (" ", "the record is empty"),
        ("{no json}", "not valid JSON: expecting property name enclosed in double quotes at character 2"),
        ('{"id": 1} {"id": 2}', "the record has more text after its JSON value, at character 11"),
        ('{"id": 1, "price": "99.99", "share": "NaN", "lines": null}', None),
        # Only Spark can tell whether this is a date, so a field that certainly does not match comes first.
        ('{"day": "2026-13-1", "id": "x"}', 'field `id`: expected LONG, got "x"'),
        ('{"day": "2026-13-1"}', 'field `day`: expected DATE, got "2026-13-1"'),
    ],
)
def test_the_problem_of_a_record_is_named(record: str, problem: str | None) -> None:
    assert find_problem(record, SCHEMA) == problem


def test_the_beginning_of_a_record_is_not_called_invalid() -> None:
    assert find_problem('{"id": 1, "na', SCHEMA, is_cut=True) is None
