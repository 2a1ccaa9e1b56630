"""Debezium's change events: JSON with or without the schema part, and columns that are decoded already."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Final, Literal, cast, get_args

from headrace.runtime.lazy_pyspark import Column, DataType, DecimalType, F, StructField, StructType, T
from headrace.sources.decoders import (
    Decoder,
    InvalidUtf8,
    JsonDecoder,
    check_choice,
    exact_decimal,
    invalid_argument,
)

TimestampUnit = Literal["millis", "micros", "nanos"]
"""The unit of numbers in TIMESTAMP columns."""
Decimals = Literal["precise", "string"]
"""How texts in DECIMAL columns are read: as Debezium's base64 bytes, or as decimal numbers."""

OP: Final = "_op"
"""The column with the operation: c, u, d, r or t."""
POSITION: Final = "_position"
"""The column with the position in the database's log, as text that sorts in the order of the changes."""
CHANGED_AT: Final = "_changed_at"
"""The column with the time of the change in the database."""
ADDED: Final = (OP, POSITION, CHANGED_AT)
ENVELOPE: Final = ("before", "after", "source", "op")
"""The fields that all change events have."""

_OPTIONS = {"timestamp_unit": get_args(TimestampUnit), "decimals": get_args(Decimals)}
_SOURCE = (
    "connector STRING, ts_ms LONG, ts_us LONG, lsn LONG, sequence STRING, file STRING, pos LONG, `row` LONG, "
    "commit_lsn STRING, change_lsn STRING, event_serial_no LONG"
)
_SCHEMA_PART = (
    "fields ARRAY<STRUCT<field: STRING, fields: ARRAY<STRUCT<field: STRING, type: STRING, name: STRING, "
    "parameters: STRUCT<scale: STRING>>>>>"
)
_UNITS: dict[str, tuple[str, ...]] = {
    "millis": ("io.debezium.time.Timestamp", "org.apache.kafka.connect.data.Timestamp"),
    "micros": ("io.debezium.time.MicroTimestamp",),
    "nanos": ("io.debezium.time.NanoTimestamp",),
}
_CONNECT_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
_LAST_DAY = 2_932_896
"""The days from 1970-01-01 to 9999-12-31."""


