"""Records that are made up: plausible values for the columns of a schema."""

from __future__ import annotations

import base64
import decimal
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from headrace.errors import SampleSchemaInvalidError, nearest
from headrace.model.texts import json_text
from headrace.sources.kafka.producer import Record, key_of

Type = exp.DType

NAMES = {
    **{name: exp.DType[name] for name in ("BIGINT", "INT", "SMALLINT", "TINYINT", "DOUBLE", "FLOAT")},
    **{name: exp.DType[name] for name in ("DECIMAL", "BOOLEAN", "DATE", "BINARY", "ARRAY", "MAP", "STRUCT")},
    "LONG": Type.BIGINT,
    "INTEGER": Type.INT,
    "SHORT": Type.SMALLINT,
    "BYTE": Type.TINYINT,
    "REAL": Type.FLOAT,
    "STRING": Type.TEXT,
    "TIMESTAMP": Type.TIMESTAMPTZ,
    "TIMESTAMP_LTZ": Type.TIMESTAMPLTZ,
    "TIMESTAMP_NTZ": Type.TIMESTAMPNTZ,
}
"""The types that a sample can have, by Spark's names for them."""

_PARTS = {Type.ARRAY: 1, Type.MAP: 2}
_SECOND_WORD = re.compile(r"(?:^|[,<])\s*(?:`[^`]+`|\w+)[\s:]+(\w+)")


def parse_columns(text: str) -> dict[str, exp.DataType]:
    """Returns the type of each column of a schema such as ``id LONG, tags ARRAY<STRING>``."""
    try:
        parsed = sqlglot.parse_one(f"STRUCT<{text}>", into=exp.DataType, dialect="spark")
    except SqlglotError as error:
        raise _fault(text, "it is not a list of columns and types") from error
    return _check_columns(text, parsed)


def columns_of(struct: exp.DataType) -> dict[str, exp.DataType]:
    return {column.name: column.kind for column in struct.expressions}


def precision_of(decimal: exp.DataType) -> tuple[int, int]:
    numbers = [int(one.name) for one in decimal.expressions]
    precision, scale = [*numbers, 0][:2] if numbers else (10, 0)
    return precision, scale


def _check_columns(text: str, struct: exp.DataType) -> dict[str, exp.DataType]:
    names = [column.name.lower() for column in struct.expressions]
    for name in names:
        if not name or name[0].isdigit():
            raise _fault(text, f"`{name}` is not a valid column name")
        if names.count(name) > 1:
            raise _fault(text, f"it has two columns `{name}`")
    columns = columns_of(struct)
    for kind in columns.values():
        _check_type(text, kind)
    return columns


def _check_type(text: str, kind: exp.DataType) -> None:
    name = kind.sql("spark")
    if kind.this not in NAMES.values() or len(kind.expressions) < _PARTS.get(kind.this, 0):
        raise _fault(text, f"a sample cannot have the type {name}")
    match kind.this:
        case Type.STRUCT:
            _check_columns(text, kind)
        case Type.ARRAY | Type.MAP:
            for part in kind.expressions:
                _check_type(text, part)
        case Type.DECIMAL:
            digits = all(one.name.isdigit() for one in kind.expressions)
            precision, scale = precision_of(kind) if digits else (0, 0)
            if not (1 <= precision <= 38 and scale <= precision):
                raise _fault(text, f"{name} is not a valid type")


def _fault(text: str, problem: str) -> SampleSchemaInvalidError:
    words = [word.upper() for word in _SECOND_WORD.findall(text)]
    near = {word: nearest(word, NAMES) for word in words if word not in NAMES}
    meant = {word: found for word, found in near.items() if found}
    if meant:
        problem = f"the type {next(iter(meant))} is unknown"
    example = "write it as Spark does:   id LONG, customer STRING, amount DECIMAL(12, 2), at TIMESTAMP"
    return SampleSchemaInvalidError(
        f"the schema cannot be read: {problem}",
        facts=(f"schema: {text}",),
        remedies=tuple(f"did you mean {one}?" for one in meant.values()) or (example,),
        params={"schema": text},
    )


