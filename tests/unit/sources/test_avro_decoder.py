"""Decimals of Avro schemas: a writer with another scale than the reader would give other numbers."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.sources.kafka.avro_decoder import have_same_scales


def decimal(scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale}


def record(kind: Any, name: str = "amount") -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": [{"name": name, "type": kind}]}


AROUND: dict[str, Any] = {
    "plain": lambda kind: record(kind),
    "optional": lambda kind: record(["null", kind]),
    "in a list": lambda kind: record({"type": "array", "items": kind}),
    "in a map": lambda kind: record({"type": "map", "values": ["null", kind]}),
    "in a record": lambda kind: record(["null", {**record(kind), "name": "Price"}]),
    "by name": lambda kind: {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "first", "type": {**record(kind), "name": "Price"}},
            {"name": "second", "type": ["null", "Price"]},
        ],
    },
}


@pytest.mark.parametrize("around", AROUND.values(), ids=list(AROUND))
def test_a_scale_is_compared_wherever_the_decimal_is(around: Any) -> None:
    assert have_same_scales(around(decimal(2)), around(decimal(2)))
    assert not have_same_scales(around(decimal(2)), around(decimal(3)))


def test_an_optional_decimal_is_compared_with_a_required_one() -> None:
    assert not have_same_scales(record(decimal(2)), record(["null", decimal(0)]))
    assert have_same_scales(record(decimal(2)), record(["null", decimal(2)]))


def test_fields_that_only_one_schema_has_are_not_compared() -> None:
    assert have_same_scales(record(decimal(2)), record(decimal(3), "total"))
    assert have_same_scales(record("bytes"), record(decimal(3)))


def test_a_schema_that_refers_to_itself_is_looked_at_once() -> None:
    node = record(["null", "Order"])
    assert have_same_scales(node, node)
