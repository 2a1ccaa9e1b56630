"""The decoders of records: each turns the bytes of a record into columns, for one format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import and_
from typing import Any, ClassVar, Final, Literal, get_args

from headrace.errors import ArgumentInvalidError, did_you_mean
from headrace.model.declarations import Drift
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


InvalidUtf8 = Literal["reject", "replace"]
"""What to do with bytes that are not valid UTF-8: reject the record, or replace them by U+FFFD."""

NOT_UTF8: Final = "RECORD_NOT_UTF8"
UNPARSEABLE: Final = "RECORD_UNPARSEABLE"
TOO_LARGE: Final = "RECORD_TOO_LARGE"
DRIFTED: Final = "RECORD_DRIFTED"

_GIVE_SCHEMA = 'give one, such as schema="id LONG, name STRING"'
_CORRUPT = "_headrace_corrupt"
_RECORDS, _END = "_headrace_records", "_headrace_end"
_CHANGES_TYPES = ("dateformat", "timestampformat", "timestampntzformat")


class Decoder(ABC):
    expected: str | None = None
    """The schema in Spark's JSON form; the error uses it to name the field that does not match."""

    mismatch: ClassVar[str | None] = None
    """Why a record is bad; None if the reason is found in the record, which is JSON."""

    @abstractmethod
    def decode(self, value: Column) -> Column:
        """The record as a struct; NULL if it has no value or cannot be decoded."""

    def stops(self, value: Column) -> Column | None:
        return None

    def unknown(self, value: Column) -> Column | None:
        """The names of the fields of a record that have no column, as an array; ``None`` if not known."""
        return None

    def problem(self, value: Column) -> Column:
        """The error code for a record that cannot be decoded; compute it for such records only."""
        invalid = ~F.is_valid_utf8(value.cast("string"))
        return F.when(invalid, F.lit(NOT_UTF8)).otherwise(F.lit(UNPARSEABLE))


def decode_within(decoder: Decoder, value: Column, max_bytes: int | None) -> Column:
    """The record as a struct; NULL also if its value is longer than ``max_bytes``."""
    decoded = decoder.decode(value)
    return decoded if max_bytes is None else F.when(F.octet_length(value) <= max_bytes, decoded)


@dataclass(frozen=True)
class TextDecoder(Decoder):
    """Text in UTF-8; a record becomes the column `value`."""

    invalid_utf8: InvalidUtf8 = "reject"

    def decode(self, value: Column) -> Column:
        text = value.cast("string")
        if self.invalid_utf8 == "replace":
            return F.when(value.isNotNull(), F.struct(F.make_valid_utf8(text).alias("value")))
        return F.when(F.is_valid_utf8(text), F.struct(text.alias("value")))


@dataclass(frozen=True)
class JsonDecoder(Decoder):
    """JSON; a record becomes the fields of a schema."""

    schema: StructType
    invalid_utf8: InvalidUtf8 = "reject"
    # Further options of Spark's JSON parser, such as ``timestampFormat``
    options: Mapping[str, str] = field(default_factory=dict)

    def decode(self, value: Column) -> Column:
        text = value.cast("string")
        # Spark's parser replaces invalid bytes silently, so they are checked before.
        text = F.make_valid_utf8(text) if self.invalid_utf8 == "replace" else text
        record = DecimalReader(self.schema, "json").choose(text, self.options, partial(self._read, text))
        return record if self.invalid_utf8 == "replace" else F.when(F.is_valid_utf8(text), record)

    def _read(self, text: Column, decimals: DecimalReader | None) -> Column:
        records = T.ArrayType(decimals.parsed if decimals else self.schema)
        checked = T.StructType().add(_RECORDS, records).add(_END, "string").add(_CORRUPT, "string")
        # Spark reads one JSON value and ignores any text after it. Within an array of an object of ours, such
        # text is malformed, is a second record, or closes the object before its last field.
        wrapped = F.concat(F.lit(f'{{"{_RECORDS}":['), text, F.lit(f'],"{_END}":""}}'))
        parsed = F.from_json(wrapped, checked, self.parser_options)

        def judge(looked: Column) -> Column:
            records, json = looked["json"][_RECORDS], looked["json"]
            whole = json[_END].isNotNull() & (F.size(records) == 1) & records[0].isNotNull()
            mistyped = json[_CORRUPT].isNotNull()

            def accept(record: Column, exact: Column | None = None) -> Column:
                wrong = mistyped if exact is None else mistyped | ~exact
                return self._accept(record, wrong, text, looked)

            return F.when(whole, decimals.read(records[0], accept) if decimals else accept(records[0]))

        # The array makes Spark parse once and use the result several times.
        looked = F.struct(parsed.alias("json"), *self._looks(text))
        return F.transform(F.array(looked), judge)[0]

    @property
    def parser_options(self) -> dict[str, str]:
        return {**self.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}

    def _looks(self, text: Column) -> tuple[Column, ...]:
        """What `_accept` needs of each record besides its fields."""
        return ()

    def _accept(self, record: Column, mistyped: Column, text: Column, looked: Column) -> Column:
        """The struct of a JSON object; NULL if it is a bad record."""
        return F.when(~mistyped, record)

    @property
    def expected(self) -> str | None:  # type: ignore[override]
        # With a format of their own, dates are not what the schema alone says.
        custom = any(name.lower() in _CHANGES_TYPES for name in self.options)
        return None if custom else self.schema.json()


