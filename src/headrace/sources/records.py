"""Decoded records, and the error for a record that cannot be decoded."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Literal

from headrace import errors
from headrace.errors import NOT_COMMITTED, HeadraceError, SourceLocation
from headrace.runtime.lazy_pyspark import Column, F
from headrace.sources.decoders import DRIFTED, NOT_UTF8, TOO_LARGE, UNPARSEABLE, Decoder, decode_within

_INTEGERS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_NAMES = {"integer": "INT"}
_NESTED = {"struct": ("an object", dict), "array": ("an array", list), "map": ("an object", dict)}
_SPECIAL_NUMBERS = ("nan", "infinity", "+infinity", "-infinity", "inf", "+inf", "-inf")
_SHOWN = 40
_EXACT = Context(prec=1000)


@dataclass(frozen=True)
class _Mismatch:
    text: str
    is_certain: bool = True


def find_problem(record: str, schema: Mapping[str, Any] | None, *, is_cut: bool = False) -> str | None:
    """Why a record does not match, such as ``field `id`: expected LONG, got "x1"``."""
    if not record.strip():
        return "the record is empty"
    try:
        value = json.loads(record, parse_float=Decimal)
    except json.JSONDecodeError as error:
        if is_cut:
            return None
        if error.msg == "Extra data":
            return f"the record has more text after its JSON value, at character {error.pos + 1}"
        return f"not valid JSON: {error.msg[0].lower()}{error.msg[1:]} at character {error.pos + 1}"
    except (ValueError, ArithmeticError, RecursionError):
        return None
    if schema is None:
        return None
    if schema["type"] == "debezium":
        return next(_event_problems(value, schema), None)
    found = list(_mismatches(value, schema, ""))
    certain = [one for one in found if one.is_certain]
    return next((one.text for one in certain or found), None)


def _event_problems(value: Any, expected: Mapping[str, Any]) -> Iterator[str]:
    """Why a record is not a change event of Debezium with the declared columns."""
    has_schema = isinstance(value, dict) and isinstance(value.get("payload"), dict)
    event = value["payload"] if has_schema else value
    if not isinstance(event, dict) or "op" not in event:
        yield "the record is not a change event of Debezium: it has no field `op`"
        return
    op, name = event["op"], "before" if event["op"] == "d" else "after"
    row = event.get(name)
    if op not in ("c", "u", "d", "r", "t"):
        yield f"the change event has the operation {json.dumps(op)}; known are c, u, d, r and t"
    elif not isinstance(event.get("source"), dict):
        yield "the change event has no object `source`"
    elif op != "t" and not isinstance(row, dict):
        yield f"the change event has the operation {op}, but no row in `{name}`"
    elif isinstance(row, dict):
        yield from _row_problems(row, name, expected, has_schema=has_schema)


def _row_problems(
    row: Mapping[str, Any], name: str, expected: Mapping[str, Any], *, has_schema: bool
) -> Iterator[str]:
    ambiguous = []
    for field in expected["row"]["fields"]:
        kind, value, path = field["type"], row.get(field["name"]), f".{name}.{field['name']}"
        if not (isinstance(kind, str) and kind.startswith(("date", "timestamp", "decimal"))):
            yield from (one.text for one in _mismatches(value, kind, path))
        elif value is not None:
            ambiguous.append((_describe(path, kind.upper(), value), kind, value))
    for text, kind, value in ambiguous:
        if has_schema or kind == "date":
            yield text
        elif kind.startswith("decimal") and isinstance(value, str) and expected["decimals"] is None:
            yield f'{text}; it may be base64 or a number: set decimals to "precise" or "string"'
        elif kind.startswith("timestamp") and isinstance(value, int) and expected["timestamp_unit"] is None:
            yield f"{text}, a number without a unit: set timestamp_unit"
    if ambiguous:
        yield f"one of these values is not valid: {'; '.join(text for text, _, _ in ambiguous)}"


def find_unknown(record: str, schema: Mapping[str, Any] | None) -> list[str]:
    """The dotted names of the fields of a record that a schema does not have."""
    try:
        value = json.loads(record)
    except (ValueError, RecursionError):
        return []
    return [] if schema is None else list(_unknown(value, schema, ""))


def _unknown(value: Any, kind: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict) or not isinstance(kind, Mapping) or kind.get("type") != "struct":
        return
    known = {field["name"]: field["type"] for field in kind["fields"]}
    for name, inner in value.items():
        if name in known:
            yield from _unknown(inner, known[name], f"{path}{name}.")
        elif inner is not None:
            yield f"{path}{name}"


def _mismatches(value: Any, kind: Any, path: str) -> Iterator[_Mismatch]:
    if value is None and path:
        return
    if isinstance(kind, str):
        matches = _matches(value, kind)
        if matches is not True:
            text = _describe(path, _NAMES.get(kind, kind.upper()), value)
            yield _Mismatch(text, is_certain=matches is False)
        return
    expected, python_type = _NESTED.get(kind.get("type"), (None, None))
    if expected is None or python_type is None:
        return
    if not isinstance(value, python_type):
        yield _Mismatch(_describe(path, expected, value))
    elif kind["type"] == "struct":
        for field in kind["fields"]:
            yield from _mismatches(value.get(field["name"]), field["type"], f"{path}.{field['name']}")
    elif kind["type"] == "array":
        for item in value:
            yield from _mismatches(item, kind["elementType"], f"{path}[]")
    else:
        for item in value.values():
            yield from _mismatches(item, kind["valueType"], f"{path}{{}}")


def _matches(value: Any, kind: str) -> bool | None:
    """Whether Spark reads a value as this type; None if this function cannot tell."""
    if kind in _INTEGERS:
        limit = 2 ** (_INTEGERS[kind] - 1)
        return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
    if kind.startswith("decimal("):
        return _is_decimal(value, kind)
    match kind:
        case "float" | "double":
            is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
            return is_number or (isinstance(value, str) and value.lower() in _SPECIAL_NUMBERS)
        case "boolean":
            return isinstance(value, bool)
        case "date":
            return _is_time(value) if isinstance(value, str) else False
        case "timestamp" | "timestamp_ntz":
            if isinstance(value, str):
                return _is_time(value)
            return isinstance(value, int) and not isinstance(value, bool)
    return True


def _is_decimal(value: Any, kind: str) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        return False
    try:
        number = Decimal(value)
    except InvalidOperation:
        return False
    precision, scale = (int(digits) for digits in kind[8:-1].split(","))
    if not number.is_finite() or abs(number) >= 10 ** (precision - scale):
        return False
    return number == number.quantize(Decimal(1).scaleb(-scale), context=_EXACT)


def _is_time(text: str) -> bool | None:
    """Whether a text is a date or timestamp in ISO 8601; None if only Spark can tell."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        # Spark also reads texts such as `2026-1-5`; a text without any digit is none of them.
        return None if any(char.isdigit() for char in text) else False
    return True


