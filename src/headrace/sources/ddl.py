"""Columns as Spark's DDL writes them, read without Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.errors import SampleSchemaInvalidError

_TOKEN = re.compile(r"\s*(?:(`[^`]+`|[A-Za-z_]\w*|\d+)|([<>(),:]))")
_TYPES = {
    "LONG": "long",
    "BIGINT": "long",
    "INT": "integer",
    "INTEGER": "integer",
    "SHORT": "short",
    "SMALLINT": "short",
    "BYTE": "byte",
    "TINYINT": "byte",
    "DOUBLE": "double",
    "FLOAT": "float",
    "REAL": "float",
    "STRING": "string",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_LTZ": "timestamp",
    "TIMESTAMP_NTZ": "timestamp_ntz",
    "BINARY": "binary",
}


@dataclass(frozen=True)
class Simple:
    """A type without parts, by Delta's name."""

    name: str


@dataclass(frozen=True)
class Decimal:
    precision: int
    scale: int


@dataclass(frozen=True)
class Array:
    element: Type


@dataclass(frozen=True)
class Map:
    key: Type
    value: Type


@dataclass(frozen=True)
class Struct:
    fields: tuple[tuple[str, Type], ...]


Type = Simple | Decimal | Array | Map | Struct


def parse_columns(text: str) -> Struct:
    """The columns of a list such as ``id LONG, tags ARRAY<STRING>``.

    Raises:
        SampleSchemaInvalidError: It is none, with the place in it.
    """
    reader = _Reader(text)
    columns = reader.columns(end="")
    if not columns:
        raise reader.fault("it names no column")
    return Struct(columns)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def columns(self, end: str) -> tuple[tuple[str, Type], ...]:
        found: list[tuple[str, Type]] = []
        while self._peek() not in ("", end):
            name = self._word("a column's name")
            if any(name.lower() == other.lower() for other, _ in found):
                raise self.fault(f"it names the column {name} twice")
            if self._peek() == ":":
                self._next()
            found.append((name, self._type()))
            if self._peek() == ",":
                self._next()
            elif self._peek() != end:
                raise self.fault(f"a comma was expected, and not `{self._peek()}`")
        return tuple(found)

    def fault(self, problem: str) -> SampleSchemaInvalidError:
        import difflib

        word = self._peek().upper()
        known = [*_TYPES, "DECIMAL", "ARRAY", "MAP", "STRUCT"]
        near = difflib.get_close_matches(word, known, n=1) if word not in known else []
        where = f" (character {self._at + 1})" if self._at < len(self._text) else ""
        return SampleSchemaInvalidError(
            f"the schema cannot be read: {problem}{where}",
            facts=(f"it is: {self._text}",),
            remedies=(
                *(f"did you mean {one}?" for one in near),
                "write it as Spark does:   id LONG, customer STRING, amount DECIMAL(12, 2), at TIMESTAMP",
            ),
            params={"schema": self._text, "at": self._at},
        )

    def _type(self) -> Type:
        word = self._peek().upper()
        if word in _TYPES:
            self._next()
            return Simple(_TYPES[word])
        match word:
            case "DECIMAL" | "NUMERIC" | "DEC":
                self._next()
                return self._decimal()
            case "ARRAY":
                self._open()
                element = self._type()
                self._expect(">")
                return Array(element)
            case "MAP":
                self._open()
                key = self._type()
                self._expect(",")
                value = self._type()
                self._expect(">")
                return Map(key, value)
            case "STRUCT":
                self._open()
                columns = self.columns(end=">")
                self._expect(">")
                return Struct(columns)
            case "":
                raise self.fault("a type is missing at its end")
            case _:
                raise self.fault(f"`{self._peek()}` is no type that can be made up")

    def _decimal(self) -> Decimal:
        if self._peek() != "(":
            return Decimal(10, 0)
        self._next()
        precision, scale = self._number(), 0
        if self._peek() == ",":
            self._next()
            scale = self._number()
        self._expect(")")
        if not (1 <= precision <= 38 and scale <= precision):
            raise self.fault(f"DECIMAL({precision}, {scale}) is no type")
        return Decimal(precision, scale)

    def _number(self) -> int:
        if not self._peek().isdigit():
            raise self.fault(f"a number was expected, and not `{self._peek()}`")
        return int(self._next())

    def _word(self, what: str) -> str:
        found = self._peek()
        if not found or found in "<>(),:" or found[0].isdigit():
            raise self.fault(f"{what} was expected, and not `{found}`")
        return self._next().strip("`")

    def _open(self) -> None:
        self._next()
        self._expect("<")

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            raise self.fault(f"`{token}` was expected, and not `{self._peek()}`")
        self._next()

    def _peek(self) -> str:
        if not self._text[self._at :].strip():
            return ""
        found = _TOKEN.match(self._text, self._at)
        return self._text[self._at :].strip()[0] if found is None else found[1] or found[2]

    def _next(self) -> str:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise self.fault(f"`{self._peek()}` was not expected")
        self._at = found.end()
        return found[1] or found[2]