def choose_decoder(
    call: str,
    format: str,
    schema: StructType | None,
    invalid_utf8: InvalidUtf8 = "reject",
    options: Mapping[str, str] | None = None,
    drift: Drift | None = None,
) -> Decoder | None:
    check_choice(call, "invalid_utf8", invalid_utf8, get_args(InvalidUtf8))
    if format == "json" and schema is None:
        raise invalid_argument(call, "schema", 'format="json" needs a schema', _GIVE_SCHEMA)
    if format in ("raw", "text") and schema is not None:
        columns = "the columns key and value" if format == "raw" else "the one column value"
        problem = f'format="{format}" takes no schema; it has {columns}'
        raise invalid_argument(call, "schema", problem, 'set format="json", or remove the schema')
    match format:
        case "json" if schema is not None and drift is not None:
            from headrace.sources.json_drift import DriftingJsonDecoder

            return DriftingJsonDecoder(schema, invalid_utf8, options or {}, drift)
        case "json" if schema is not None:
            return JsonDecoder(schema, invalid_utf8, options or {})
        case "text":
            return TextDecoder(invalid_utf8)
    if invalid_utf8 != "reject":
        problem = f'invalid_utf8="{invalid_utf8}" works with json and text, not with {format}'
        raise invalid_argument(call, "invalid_utf8", problem, "remove invalid_utf8", value=invalid_utf8)
    return None


def check_choice(call: str, argument: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        problem = f"{argument}={value!r} is not one of {', '.join(map(str, allowed))}"
        remedies = did_you_mean(str(value), map(str, allowed), "write one of these values")
        raise invalid_argument(call, argument, problem, *remedies, value=value)


def invalid_argument(
    call: str, argument: str, problem: str, *remedies: str, **params: Any
) -> ArgumentInvalidError:
    params = {"argument": argument, **params}
    return ArgumentInvalidError(f"{call}: {problem}", remedies=remedies, params=params)


_DEFAULTS: Final = {"escape": '"'}
"""Spark's default is a backslash; in CSV (RFC 4180) a quote within quotes is written twice."""

OPTIONS: Final = (
    *("sep", "delimiter", "quote", "escape", "charToEscapeQuoteEscaping", "unescapedQuoteHandling"),
    *("ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "nullValue", "emptyValue", "nanValue"),
    *("positiveInf", "negativeInf", "dateFormat", "timestampFormat", "timestampNTZFormat", "timeZone"),
    *("locale", "maxColumns", "maxCharsPerColumn"),
)
"""The options of Spark's CSV parser that make sense for single records."""


@dataclass(frozen=True)
class CsvDecoder(Decoder):
    """CSV; a record becomes the fields of a schema, by position.

    A record is bad if it has another number of values than the schema, more than one row, or a value that is
    not of the field's type.
    """

    mismatch = "the record is not one CSV row with the fields of the schema"

    schema: StructType
    invalid_utf8: InvalidUtf8 = "reject"
    options: Mapping[str, str] = field(default_factory=dict)  # options of Spark's CSV parser, such as ``sep``

    def decode(self, value: Column) -> Column:
        text = value.cast("string")
        text = F.make_valid_utf8(text) if self.invalid_utf8 == "replace" else text
        decimals = DecimalReader(self.schema, "csv")
        checked = T.StructType([*decimals.parsed.fields]).add(_END, "string").add(_CORRUPT, "string")
        given = {**_DEFAULTS, **self.options, "mode": "PERMISSIVE"}
        options = {**given, "columnNameOfCorruptRecord": _CORRUPT, "header": "false"}
        # Spark reads the first row and ignores the others. A value of ours at the end of the record is then
        # missing, as it is behind a quote that is not closed.
        named = {name.lower(): value for name, value in self.options.items()}
        delimiter = named.get("sep", named.get("delimiter", ",")).replace("\\t", "\t")
        row = F.concat(F.regexp_replace(text, r"\r?\n\z", ""), F.lit(f"{delimiter}{_END}"))
        parsed = F.from_csv(row, checked.toDDL(), options)

        def matching(parsed: Column) -> Column:
            whole = parsed[_CORRUPT].isNull() & (parsed[_END] == _END)

            def accept(record: Column, exact: Column | None) -> Column:
                fields = F.struct(*(record[name].alias(name) for name in self.schema.fieldNames()))
                return F.when(whole if exact is None else whole & exact, fields)

            return decimals.read(parsed, accept)

        # The array makes Spark parse once and use the result several times.
        record = F.transform(F.array(parsed), matching)[0]
        record = F.when(value.isNotNull(), record)
        return record if self.invalid_utf8 == "replace" else F.when(F.is_valid_utf8(text), record)


def build_csv_decoder(
    call: str, schema: StructType | None, invalid_utf8: InvalidUtf8, options: Mapping[str, str]
) -> CsvDecoder:
    if schema is None:
        raise invalid_argument(call, "schema", 'format="csv" needs a schema', _GIVE_SCHEMA)
    nested = [
        one.name for one in schema.fields if isinstance(one.dataType, T.ArrayType | T.MapType | T.StructType)
    ]
    if nested:
        problem = f"a CSV record has no nested values, and the field `{nested[0]}` has a nested type"
        remedy = f"read it as STRING, and parse it in the query: {nested[0]} STRING"
        raise invalid_argument(call, "schema", problem, remedy)
    known = {name.lower() for name in OPTIONS}
    for name in options:
        if name.lower() not in known:
            remedies = did_you_mean(name, OPTIONS, f"the options are: {', '.join(OPTIONS)}")
            raise invalid_argument(call, "format_options", f"CSV records have no option `{name}`", *remedies)
    return CsvDecoder(schema, invalid_utf8, dict(options))
