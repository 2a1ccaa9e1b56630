"""Records that are made up: plausible values for the columns of a schema."""

from __future__ import annotations

import base64
import decimal
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlglot import exp

from headrace.sources.ddl import Type, columns_of, parse_columns, precision_of
from headrace.sources.kafka.record_lines import Record, key_of

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
        text = _text(row)
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


def _text(value: Any) -> str:
    """JSON, with decimals digit by digit and never through a float."""
    match value:
        case decimal.Decimal():
            return format(value, "f")
        case dict():
            return "{" + ", ".join(f"{json.dumps(k)}: {_text(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_text, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)
