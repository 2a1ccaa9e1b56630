"""A number for the values of a row, to choose one of several rows in the same way each time."""

from __future__ import annotations

from headrace.model.names import quoted_column
from headrace.runtime.lazy_pyspark import Column, DataFrame, DataType, F

_ABSENT = (0x6E756C6C << 32) + 1
"""The first number that stands for a column without a value; a column of the rows hardly ever has it."""


def row_hash(rows: DataFrame) -> Column:
    """A number that depends on all values of a row, and on nothing else.

    Tables keep it, in the sequence of each row: rows without NULLs, structs and arrays keep the number that
    earlier releases gave them.
    """
    values, absent = [], []
    for number, field in enumerate(rows.schema.fields):
        value = F.col(quoted_column(field.name))
        # Spark has no hash of a map.
        values.append(as_text(value) if holds_map(field.dataType) else hashable(value, field.dataType))
        if field.nullable:
            absent.append(F.when(value.isNull(), F.lit(_ABSENT + number)))
    return F.xxhash64(*values, *absent)


def hashable(value: Column, kind: DataType) -> Column:
    """A value whose hash depends on all that it holds.

    Spark's hash passes over NULLs, and does not see where an inner array ends: without this, `[1, NULL]` has
    the hash of `[NULL, 1]`, and `[[1], [2]]` that of `[[1, 2]]`.
    """
    return value if _is_simple(kind) else _marked(value, kind)


def _marked(value: Column, kind: DataType) -> Column:
    """A value with a mark of NULL before it, and its length if it is an array."""
    fields, element = getattr(kind, "fields", None), getattr(kind, "elementType", None)
    if fields is not None:
        inner = [_marked(value.getField(one.name), one.dataType) for one in fields]
    elif element is not None:
        inner = [F.size(value), F.transform(value, lambda one: _marked(one, element))]
    else:
        inner = [value]
    return F.struct(value.isNull(), *inner)


def _is_simple(kind: DataType) -> bool:
    return not hasattr(kind, "fields") and not hasattr(kind, "elementType")


def as_text(value: Column) -> Column:
    """A value as JSON; without the option, a map with a NULL would be equal to an empty one."""
    return F.to_json(F.struct(value), {"ignoreNullFields": "false"})


def holds_map(kind: DataType) -> bool:
    """Whether values of a type hold maps or variants, which Spark can neither hash nor compare."""
    if kind.typeName() in ("map", "variant"):
        return True
    inner = getattr(kind, "elementType", None)
    fields = getattr(kind, "fields", ())
    return (inner is not None and holds_map(inner)) or any(holds_map(one.dataType) for one in fields)
