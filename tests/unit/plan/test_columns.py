"""Columns of queries and tables are compared as Delta and Spark compare them."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.plan import columns


def struct(**fields: Any) -> dict[str, Any]:
    listed = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields.items()]
    return {"type": "struct", "fields": listed}


def test_nullability_and_case_make_no_difference() -> None:
    left = struct(a="long", s=struct(x="string"))
    right = struct(A="long", S=struct(X="string"))
    right["fields"][0]["nullable"] = False
    assert columns.conflicts(left, right) == []
    assert columns.missing(left, right) == []


def test_different_types_are_named_with_both() -> None:
    left, right = struct(a="long", m=struct(x="string")), struct(a="integer", m=struct(x="long"))
    assert columns.conflicts(left, right) == [
        ("a", "BIGINT", "INT"),
        ("m", "STRUCT<x: STRING>", "STRUCT<x: BIGINT>"),
    ]


def test_dotted_paths_lead_into_structs() -> None:
    schema = struct(_source=struct(topic="string", offset="long"), id="long")
    assert columns.find(schema, "_source.offset") is not None
    assert columns.find(schema, "_SOURCE.Topic") is not None
    assert columns.find(schema, "id.x") is None
    assert list(columns.paths(schema)) == ["_source", "_source.topic", "_source.offset", "id"]


def test_flows_add_columns_in_the_order_of_their_first_occurrence() -> None:
    merged = columns.merged([struct(a="long", b="long"), struct(B="long", c="long")])
    assert [field["name"] for field in merged["fields"]] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("schema", "remedy"),
    [
        (struct(a="long", A="long"), "drop one of the two columns"),
        (
            {"type": "struct", "fields": [{"name": "count(1)", "type": "long"}]},
            '.withColumnRenamed("count(1)", "count_1")',
        ),
        (struct(n="void"), 'F.col("n").cast("STRING")'),
        (struct(deep={"type": "array", "elementType": struct(x="void")}), "cast that part of it"),
        (struct(i="interval day to second"), "CAST(i AS STRING)"),
    ],
)
def test_what_delta_cannot_store_has_the_remedy_of_its_fault(schema: dict[str, Any], remedy: str) -> None:
    found = columns.unstorable(schema)
    assert found is not None
    assert remedy in found.remedies[0]


def test_what_delta_can_store_passes() -> None:
    assert columns.unstorable(struct(**{"a b": "long"})) is not None
    assert columns.unstorable(struct(**{"a b": "long"}), maps_names=True) is None
    assert columns.unstorable(struct(a="long", s=struct(x="decimal(12,2)"), v="variant")) is None


def test_new_fields_of_structs_are_found_by_their_path() -> None:
    before = struct(
        id="long", deep=struct(x="long"), items={"type": "array", "elementType": struct(a="long")}
    )
    items = {"type": "array", "elementType": struct(a="long", b="string")}
    now = struct(id="long", deep=struct(x="long", y=struct(z="long")), items=items, city="string")
    paths = [path for path, _ in columns.new_fields(now, before)]
    assert paths == [("deep", "y"), ("items", "element", "b"), ("city",)]
    assert columns.refused_changes(now, before) == []


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(struct(y="long", x="long"), id="a field before the others"),
        pytest.param(struct(x="string"), id="another type"),
        pytest.param(struct(), id="a field less"),
    ],
)
def test_a_struct_that_changes_otherwise_is_refused(now: dict[str, Any]) -> None:
    before = struct(deep=struct(x="long"))
    assert [name for name, _, _ in columns.refused_changes(struct(deep=now), before)] == ["deep"]
    assert list(columns.new_fields(struct(deep=now), before)) == []


@pytest.mark.parametrize(
    ("before", "now", "is_wider"),
    [
        ("INT", "BIGINT", True),
        ("BIGINT", "INT", False),
        ("BIGINT", "DOUBLE", False),
        ("FLOAT", "DOUBLE", True),
        ("INT", "STRING", False),
        ("DATE", "TIMESTAMP_NTZ", True),
        ("DATE", "TIMESTAMP", False),
        ("DECIMAL(10,2)", "DECIMAL(12,4)", True),
        ("DECIMAL(10,2)", "DECIMAL(11,4)", False),
        ("INT", "DECIMAL(10,0)", True),
        ("BIGINT", "DECIMAL(10,0)", False),
    ],
)
def test_a_wider_type_has_all_values_of_the_old_one(before: str, now: str, is_wider: bool) -> None:
    assert columns.is_wider(now, before) is is_wider
