"""Bytes into typed columns; what does not parse never becomes a row of nulls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import NOT_COMMITTED, RecordUnparseableError, SourceLocation

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

_MARK = "HEADRACE_RECORD_UNPARSEABLE"
_CORRUPT = "_headrace_corrupt"
_RECORD = "r"
_EXCERPT = 120
"""Characters of a record that an error shows."""


def parse_json(
    value: str | Column,
    schema: str | StructType,
    *,
    at: Sequence[str | Column] = (),
    on_null: Literal["refuse", "keep"] = "refuse",
    options: Mapping[str, str] | None = None,
) -> Column:
    """Parse JSON text or bytes into a struct; a record that does not fit stops the flow.

    Args:
        value: The column that holds the text.
        schema: The record's fields, as a DDL string or a ``StructType``.
        at: Columns that say where the record comes from, for the error.
        on_null: Whether a record without a value stops the flow or gives a null struct.
        options: Further options of Spark's JSON parser, such as ``timestampFormat``.

    Returns:
        A struct column with the fields of ``schema``.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    column = F.col(value) if isinstance(value, str) else value
    text = column.cast("string")
    fields = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    checked = StructType([StructField(_RECORD, fields), StructField(_CORRUPT, StringType())])
    chosen = {**(options or {}), "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    # Within an object of our own, for by itself Spark reads one value and ignores what follows it.
    parsed = F.from_json(F.concat(F.lit(f'{{"{_RECORD}":'), text, F.lit("}")), checked, chosen)
    place = F.to_json(F.struct(*(F.col(c) if isinstance(c, str) else c for c in at))) if at else F.lit("{}")
    failure = F.raise_error(
        F.concat_ws(" ", F.lit(_MARK), place, F.coalesce(F.substring(text, 1, _EXCERPT), F.lit("(no value)")))
    )

    def judged(record: Column) -> Column:
        fits = record[_RECORD].isNotNull() & record[_CORRUPT].isNull()
        good = F.when(fits, record[_RECORD])
        if on_null == "keep":
            good = good.when(column.isNull(), F.lit(None).cast(fields))
        return good.otherwise(failure)

    # An array of one, so that the parsed record is computed once and looked at several times.
    return F.transform(F.array(parsed), judged)[0]


def unparseable(message: str, flow: str, location: SourceLocation) -> RecordUnparseableError | None:
    """The error behind Spark's message, where a record that `parse_json` refused caused it."""
    found = re.search(rf"{_MARK} (\{{.*?\}}) (.*)", message)
    if found is None:
        return None
    place = _place(found[1])
    excerpt = found[2].removesuffix(" SQLSTATE: P0001").strip()
    return RecordUnparseableError(
        f"flow {flow}: a record does not fit the declared schema"
        + (f": {', '.join(f'{key} {value}' for key, value in place.items())}" if place else ""),
        location=location,
        facts=(f"the record begins: {excerpt}", NOT_COMMITTED),
        remedies=('correct the schema, or read the topic with format="raw"',),
        params={"flow": flow, **place},
    )


def _place(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
