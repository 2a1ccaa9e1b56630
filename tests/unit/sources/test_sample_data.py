"""Records that are made up."""

from __future__ import annotations

import base64
import itertools
import json
import re
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest

from headrace.errors import RecordInvalidError, SampleSchemaInvalidError
from headrace.sources.kafka.sample_data import build_samples, parse_columns

EVERYTHING = (
    "id LONG, n INT, b byte, s SMALLINT, customer STRING, f FLOAT, amount DECIMAL(12, 2), ok BOOLEAN,"
    " day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, raw BINARY,"
    " tags ARRAY<STRING>, `odd name` MAP<STRING, INT>,"
    " inner STRUCT<a: INT, deep: ARRAY<STRUCT<x: DECIMAL(3,1)>>>"
)


def samples(schema: str, count: int = 50, first: int = 1, key: str | None = None) -> list[Any]:
    found = itertools.islice(build_samples(schema, first=first, key=key), count)
    return [json.loads(record.value, parse_float=Decimal) for record in found]


def test_every_value_is_of_its_type() -> None:
    rows = samples(EVERYTHING)
    assert [row["id"] for row in rows] == list(range(1, 51))
    for row in rows:
        assert -128 <= row["b"] <= 127
        assert re.fullmatch(r"[a-z]+", row["customer"])
        assert row["amount"].as_tuple().exponent == -2
        date.fromisoformat(row["day"])
        assert datetime.fromisoformat(row["at"]).utcoffset() is not None
        assert datetime.fromisoformat(row["local"]).tzinfo is None
        base64.b64decode(row["raw"], validate=True)
        assert row["tags"] and all(isinstance(value, int) for value in row["odd name"].values())
        assert all(abs(one["x"]) < 100 for one in row["inner"]["deep"])


def test_the_same_numbers_give_the_same_rows() -> None:
    assert samples("id LONG, name STRING") == samples("id LONG, name STRING")
    assert samples("id LONG, name STRING", first=51)[0]["id"] == 51


def test_a_column_becomes_the_key() -> None:
    record = next(build_samples("id LONG, name STRING", first=3, key="id"))
    assert record.key == b"3"
    with pytest.raises(RecordInvalidError):
        next(build_samples("id LONG", first=1, key="name"))


def test_a_schema_is_read_as_spark_writes_it() -> None:
    columns = parse_columns("a ARRAY<MAP<STRING,BIGINT>>,b:INT,c DEC(3)")
    assert {name: kind.sql("spark") for name, kind in columns.items()} == {
        "a": "ARRAY<MAP<STRING, BIGINT>>",
        "b": "INT",
        "c": "DECIMAL(3)",
    }


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "id",
        "id LONGG",
        "id LONG name STRING",
        "id LONG, ID INT",
        "a ARRAY<STRING",
        "d DECIMAL(39, 2)",
        "d DECIMAL(2, 3)",
        "d DECIMAL(x)",
        "1 INT",
        "a STRUCT<>x",
        "v VARIANT",
        "a INT; b INT",
        "a MAP<STRING>",
        "a STRUCT<x INT, X STRING>",
        "a INTERVAL DAY",
        "a INT> x",
        "a 'x",
    ],
)
def test_a_schema_that_cannot_be_parsed_is_refused(schema: str) -> None:
    with pytest.raises(SampleSchemaInvalidError) as raised:
        parse_columns(schema)
    assert raised.value.params["schema"] == schema


def test_a_misspelt_type_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(SampleSchemaInvalidError) as raised:
        parse_columns("id LONGG")
    assert raised.value.remedies[0] == "did you mean LONG?"
