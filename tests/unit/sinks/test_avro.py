"""The rows that a Kafka sink can send as Avro, as far as a plan can say it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import SinkInvalidError
from headrace.model.names import TableName
from headrace.sinks.outside.kafka.destination import Destination
from headrace.sinks.target import SinkSpec


def check(*fields: tuple[str, Any], **options: str) -> None:
    columns = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields]
    given = {"topic": "orders", "format": "avro", **options}
    registry = {"schema.registry.url": "http://localhost:8081"}
    spec = SinkSpec(
        name=TableName("shop", "sent"), options=given, schema={"fields": columns}, connection=registry
    )
    Destination(spec).check()


def struct(name: str, kind: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}}]}


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def mapping(key: str, kind: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": kind, "valueContainsNull": True}


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("first name", "long", "`first name` is not a valid name"),
        ("a.b", "long", "`a.b` is not a valid name"),
        ("größe", "long", "`größe` is not a valid name"),
        ("1st", "long", "`1st` is not a valid name"),
        ("parts", array(struct("a-b", "long")), "`a-b` is not a valid name"),
        ("wait", "interval day to second", "no type for interval"),
        ("value", mapping("string", array("variant")), "no type for variant"),
        ("value", mapping("long", "string"), "keys of a map are long"),
    ],
)
def test_what_avro_cannot_have_is_refused_before_a_run(name: str, kind: Any, words: str) -> None:
    with pytest.raises(SinkInvalidError) as caught:
        check(("id", "long"), (name, kind))
    assert words in " ".join(caught.value.facts)


def test_columns_that_are_not_sent_can_have_any_type() -> None:
    plain = ("byte", "decimal(9,2)", "timestamp_ntz", "time(6)", "void", "varchar(3)", "binary", "float")
    kinds = [*plain, array(struct("a", mapping("string", array("date"))))]
    check(*((f"c{number}", kind) for number, kind in enumerate(kinds)), ("_source", struct("a b", "variant")))
