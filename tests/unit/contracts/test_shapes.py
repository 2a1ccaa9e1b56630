"""Shapes merge in any order to the same result, and lose no field."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.contracts import schema_types
from headrace.contracts.schema_types import Shape, build_type, classify, find_changes, merge, widen

_NAMES = st.sampled_from(["id", "name", "at", "lines", "price", "note"])
_TEXTS = st.sampled_from(["", "a", "12.50", "2026-11-20", "2026-11-20T08:14:00Z", "2026-02-30"])
_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.integers(-5, 300) | st.floats(allow_nan=False) | _TEXTS
)
VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=5,
)
RECORDS = st.lists(st.dictionaries(_NAMES, VALUES, max_size=4), max_size=4)


def shape_of(records: list[Any], first: int = 0) -> Shape:
    shape = Shape()
    for number, record in enumerate(records, first):
        shape.add(record, ("orders", 0, number))
    return shape


def paths(value: Any, path: str = "") -> set[str]:
    match value:
        case dict():
            return {path}.union(*(paths(one, f"{path}.{name}") for name, one in value.items()))
        case list():
            return {path}.union(*(paths(one, f"{path}[]") for one in value))
    return {path}


def shape_paths(shape: Shape, path: str = "") -> set[str]:
    found = {path}.union(*(shape_paths(one, f"{path}.{name}") for name, one in shape.fields.items()))
    return found | (shape_paths(shape.items, f"{path}[]") if shape.items else set())


@given(RECORDS, RECORDS)
def test_merging_does_not_depend_on_the_order(left: list[Any], right: list[Any]) -> None:
    one, other = shape_of(left), shape_of(right, 100)
    before = copy.deepcopy((one, other))
    assert merge(one, other) == merge(other, one)
    assert (one, other) == before, "it changes neither"


@given(RECORDS, RECORDS, RECORDS)
def test_merging_is_associative(first: list[Any], second: list[Any], third: list[Any]) -> None:
    a, b, c = shape_of(first), shape_of(second, 100), shape_of(third, 200)
    assert merge(merge(a, b), c) == merge(a, merge(b, c))


@given(RECORDS, RECORDS)
def test_merging_shapes_gives_the_shape_of_all_records(left: list[Any], right: list[Any]) -> None:
    assert merge(shape_of(left), shape_of(right, len(left))) == shape_of(left + right)


@given(RECORDS, RECORDS)
def test_merging_loses_no_field(left: list[Any], right: list[Any]) -> None:
    merged = merge(shape_of(left), shape_of(right, 100))
    assert set().union(*(paths(record) for record in left + right)) <= shape_paths(merged)


@given(RECORDS, RECORDS, st.randoms(use_true_random=False))
def test_objects_with_many_names_become_maps_in_any_order(left: Any, right: Any, random: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema_types, "MAX_FIELDS", 2)
        shuffled = left + right
        random.shuffle(shuffled)
        merged = merge(shape_of(left), shape_of(right, 100))
        assert build_type(merged) == build_type(shape_of(left + right)) == build_type(shape_of(shuffled))


@given(RECORDS.filter(len), RECORDS)
def test_a_widened_type_needs_no_second_change(left: list[Any], right: list[Any]) -> None:
    """Updating with both parts, in any order, keeps each field; a second update changes nothing."""
    one, other = shape_of(left), shape_of(right, 100)
    start = {"type": "struct", "fields": []}
    forward, backward = widen(widen(start, one), other), widen(widen(start, other), one)
    for result in (forward, backward):
        assert widen(widen(result, one), other) == result
        assert not list(find_changes(result, widen(result, merge(one, other))))
    assert {field["name"] for field in forward["fields"]} == {field["name"] for field in backward["fields"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-20", "date"),
        ("2026-02-30", "text"),
        ("2026-1-5", "text"),
        ("2026-11-20T08:14:00Z", "timestamp"),
        ("2026-11-20 08:14:00.123456+01:00", "timestamp"),
        ("2026-11-20T08:14:00.1234567Z", "text"),
        ("2026-11-20T24:00:00Z", "text"),
        ("2026-11-20T08:14", "text"),
        ("12.50", "number"),
        ("-7", "number"),
        ("", "text"),
        ("٢٠٢٦-11-20", "text"),
        ("0000-01-01", "text"),
    ],
)
def test_dates_and_timestamps_are_those_of_spark(text: str, expected: str) -> None:
    assert classify(text) == expected


def test_deep_nesting_ends_in_text() -> None:
    value: Any = 1
    for _ in range(500):
        value = {"a": value}
    kind, depth = build_type(shape_of([value])), 0
    while kind != "string":
        kind, depth = kind["fields"][0]["type"], depth + 1
    assert depth == schema_types.MAX_DEPTH