@dataclass(frozen=True)
class DebeziumDecoder(Decoder):
    """Change events in JSON; an event becomes the columns of its row and `ADDED`."""

    schema: StructType  # the columns of the database's table
    invalid_utf8: InvalidUtf8 = "reject"
    # The unit of numbers in TIMESTAMP columns if a record has no schema part
    timestamp_unit: TimestampUnit | None = None
    decimals: Decimals | None = None  # how texts in DECIMAL columns are read if a record has no schema part

    @property
    def expected(self) -> str | None:  # type: ignore[override]
        facts = {"timestamp_unit": self.timestamp_unit, "decimals": self.decimals}
        return json.dumps({"type": "debezium", "row": self.schema.jsonValue(), **facts})

    def decode(self, value: Column) -> Column:
        record = JsonDecoder(self._envelope, self.invalid_utf8).decode(value)
        return _bound(record, self._flatten)

    @property
    def _envelope(self) -> StructType:
        """The fields of a record: those of the event, and those around it where it has a schema part."""
        read = [
            T.StructField(one.name, T.VariantType()) if _is_ambiguous(one.dataType) else one
            for one in self.schema.fields
        ]
        row, source = T.StructType(read), T.StructType.fromDDL(_SOURCE)
        event = T.StructType().add("before", row).add("after", row).add("source", source).add("op", "string")
        whole = T.StructType([*event.fields]).add("payload", event)
        if any(_is_ambiguous(one.dataType) for one in self.schema.fields):
            whole = whole.add("schema", T.StructType.fromDDL(_SCHEMA_PART))
        return whole

    def _flatten(self, record: Column) -> Column:
        bare = F.struct(*(record[name].alias(name) for name in ENVELOPE))
        return _bound(F.coalesce(record["payload"], bare), lambda one: self._row(one, record))

    def _row(self, event: Column, record: Column) -> Column:
        row = _image(event)
        columns = [self._column(row, one, record) for one in self.schema.fields]
        rows = F.struct(*columns, *added_columns(event, event["source"].getField))
        whole = (event["op"] == "t") | (event["op"].isin("c", "u", "d", "r") & row.isNotNull())
        ambiguous = [one.name for one in self.schema.fields if _is_ambiguous(one.dataType)]

        def judge(rows: Column) -> Column:
            is_read = [_text(row[name]).isNull() | rows[name].isNotNull() for name in ambiguous]
            return F.when(reduce(and_, is_read, whole & event["source"].isNotNull()), rows)

        return _bound(rows, judge)

    def _column(self, row: Column, column: StructField, record: Column) -> Column:
        value, kind = row[column.name], column.dataType
        if not _is_ambiguous(kind):
            return value.alias(column.name)
        declared = _declared(record["schema"], column.name)
        parts = F.struct(
            value.alias("value"),
            declared["name"].alias("name"),
            declared["type"].alias("type"),
            declared["parameters"]["scale"].alias("scale"),
        )
        return _bound(parts, lambda one: self._read(one, kind)).alias(column.name)

    def _read(self, one: Column, kind: DataType) -> Column:
        """The value of a column that Debezium writes in several forms."""
        text = _text(one["value"])
        is_text = F.schema_of_variant(one["value"]) == "STRING"
        match kind:
            case T.DateType():
                days = text.try_cast("bigint")
                date = F.date_add(F.lit("1970-01-01").cast("date"), days.try_cast("int"))
                date = F.when(days.between(-_LAST_DAY, _LAST_DAY), date)
                return F.when(is_text, text.try_cast(kind)).otherwise(date)
            case T.DecimalType():
                return self._decimal(one, text, is_text, kind)
            case _:
                number = self._timestamp(text.try_cast("bigint"), one["name"], kind)
                return F.when(is_text, text.try_cast(kind)).otherwise(number)

    def _timestamp(self, number: Column, name: Column, kind: DataType) -> Column:
        """A number as a timestamp; NULL if its unit is not known."""
        unit = F.lit(self.timestamp_unit)
        for named, kinds in _UNITS.items():
            unit = F.when(name.isin(*kinds), named).otherwise(unit)
        # A named type of another kind, such as a date or a time of day, is not a timestamp.
        known = [one for kinds in _UNITS.values() for one in kinds]
        unit = F.when(name.isNull() | name.isin(*known), unit)
        micros = (
            F.when(unit == "micros", number)
            .when(unit == "millis", F.try_multiply(number, F.lit(1000)))
            .when(unit == "nanos", F.floor(number / F.lit(1000)).cast("bigint"))
        )
        return F.timestamp_micros(micros).cast(kind)

    def _decimal(self, one: Column, text: Column, is_text: Column, kind: DecimalType) -> Column:
        """A number, a text or Debezium's bytes as a decimal; NULL if it is not known which they are."""
        is_bytes = one["name"] == _CONNECT_DECIMAL
        form = F.when(is_bytes, "precise").when(one["type"] == "string", "string")
        form = form.otherwise(F.lit(self.decimals))
        scale = F.coalesce(one["scale"], F.lit(str(kind.scale)))
        inner = [F.try_variant_get(one["value"], f"$.{name}", "string") for name in ("value", "scale")]
        is_variable = one["name"].isNull() | (one["name"] == _VARIABLE_DECIMAL)
        number = (
            F.when(is_text & (form == "precise"), _unscaled(text, scale))
            .when(is_text & (form == "string"), text)
            .when(~is_text & is_variable & inner[0].isNotNull(), _unscaled(*inner))
            .when(~is_text & inner[0].isNull(), text)
        )
        return _bound(number, lambda one: exact_decimal(one, kind))


def build_debezium_decoder(
    call: str, schema: StructType | None, invalid_utf8: InvalidUtf8 = "reject", **options: str | None
) -> DebeziumDecoder:
    check_choice(call, "invalid_utf8", invalid_utf8, get_args(InvalidUtf8))
    problem = remedy = None
    twice = next((name for name in ADDED if schema is not None and name in schema.fieldNames()), None)
    unknown = next((name for name in options if name not in _OPTIONS), None)
    if schema is None:
        problem = "change events of Debezium need the columns of the table as schema"
        remedy = 'give them, such as schema="id LONG, name STRING"'
    elif twice is not None:
        problem, remedy = f"the schema has the column `{twice}`, which Headrace adds", "rename the column"
    elif unknown is not None:
        problem = f"change events of Debezium have no option `{unknown}`"
        remedy = f"the options are: {', '.join(_OPTIONS)}"
    if schema is None or problem is not None:
        argument = "schema" if unknown is None else "format_options"
        raise invalid_argument(call, argument, str(problem), str(remedy))
    for name, allowed in _OPTIONS.items():
        check_choice(call, name, options.get(name), (*allowed, None))
    unit, decimals = (options.get(name) for name in _OPTIONS)
    return DebeziumDecoder(
        schema, invalid_utf8, cast("TimestampUnit | None", unit), cast("Decimals | None", decimals)
    )


def added_columns(event: Column, source: Callable[[str], Column]) -> tuple[Column, ...]:
    moment = F.coalesce(source("ts_us"), source("ts_ms") * 1000)
    return (
        event["op"].alias(OP),
        position(source).alias(POSITION),
        F.timestamp_micros(moment).alias(CHANGED_AT),
    )


