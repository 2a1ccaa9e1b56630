"""The columns of a schema in Spark's DDL, parsed without Spark."""

from __future__ import annotations

import difflib
import re

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from headrace.errors import SampleSchemaInvalidError

Type = exp.DType

NAMES = {
    "BIGINT": Type.BIGINT,
    "LONG": Type.BIGINT,
    "INT": Type.INT,
    "INTEGER": Type.INT,
    "SMALLINT": Type.SMALLINT,
    "SHORT": Type.SMALLINT,
    "TINYINT": Type.TINYINT,
    "BYTE": Type.TINYINT,
    "DOUBLE": Type.DOUBLE,
    "FLOAT": Type.FLOAT,
    "REAL": Type.FLOAT,
    "DECIMAL": Type.DECIMAL,
    "STRING": Type.TEXT,
    "BOOLEAN": Type.BOOLEAN,
    "DATE": Type.DATE,
    "TIMESTAMP": Type.TIMESTAMPTZ,
    "TIMESTAMP_LTZ": Type.TIMESTAMPLTZ,
    "TIMESTAMP_NTZ": Type.TIMESTAMPNTZ,
    "BINARY": Type.BINARY,
    "ARRAY": Type.ARRAY,
    "MAP": Type.MAP,
    "STRUCT": Type.STRUCT,
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
    """Returns the type of each field of a struct."""
    return {column.name: column.kind for column in struct.expressions}


def precision_of(decimal: exp.DataType) -> tuple[int, int]:
    """Returns the precision and the scale of a decimal type."""
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
    near = [difflib.get_close_matches(word, NAMES, n=1) for word in words if word not in NAMES]
    return SampleSchemaInvalidError(
        f"the schema cannot be read: {problem}",
        facts=(f"schema: {text}",),
        remedies=(
            *(f"did you mean {found[0]}?" for found in near if found),
            "write it as Spark does:   id LONG, customer STRING, amount DECIMAL(12, 2), at TIMESTAMP",
        ),
        params={"schema": text},
    )