_PEOPLE = ("ada", "alan", "barbara", "claude", "edsger", "grace", "katherine", "linus", "margaret", "tim")
_COLOURS = ("amber", "black", "blue", "brass", "cream", "green", "grey", "oak", "red", "white")
_THINGS = ("bench", "bowl", "chair", "clock", "desk", "lamp", "mirror", "shelf", "stool", "vase")
_CITIES = ("Accra", "Bergen", "Kyoto", "Lima", "Lyon", "Nairobi", "Oslo", "Porto", "Quito", "Turin")
_COUNTRIES = ("BR", "CA", "DE", "FR", "GH", "IN", "JP", "KE", "NO", "PE")
_STATES = ("new", "paid", "packed", "shipped", "delivered", "returned")

_TEXTS = (
    (("mail",), lambda chance: f"{chance.choice(_PEOPLE)}@example.com"),
    (("customer", "user", "person", "author", "owner"), lambda chance: chance.choice(_PEOPLE)),
    (("city", "town", "place"), lambda chance: chance.choice(_CITIES)),
    (("country",), lambda chance: chance.choice(_COUNTRIES)),
    (("status", "state", "event", "action"), lambda chance: chance.choice(_STATES)),
    (("colour", "color"), lambda chance: chance.choice(_COLOURS)),
    (("url", "link"), lambda chance: f"https://example.com/{chance.choice(_THINGS)}"),
    (("",), lambda chance: f"{chance.choice(_COLOURS)} {chance.choice(_THINGS)}"),
)
"""What a text is, by what its column is called; the first that fits."""

_MONEY = ("amount", "price", "sales", "total", "cost", "revenue")


def build_samples(schema: str, *, first: int, key: str | None = None) -> Iterator[Record]:
    """Made-up records without end."""
    columns = parse_columns(schema)
    # The same numbers give the same rows.
    chance = random.Random(first)
    number = first
    while True:
        row = {name: _value(name, kind, number, chance) for name, kind in columns.items()}
        text = json_text(row)
        yield Record(
            value=text.encode(), key=None if key is None else key_of(row, key, "the sample", 0), line=number
        )
        number += 1


def _value(name: str, kind: exp.DataType, number: int, chance: random.Random) -> Any:
    word = name.lower()
    match kind.this:
        case Type.BIGINT | Type.INT | Type.SMALLINT | Type.TINYINT:
            if word == "id":
                return number
            if word in ("quantity", "count", "pieces"):
                return chance.randrange(1, 10)
            return chance.randrange(1, 127 if kind.this == Type.TINYINT else 1000)
        case Type.DOUBLE | Type.FLOAT:
            return decimal.Decimal(chance.randrange(100, 10_000)).scaleb(-2)
        case Type.DECIMAL:
            precision, scale = precision_of(kind)
            whole = precision - scale
            most = 10 ** (min(whole, 4 if word in _MONEY else whole, 9) + scale)
            return decimal.Decimal(chance.randrange(most)).scaleb(-scale)
        case Type.TEXT:
            if word == "id" or word.endswith("_id"):
                return f"{chance.randrange(16**8):08x}"
            return next(make(chance) for names, make in _TEXTS if any(name in word for name in names))
        case Type.BOOLEAN:
            return chance.random() < 0.5
        case Type.DATE:
            return (datetime.now(UTC) - timedelta(days=chance.randrange(30))).date().isoformat()
        case Type.TIMESTAMPTZ | Type.TIMESTAMPLTZ:
            return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case Type.TIMESTAMPNTZ:
            return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")
        case Type.ARRAY:
            return [_value(word, kind.expressions[0], number, chance) for _ in range(chance.randrange(1, 4))]
        case Type.MAP:
            key, value = kind.expressions
            pairs = range(chance.randrange(1, 3))
            return {str(_value("", key, n, chance)): _value(word, value, n, chance) for n in pairs}
        case Type.STRUCT:
            return {inner: _value(inner, type_, number, chance) for inner, type_ in columns_of(kind).items()}
        case _:
            return base64.b64encode(chance.randbytes(6)).decode()