def position(source: Callable[[str], Column]) -> Column:
    """The position of a change in the database's log, as text that sorts in the order of the changes.

    PostgreSQL: the position of the last commit before it, then its own. A transaction's changes follow those
    of transactions that committed before, although their own positions may be lower.
    MySQL and MariaDB: the number of the binlog file, the position in it, and the row of the event.
    SQL Server: the positions of the commit and of the change, and the number of the event in the change.
    Others: the time of the change in microseconds.
    """

    def number(value: Column) -> Column:
        return F.lpad(F.coalesce(value.cast("string"), F.lit("0")), 20, "0")

    def joined(*parts: Column) -> Column:
        return F.concat_ws(".", *parts)

    def lsn(name: str) -> Column:
        """A position of SQL Server; it has no fixed length before it is known."""
        is_known = source(name).rlike("^[0-9a-fA-F]{8}:[0-9a-fA-F]{8}:[0-9a-fA-F]{4}$")
        return F.when(is_known, F.lower(source(name))).otherwise("00000000:00000000:0000")

    # `get_json_object` gives the text "null" for a null in an array.
    committed = F.get(F.from_json(source("sequence"), "array<string>"), F.lit(0))
    file = F.regexp_extract(source("file"), r"(\d+)$", 1)
    time = number(F.coalesce(source("ts_us"), source("ts_ms") * 1000))
    found = (
        F.when(
            (source("connector") == "postgresql") & source("lsn").isNotNull(),
            joined(number(committed), number(source("lsn"))),
        )
        .when(
            source("connector").isin("mysql", "mariadb") & (file != ""),
            joined(number(file), number(source("pos")), number(source("row"))),
        )
        .when(
            (source("connector") == "sqlserver") & source("commit_lsn").isNotNull(),
            joined(lsn("commit_lsn"), lsn("change_lsn"), number(source("event_serial_no"))),
        )
    )
    return F.coalesce(found, time)


def flatten_columns(schema: StructType, kept: Sequence[str]) -> list[Column]:
    """The columns of decoded change events: those of the row, `ADDED`, and some others."""
    source_type, after = schema["source"].dataType, schema["after"].dataType
    assert isinstance(source_type, T.StructType) and isinstance(after, T.StructType)
    types = {one.name: one.dataType for one in T.StructType.fromDDL(_SOURCE).fields}
    present = set(source_type.fieldNames())

    def source(name: str) -> Column:
        column = F.col("source")[name] if name in present else F.lit(None)
        return column.cast(types[name])

    event = F.struct(*(F.col(name) for name in ENVELOPE))
    row = _image(event)
    columns = [row[one].alias(one) for one in after.fieldNames()]
    return [*columns, *added_columns(event, source), *(F.col(f"`{name}`") for name in kept)]


def _image(event: Column) -> Column:
    """The row before a delete, and the row after any other change."""
    return F.when(event["op"] == "d", event["before"]).otherwise(event["after"])


def _text(value: Column) -> Column:
    return F.try_variant_get(value, "$", "string")


def _is_ambiguous(kind: DataType) -> bool:
    """Whether Debezium writes values of a column in several forms."""
    return isinstance(kind, T.DateType | T.DecimalType | T.TimestampType | T.TimestampNTZType)


def _declared(schema: Column, name: str) -> Column:
    """The description of a column in the schema part of a record; NULL if there is none."""
    rows = F.filter(schema["fields"], lambda one: one["field"] == "after")
    return F.get(F.filter(F.get(rows, F.lit(0))["fields"], lambda one: one["field"] == name), F.lit(0))


def _unscaled(encoded: Column, scale: Column) -> Column:
    """The number in big-endian bytes as base64, as text such as `12345E-2`; NULL beyond 16 bytes."""
    return _bound(F.hex(F.try_to_binary(encoded, F.lit("base64"))), lambda digits: _number_of(digits, scale))


def _number_of(digits: Column, scale: Column) -> Column:
    """The number in hexadecimal digits, in two's complement, as text."""
    is_negative = F.substring(digits, 1, 1) >= "8"
    whole = F.lpad(digits, 32, F.when(is_negative, "F").otherwise("0"))
    high = F.conv(F.substring(whole, 1, 16), 16, -10).cast("decimal(20, 0)")
    low = F.conv(F.substring(whole, 17, 16), 16, 10).cast("decimal(20, 0)")
    shift = F.lit("18446744073709551616").cast("decimal(20, 0)")
    # Both parts of a negative number are negative, so that neither has more digits than the number.
    high, low = F.when(is_negative, high + 1).otherwise(high), F.when(is_negative, low - shift).otherwise(low)
    number = F.try_add(F.try_multiply(high, shift), low).cast("string")
    return F.when(F.length(digits).between(1, 32), F.concat(number, F.lit("E-"), scale))


def _bound(value: Column, use: Callable[[Column], Column]) -> Column:
    """What a function makes of a column that it uses several times.

    Spark repeats an expression at each of its uses, also in the plan. The variable of a lambda is short.
    """
    return F.transform(F.array(value), use)[0]
