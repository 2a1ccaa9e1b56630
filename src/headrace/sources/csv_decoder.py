"""The decoder of CSV records: one row without a header in each record."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.errors import ArgumentInvalidError
from headrace.runtime.lazy_pyspark import Column, F, StructType
from headrace.sources.decimals import DecimalReader
from headrace.sources.decoders import Decoder, InvalidUtf8

_CORRUPT, _END = "_headrace_corrupt", "_headrace_end"
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
        from pyspark.sql.types import StringType, StructField, StructType

        text = value.cast("string")
        text = F.make_valid_utf8(text) if self.invalid_utf8 == "replace" else text
        decimals = DecimalReader(self.schema, "csv")
        checked = StructType(
            [*decimals.parsed.fields, StructField(_END, StringType()), StructField(_CORRUPT, StringType())]
        )
        options = {
            **_DEFAULTS,
            **self.options,
            "mode": "PERMISSIVE",
            "columnNameOfCorruptRecord": _CORRUPT,
            "header": "false",
        }
        # Spark reads the first row and ignores the others. A value of ours at the end of the record is then
        # missing, as it is behind a quote that is not closed.
        end = f"{self._delimiter}{_END}"
        row = F.concat(F.regexp_replace(text, r"\r?\n\z", ""), F.lit(end))
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

    @property
    def _delimiter(self) -> str:
        named = {name.lower(): text for name, text in self.options.items()}
        return named.get("sep", named.get("delimiter", ",")).replace("\\t", "\t")


def build_csv_decoder(
    call: str, schema: StructType | None, invalid_utf8: InvalidUtf8, options: Mapping[str, str]
) -> CsvDecoder:
    """The decoder of CSV records."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if schema is None:
        raise _invalid(
            call, "schema", 'format="csv" needs a schema', 'give one, such as schema="id LONG, name STRING"'
        )
    nested = [one.name for one in schema.fields if isinstance(one.dataType, ArrayType | MapType | StructType)]
    if nested:
        raise _invalid(
            call,
            "schema",
            f"a CSV record has no nested values, and the field `{nested[0]}` has a nested type",
            f"read it as STRING, and parse it in the query: {nested[0]} STRING",
        )
    known = {name.lower(): name for name in OPTIONS}
    for name in options:
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1)
            raise _invalid(
                call,
                "format_options",
                f"CSV records have no option `{name}`",
                f"did you mean `{known[near[0]]}`?" if near else f"the options are: {', '.join(OPTIONS)}",
            )
    return CsvDecoder(schema, invalid_utf8, dict(options))


def _invalid(call: str, argument: str, problem: str, *remedies: str) -> ArgumentInvalidError:
    params: dict[str, Any] = {"argument": argument}
    return ArgumentInvalidError(f"{call}: {problem}", remedies=remedies, params=params)
