"""The types of inferred shapes, their DDL, and how declared types are widened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.contracts.inference import Inference, find_conflicts, find_empty
from headrace.contracts.schema_types import (
    Shape,
    build_type,
    columns_ddl,
    find_changes,
    load_schema_file,
    render_schema,
    to_ddl,
    widen,
    write_schema_file,
)
from headrace.errors import SchemaInvalidError


def shape_of(*values: Any) -> Shape:
    shape = Shape()
    for number, value in enumerate(values):
        shape.add(value, ("orders", 0, number))
    return shape


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, None, 2**63 - 1), "LONG"),
        ((1, 2**63), "DECIMAL(19, 0)"),
        ((1, 10**30), "DECIMAL(31, 0)"),
        ((1, 10**40), "DOUBLE"),
        ((1, 1.5), "DOUBLE"),
        ((1, 2**70, 1.5), "DOUBLE"),
        ((1, "1", 1), "STRING"),
        ((True, False), "BOOLEAN"),
        ((True, 1), "STRING"),
        (("2026-11-20", "2026-11-21"), "DATE"),
        (("2026-11-20", "2026-11-20T08:00:00Z"), "STRING"),
        (("2026-11-20T08:00:00Z", "2026-11-20 08:00:00"), "TIMESTAMP"),
        (("2026-11-20", "soon"), "STRING"),
        ((None,), "STRING"),
        (([],), "ARRAY<STRING>"),
        (([1, None], [1.5]), "ARRAY<DOUBLE>"),
        (({"a": 1}, {"b c": [{"d": True}]}), "STRUCT<a: LONG, `b c`: ARRAY<STRUCT<d: BOOLEAN>>>"),
        (({},), "STRING"),
        (({"a": 1}, [1]), "STRING"),
    ],
)
def test_the_type_of_values(values: tuple[Any, ...], expected: str) -> None:
    assert to_ddl(build_type(shape_of(*values))) == expected


@pytest.mark.parametrize(
    ("declared", "values", "expected"),
    [
        ("integer", (7,), "integer"),
        ("integer", (2**40,), "long"),
        ("byte", (300,), "short"),
        ("long", (2**64,), "decimal(20,0)"),
        ("long", (1.5,), "double"),
        ("float", (1.5, 2**70), "float"),
        ("decimal(12,2)", (10.25, 3), "decimal(12,2)"),
        ("decimal(12,2)", (10**11,), "decimal(14,2)"),
        ("decimal(12,2)", ("10.25",), "decimal(12,2)"),
        ("decimal(12,2)", ("ten",), "string"),
        ("decimal(12,2)", (0.001,), "decimal(13,3)"),
        ("decimal(12,2)", ("0.0010",), "decimal(13,3)"),
        ("decimal(12,2)", (1.5, 2.5e-7), "decimal(18,8)"),
        ("decimal(12,2)", (1e-300,), "double"),
        ("decimal(12,2)", (1e3,), "decimal(12,2)"),
        ("timestamp", (1763600000,), "timestamp"),
        ("timestamp", ("2026-11-20",), "timestamp"),
        ("date", ("2026-11-20T08:00:00Z",), "string"),
        ("binary", ("aGk=",), "binary"),
        ("string", (1, {"a": 2}), "string"),
        ("long", (None,), "long"),
        ("long", ("x",), "string"),
        ("boolean", (1,), "string"),
        ("variant", (1, "x"), "variant"),
    ],
)
def test_a_declared_type_changes_only_if_values_need_it(declared: str, values: Any, expected: str) -> None:
    assert widen(declared, shape_of(*values)) == expected


def test_an_update_keeps_what_a_person_has_written_and_shows_what_is_new() -> None:
    amount = {"name": "amount", "type": "decimal(12,2)", "nullable": False, "metadata": {"comment": "EUR"}}
    removed = {"name": "old", "type": "long", "nullable": True, "metadata": {}}
    declared = {"type": "struct", "fields": [amount, removed]}
    after = widen(declared, shape_of({"amount": 3.5, "lines": [{"sku": "a"}]}))
    assert after["fields"][:2] == [amount, removed]
    (change,) = find_changes(declared, after)
    assert (change.path, change.before, change.after) == ("lines", None, "ARRAY<STRUCT<sku: STRING>>")
    (deeper,) = find_changes(after, widen(after, shape_of({"lines": [{"sku": 1, "n": 1}, {"sku": "b"}]})))
    assert (deeper.path, deeper.before, deeper.after) == ("lines[].n", None, "LONG")


def test_conflicts_have_examples_with_coordinates() -> None:
    shape = shape_of({"a": {"b": 1}}, {"a": {"b": "x"}}, {"a": {"b": 2}}, {"A": None, "c": []})
    case, flipped = find_conflicts(shape)
    assert (flipped.path, flipped.became) == ("a.b", "STRING")
    assert flipped.examples == (("number", 2, ("orders", 0, 0), "1"), ("string", 1, ("orders", 0, 1), '"x"'))
    assert case.path == "A"
    assert [one.path for one in find_empty(shape)] == ["A", "c[]"]


def test_all_values_of_a_name_that_occurs_twice_count() -> None:
    inference = Inference()
    inference.add_json(b'{"a": {"b": "x"}, "a": {"b": 2}}', ("orders", 0, 0), {"day": "2026-11-20"})
    assert to_ddl(build_type(inference.shape)) == "STRUCT<a: STRUCT<b: STRING>, day: DATE>"
    (conflict,) = find_conflicts(inference.shape)
    assert conflict.path == "a.b"
    assert inference.shape.fields["a"].examples["object"].value == '{"b": "x"}'


def test_integers_that_a_double_rounds_are_reported() -> None:
    shape = shape_of({"a": 2**53 + 1, "b": 2**60, "c": 1e30, "d": 10**60}, {"a": 0.5, "c": 1})
    assert [(one.path, one.became) for one in find_conflicts(shape)] == [("a", "DOUBLE"), ("d", "DOUBLE")]


def test_records_that_are_not_json_objects_are_left_out_and_counted() -> None:
    inference = Inference()
    values = (b'{"id": 1}', None, b"\xff", b"{", b"[1]", b'{"id": 2} {"id": 3}', b"", b"[" * 100_000)
    for offset, value in enumerate((*values, b'{"id": NaN}', b'{"id": 4}')):
        inference.add_json(value, ("orders", 0, offset))
    assert (inference.records, inference.tombstones, inference.corrupt) == (3, 1, 6)
    assert [one.at[2] for one in inference.corrupt_records] == [2, 3, 4, 5, 6]
    assert to_ddl(build_type(inference.shape)) == "STRUCT<id: DOUBLE>"


def test_a_schema_file_has_one_line_for_each_field(tmp_path: Path) -> None:
    value = {"id": 1, "lines": [{"sku": "é", "n": {"a": 1, "b": True}}], "tags": ["a"]}
    schema = build_type(shape_of(value))
    file = tmp_path / "schemas" / "orders.json"
    write_schema_file(file, schema)
    assert load_schema_file(file, "schemas/orders.json") == schema
    assert json.loads(render_schema(schema)) == schema
    assert [line.count('"name"') for line in file.read_text().splitlines()] == [
        0,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
        0,
        1,
        0,
    ]
    assert columns_ddl(schema) == (
        "id LONG, lines ARRAY<STRUCT<sku: STRING, n: STRUCT<a: LONG, b: BOOLEAN>>>, tags ARRAY<STRING>"
    )


@pytest.mark.parametrize("text", ["{", "[]", '"string"', '{"type": "struct"}', '{"type": "array"}'])
def test_a_file_that_is_no_schema_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.json"
    file.write_text(text)
    with pytest.raises(SchemaInvalidError):
        load_schema_file(file, "schemas/orders.json")