def _describe(path: str, expected: str, value: Any) -> str:
    got = json.dumps(value, ensure_ascii=False, default=float)
    got = got if len(got) <= _SHOWN else f"{got[:_SHOWN]} ..."
    return f"{f'field `{path[1:]}`' if path else 'the record'}: expected {expected}, got {got}"


_MARK = "HEADRACE_BAD_RECORD "
_EXCERPT = 120
"""The maximum number of a record's characters in an error."""
CARRIED = 6_000
"""The maximum number of a record's bytes, and of its schema's characters, in Spark's message."""


_ERRORS: Mapping[str, type[HeadraceError]] = {
    UNPARSEABLE: errors.RecordUnparseableError,
    NOT_UTF8: errors.RecordNotUtf8Error,
    TOO_LARGE: errors.RecordTooLargeError,
    DRIFTED: errors.RecordDriftedError,
}


def decode_or_stop(
    decoder: Decoder,
    value: Column,
    *,
    at: Sequence[Column] = (),
    on_null: Literal["refuse", "keep"] = "refuse",
    max_bytes: int | None = None,
    stops: bool = False,
) -> Column:
    """The record as a struct; a record that cannot be decoded stops the flow."""
    stop = stop_at(decoder, value, at=at, max_bytes=max_bytes, stops=stops)
    record = F.coalesce(decode_within(decoder, value, max_bytes), stop)
    return F.when(value.isNotNull(), record) if on_null == "keep" else record


def stop_at(
    decoder: Decoder, value: Column, *, at: Sequence[Column], max_bytes: int | None = None, stops: bool = True
) -> Column:
    """An error that stops the flow at a record that cannot be decoded."""
    expected, facts = decoder.expected, {"problem": decoder.problem(value), "stops": F.lit(stops)}
    if max_bytes is not None:
        size = facts["size"] = F.octet_length(value)
        facts["problem"] = F.when(size > max_bytes, F.lit(TOO_LARGE)).otherwise(facts["problem"])
    if at:
        facts["at"] = F.struct(*at)
    schema = F.lit(expected if expected and len(expected) <= CARRIED else None)
    return _error_column(value, **facts, mismatch=F.lit(decoder.mismatch), schema=schema)


def stop_because(mismatch: str, value: Column, *, at: Sequence[Column]) -> Column:
    """An error that stops the flow at a record that Spark has parsed, with the value that is wrong."""
    problem, place = F.lit(UNPARSEABLE), F.struct(*at)
    return _error_column(value, problem=problem, stops=F.lit(True), at=place, mismatch=F.lit(mismatch))


