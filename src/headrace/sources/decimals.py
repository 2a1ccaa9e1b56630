"""Decimals of records without rounding: Spark's parsers round `0.001` to `0.00` for ``DECIMAL(12, 2)``.

A parser reads such a value as it is written: CSV as text, JSON as a variant, which keeps 38 digits.
(Read as text, a number in JSON is first a double in Spark.)
What is written becomes the decimal if it is exactly one.
JSON without a number that Spark would round is parsed as declared, which takes less time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Literal

from headrace.runtime.lazy_pyspark import Column, DataType, DecimalType, F, StructType, T

_LONG_NUMBER = (
    r"[.\\-](?:(?<=\.)(?<!\d:\d\d\.)\d{SCALE}\d*[1-9]"  # but not the fraction of a second
    r"|(?<=[\d.][eE]-)\d"
    r"|(?<=\\)(?:u00[2346]|[\deE]))"  # an escaped character, which could be a digit
)
"""A number in JSON that has more digits after its point than a decimal, or a negative exponent."""
_DIGITS = 38
"""The digits of Spark's longest decimal."""


@dataclass(frozen=True)
class DecimalReader:
    """Reads the decimals of a schema from records in JSON or CSV."""

    schema: StructType
    format: Literal["json", "csv"]

    @property
    def parsed(self) -> StructType:
        """The schema for Spark's parser."""
        found = self._as_written(self.schema)
        assert isinstance(found, T.StructType)
        return found

    def choose(
        self, text: Column, options: Mapping[str, str], parse: Callable[[DecimalReader | None], Column]
    ) -> Column:
        """The result of a function that parses JSON: with this reader only if a decimal could be rounded."""
        scales = [one.scale for one in _decimals(self.schema)]
        if not scales:
            return parse(None)
        if any(name.lower() == "locale" for name in options):
            # Numbers can have another point.
            return parse(self)
        long = text.rlike(_LONG_NUMBER.replace("SCALE", str(min(scales))))
        return F.when(~long, parse(None)).otherwise(parse(self))

    def read(self, written: Column, use: Callable[[Column, Column | None], Column]) -> Column:
        """The result of a function of the record as declared."""
        if not has_decimals(self.schema):
            return use(written, None)
        # The array makes Spark compute the record once and use it several times.
        both = F.array(F.struct(written.alias("written"), self._read(written, self.schema).alias("record")))
        return F.transform(
            both, lambda one: use(one["record"], self._is_exact(one["written"], one["record"], self.schema))
        )[0]

    def _as_written(self, kind: DataType) -> DataType:
        if not has_decimals(kind):
            return kind
        match kind:
            case T.DecimalType():
                return T.VariantType() if self.format == "json" else T.StringType()
            case T.StructType():
                fields = [T.StructField(one.name, self._as_written(one.dataType)) for one in kind.fields]
                return T.StructType(fields)
            case T.ArrayType():
                return T.ArrayType(self._as_written(kind.elementType), kind.containsNull)
            case T.MapType():
                return T.MapType(kind.keyType, self._as_written(kind.valueType), kind.valueContainsNull)
        raise AssertionError(kind)

    def _read(self, written: Column, kind: DataType) -> Column:
        """A value as its declared type; a decimal is NULL if it is not exactly what is written."""
        if not has_decimals(kind):
            return written
        match kind:
            case T.DecimalType() if self.format == "json":
                text = F.array(F.try_variant_get(written, "$", "string"))
                return F.transform(text, lambda one: exact_decimal(one, kind))[0]
            case T.DecimalType():
                return exact_decimal(written, kind)
            case T.StructType():
                fields = (self._read(written[one.name], one.dataType).alias(one.name) for one in kind.fields)
                found: Column = F.when(written.isNotNull(), F.struct(*fields))
                return found
            case T.ArrayType():
                return F.transform(written, lambda item: self._read(item, kind.elementType))
            case T.MapType():
                return F.transform_values(written, lambda _, item: self._read(item, kind.valueType))
        raise AssertionError(kind)

    def _is_exact(self, written: Column, value: Column, kind: DataType) -> Column:
        """Whether each decimal in a value is exactly what is written, and NULL only if that is null."""
        match kind:
            case T.StructType():
                fields = [one for one in kind.fields if has_decimals(one.dataType)]
                parts = (self._is_exact(written[one.name], value[one.name], one.dataType) for one in fields)
                return reduce(and_, parts, F.lit(True))
            case T.ArrayType():
                item = kind.elementType
                found = F.zip_with(written, value, lambda text, one: self._is_exact(text, one, item))
            case T.MapType():
                item = kind.valueType
                found = F.transform(
                    F.map_keys(written), lambda key: self._is_exact(written[key], value[key], item)
                )
            case _:
                is_null = written.isNull()
                if self.format == "json":
                    is_null = is_null | F.is_variant_null(written)
                return is_null | value.isNotNull()
        return F.coalesce(F.forall(found, lambda one: one), F.lit(True))


def has_decimals(kind: DataType) -> bool:
    return any(True for _ in _decimals(kind))


def _decimals(kind: DataType) -> Iterator[DecimalType]:
    match kind:
        case T.StructType():
            for one in kind.fields:
                yield from _decimals(one.dataType)
        case T.ArrayType():
            yield from _decimals(kind.elementType)
        case T.MapType():
            yield from _decimals(kind.valueType)
        case T.DecimalType():
            yield kind


def exact_decimal(text: Column, kind: DecimalType) -> Column:
    """The decimal in a text; NULL if it is none, has more digits before the point, or more after it."""
    number = text.try_cast(kind)
    is_plain = text.rlike(rf"^[+-]?\d*(\.\d{{0,{kind.scale}}}0*)?\z")
    wide = text.try_cast(T.DecimalType(_DIGITS, _DIGITS - kind.precision + kind.scale))
    is_same = (wide == number) & (text.try_cast("double") == number.cast("double"))
    # The first test takes the least time, and decides for most records.
    is_written = number.cast("string") == text
    found: Column = F.when(is_written | is_plain | (text.rlike(r"^\S*[eE]\S*\z") & is_same), number)
    return found
