"""Decimals of records without rounding: Spark's parsers round `0.001` to `0.00` for ``DECIMAL(12, 2)``.

A parser reads such a value as text, and the text becomes the decimal if it fits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, DecimalType, StructType

_DIGITS = 38
"""The digits of Spark's longest decimal."""


def with_decimals(
    texts: Column, schema: StructType, use: Callable[[Column, Column | None], Column]
) -> Column:
    """The result of a function of a struct, and of whether each text in it is exactly a decimal.

    Args:
        texts: The struct as a parser gives it for `with_texts`.
        use: Takes the struct as declared; the second argument is ``None`` for a schema without decimals.
    """
    from pyspark.sql import functions as F

    if not has_decimals(schema):
        return use(texts, None)
    # The array makes Spark compute the struct once and use it several times.
    both = F.array(F.struct(texts.alias("texts"), restored(texts, schema).alias("record")))
    return F.transform(
        both, lambda one: use(one["record"], is_restored(one["texts"], one["record"], schema))
    )[0]


def has_decimals(kind: DataType) -> bool:
    """Whether a type is a decimal, or has one within."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    match kind:
        case StructType():
            return any(has_decimals(one.dataType) for one in kind.fields)
        case ArrayType():
            return has_decimals(kind.elementType)
        case MapType():
            return has_decimals(kind.valueType)
        case _:
            return isinstance(kind, DecimalType)


def with_texts(schema: StructType) -> StructType:
    """The schema for a parser: each decimal is a text."""
    from pyspark.sql.types import StructType

    found = _with_texts(schema)
    assert isinstance(found, StructType)
    return found


def _with_texts(kind: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StringType, StructField, StructType

    match kind:
        case DecimalType():
            return StringType()
        case StructType():
            return StructType([StructField(one.name, _with_texts(one.dataType)) for one in kind.fields])
        case ArrayType():
            return ArrayType(_with_texts(kind.elementType), kind.containsNull)
        case MapType():
            return MapType(kind.keyType, _with_texts(kind.valueType), kind.valueContainsNull)
        case _:
            return kind


def exact_decimal(text: Column, kind: DecimalType) -> Column:
    """The decimal in a text; NULL if it is none, has more digits before the point, or more after it."""
    from pyspark.sql.types import DecimalType

    number = text.try_cast(kind)
    is_plain = text.rlike(rf"^[+-]?\d*(\.\d{{0,{kind.scale}}}0*)?\z")
    wide = text.try_cast(DecimalType(_DIGITS, _DIGITS - kind.precision + kind.scale))
    is_same = (wide == number) & (text.try_cast("double") == number.cast("double"))
    return _when(is_plain | (text.rlike(r"^\S*[eE]\S*\z") & is_same), number)


def restored(value: Column, kind: DataType) -> Column:
    """A value as its declared type; a decimal that its text is not exactly is NULL."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if not has_decimals(kind):
        return value
    match kind:
        case DecimalType():
            return exact_decimal(value, kind)
        case StructType():
            fields = (restored(value[one.name], one.dataType).alias(one.name) for one in kind.fields)
            return _when(value.isNotNull(), F.struct(*fields))
        case ArrayType():
            return F.transform(value, lambda item: restored(item, kind.elementType))
        case MapType():
            return F.transform_values(value, lambda _, item: restored(item, kind.valueType))
    raise AssertionError(kind)


def is_restored(texts: Column, value: Column, kind: DataType) -> Column:
    """Whether each text has become a decimal.

    Args:
        texts: The value as the parser gives it.
        value: The same as its declared type.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    match kind:
        case StructType():
            fields = [one for one in kind.fields if has_decimals(one.dataType)]
            parts = (is_restored(texts[one.name], value[one.name], one.dataType) for one in fields)
            return reduce(and_, parts, F.lit(True))
        case ArrayType():
            found = F.zip_with(texts, value, lambda text, one: is_restored(text, one, kind.elementType))
            return F.coalesce(F.forall(found, lambda one: one), F.lit(True))
        case MapType():
            keys, inner = F.map_keys(texts), kind.valueType
            found = F.transform(keys, lambda key: is_restored(texts[key], value[key], inner))
            return F.coalesce(F.forall(found, lambda one: one), F.lit(True))
        case _:
            return texts.isNull() | value.isNotNull()


def _when(condition: Column, value: Column) -> Column:
    from pyspark.sql import functions as F

    return F.when(condition, value)