def _error_column(value: Column, **facts: Column) -> Column:
    facts["record"] = F.base64(F.substring(value.cast("binary"), 1, CARRIED))
    listed = F.struct(*(fact.alias(name) for name, fact in facts.items()))
    return F.raise_error(F.concat(F.lit(_MARK), F.to_json(listed)))


@dataclass(frozen=True)
class BadRecord:
    """A record that could not be decoded, as Spark's message describes it."""

    code: str
    at: Mapping[str, Any]  # what identifies the record: topic, partition and offset, or the path of its file
    value: bytes | None
    is_cut: bool
    schema: Mapping[str, Any] | None  # the declared schema, in Spark's JSON form
    size: int | None = None  # the number of the record's bytes, if it is known
    mismatch: str | None = None  # why it is bad, if its format is not JSON
    stops: bool = False  # whether the flow stops at such a record in any case

    @classmethod
    def find(cls, message: str) -> BadRecord | None:
        """The record in the message of a failed query; None if the query failed for another reason."""
        _, mark, text = message.partition(_MARK)
        if not mark:
            return None
        try:
            facts = json.JSONDecoder().raw_decode(text)[0]
            record, schema = facts.get("record"), facts.get("schema")
            value = None if record is None else base64.b64decode(record)
            return cls(
                code=facts["problem"],
                at=facts.get("at") or {},
                value=value,
                is_cut=value is not None and len(value) >= CARRIED,
                schema=None if schema is None else json.loads(schema),
                size=facts.get("size"),
                mismatch=facts.get("mismatch"),
                stops=facts.get("stops", False),
            )
        except (ValueError, KeyError):
            return None

    @property
    def text(self) -> str:
        """The record, with invalid bytes written as ``\\xff``."""
        return "(no value)" if self.value is None else self.value.decode("utf-8", errors="backslashreplace")

    def to_error(
        self,
        flow: str,
        location: SourceLocation,
        where: str | None = None,
        remedies: Sequence[str] = (),
        params: Mapping[str, Any] | None = None,
    ) -> HeadraceError:
        where = where or ", ".join(f"{name} {value}" for name, value in self.at.items())
        return _ERRORS[self.code](
            f"flow {flow}: {self.describe()}" + (f" ({where})" if where else ""),
            location=location,
            facts=(f"the record begins: {self.text[:_EXCERPT]}", NOT_COMMITTED),
            remedies=(*remedies, *self._remedies()),
            params={"flow": flow, **self.at, **(params or {})},
        )

    def describe(self) -> str:
        """Why the record could not be decoded, in one sentence."""
        if self.value is None:
            return "the record has no value"
        if self.code == TOO_LARGE:
            return f"the value has {self.size:,} bytes, more than max_value_bytes"
        if self.code == NOT_UTF8:
            return _describe_invalid(self.value)
        if self.mismatch is not None:
            return self.mismatch
        if self.code == DRIFTED:
            names = find_unknown(self.text, self.schema)
            return f"the record has fields that its schema does not have: {', '.join(names) or '?'}"
        found = find_problem(self.text, self.schema, is_cut=self.is_cut)
        return found or "the record does not match the declared schema"

    def _remedies(self) -> Iterator[str]:
        if self.code == NOT_UTF8:
            yield 'or replace invalid bytes by U+FFFD: invalid_utf8="replace"'
        elif self.value is None:
            yield 'skip records without a value, or make them NULL: tombstones="skip" or tombstones="keep"'
        elif self.code == TOO_LARGE:
            yield f"or allow such records: max_value_bytes={self.size}"
        elif self.code == DRIFTED:
            names = find_unknown(self.text, self.schema)
            chosen = json.dumps({"*": "fail", **dict.fromkeys(names, "evolve")})
            yield f"add the fields to the schema, or let the table get them: drift={chosen}"
            yield 'or choose "rescue" or "quarantine" in place of "evolve"'
        elif "path" not in self.at:
            correct = "" if self.describe().startswith("not valid JSON") else "correct the schema, or "
            if self.at:
                yield 'let the reader put such records aside, bad_records="quarantine", then:   headrace run'
                yield f'or {correct}read them with format="raw" and no schema, and parse `value` in the query'
                return
            yield f'{correct}read the records with format="raw"'
        if self.at and self.value is not None and self.code != DRIFTED:
            yield 'or let the reader put such records aside: bad_records="quarantine"'


def _describe_invalid(value: bytes) -> str:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"the record is not valid UTF-8: byte 0x{value[error.start]:02x} at position {error.start + 1}"
    return "the record is not valid UTF-8"
