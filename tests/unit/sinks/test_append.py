"""When a batch may skip Delta's public writer: only where that would do nothing more."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.sinks.delta.append import is_fast

Fields = list[tuple[str, Any]]


def schema(*fields: tuple[str, Any], nullable: bool = True, **metadata: Any) -> str:
    listed = [
        {"name": name, "type": type_, "nullable": nullable, "metadata": metadata} for name, type_ in fields
    ]
    return json.dumps({"type": "struct", "fields": listed})


def fast(rows: str, table: str, *, reads_target: bool = False, protocol: str = "Protocol(1,2)") -> bool:
    df = SimpleNamespace(_jdf=SimpleNamespace(schema=lambda: SimpleNamespace(json=lambda: rows)))
    transaction = SimpleNamespace(
        metadata=lambda: SimpleNamespace(schemaString=lambda: table),
        protocol=lambda: SimpleNamespace(toString=lambda: protocol),
    )
    return is_fast(cast(Any, df), transaction, reads_target=reads_target)


ID, NAME = ("id", "long"), ("name", "string")
NESTED = ("s", json.loads(schema(ID, NAME)))
PLAIN = schema(ID, NAME)


def test_the_table_s_own_columns_are_fast() -> None:
    assert fast(PLAIN, PLAIN)
    assert fast(schema(NESTED), schema(NESTED))


def test_what_may_be_null_and_what_is_said_of_a_column_decide_nothing() -> None:
    assert fast(schema(ID, NAME, nullable=False), PLAIN)
    assert fast(PLAIN, schema(ID, NAME, comment="a comment"))
    array = {"type": "array", "elementType": "long", "containsNull": False}
    assert fast(schema(("a", array)), schema(("a", {**array, "containsNull": True})))


@pytest.mark.parametrize(
    "rows",
    [
        schema(NAME, ID),
        schema(("id", "integer"), NAME),
        schema(("id", "string"), NAME),
        schema(("Id", "long"), NAME),
        schema(ID),
        schema(ID, NAME, ("more", "string")),
    ],
    ids=["order", "narrower type", "other type", "case", "missing column", "extra column"],
)
def test_other_columns_are_not(rows: str) -> None:
    assert not fast(rows, PLAIN)


@pytest.mark.parametrize(
    "nested",
    [schema(NAME, ID), schema(("id", "integer"), NAME), schema(ID), schema(ID, NAME, NAME)],
    ids=["order", "type", "missing", "extra"],
)
def test_other_nested_fields_are_not(nested: str) -> None:
    assert not fast(schema(("s", json.loads(nested))), schema(NESTED))


@pytest.mark.parametrize(
    "key",
    [
        "delta.identity.start",
        "delta.generationExpression",
        "CURRENT_DEFAULT",
        "delta.columnMapping.id",
        "__CHAR_VARCHAR_TYPE_STRING",
    ],
)
def test_columns_that_delta_fills_or_checks_by_itself_are_not(key: str) -> None:
    assert not fast(PLAIN, schema(ID, NAME, **{key: "1"}))


def test_a_query_that_reads_its_target_is_not() -> None:
    assert not fast(PLAIN, PLAIN, reads_target=True)


def test_a_table_that_a_catalog_manages_is_not() -> None:
    assert not fast(PLAIN, PLAIN, protocol="Protocol(3,7,[..],[catalogManaged,inCommitTimestamp])")
