"""Some rows of a sink as its system has them; a format reads them with a function in `registry.SINK_ROWS`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from headrace.model.names import TableName

Key = tuple[Any, ...]

_INTEGERS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_AT_ONCE = 500
_YEARS = range(1973, 2250)
"""Earlier times can have an offset with seconds, which texts leave out, and Spark may write them as INT96."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The rows to read: those of some keys, and as many random ones."""

    keys: Mapping[str, str]  # the key columns, with Delta's types
    columns: Mapping[str, str]  # the columns to compare
    asked: frozenset[Key]
    size: int

    def parts(self, random: Iterable[str]) -> tuple[list[list[tuple[str, Key]]], list[str]]:
        """The ids of the asked keys and some random ids, with their keys, in parts; and those of the random
        ids that no row of the table can have."""
        ids = {id: key for key in self.asked if (id := id_of(key)) is not None}
        keys = {id: self.key_of(id) for id in random}
        ids |= {id: key for id, key in keys.items() if key is not None}
        items = list(ids.items())
        parts = [items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE)]
        return parts, [id for id, key in keys.items() if key is None]

    def key_of(self, id: str) -> Key | None:
        """The key behind an id; ``None`` if no row of the table can have it."""
        texts = id.split(":") if len(self.keys) > 1 else [id]
        if len(texts) > 1:
            texts = [one.replace("%3A", ":").replace("%25", "%") for one in texts]
        return self.read_key(texts)

    def read_key(self, texts: Sequence[str]) -> Key | None:
        """The key with these values; ``None`` if no row of the table can have it."""
        if len(texts) != len(self.keys):
            return None
        key = tuple(map(read_value, self.keys.values(), texts))
        return None if None in key else key


@dataclass(frozen=True, kw_only=True)
class SinkRow:
    """What a sink has for a key. `values`: ``None`` if there is no row. `version`: the version of the table
    that the row, or its deletion, comes from, if the sink keeps it."""

    values: Mapping[str, Any] | None
    version: int | None = None


@dataclass(frozen=True, kw_only=True)
class SinkRows:
    """Rows of a sink by their keys, and its state: of the same moment, or read afterwards if rows have
    versions. `columns`: the columns that can be compared, with the key columns."""

    state: Mapping[str, Any]
    holder: str  # what has the rows, for people
    rows: Mapping[Key, SinkRow]
    columns: Collection[str]
    strays: Collection[str] = ()  # ids that no row of the table can have
    needs: str | None = None  # the column without which there is no row
    has_versions: bool = True


ReadRows = Callable[[TableName, Mapping[str, str], Wanted], SinkRows]
"""Reads rows of a sink, by its name and its options."""


def can_be_key(kind: Any) -> bool:
    """Whether values of one of Delta's types have one form in every system."""
    return isinstance(kind, str) and kind.split("(")[0] in (
        *_INTEGERS,
        "string",
        "boolean",
        "date",
        "decimal",
    )


def can_be_compared(kind: Any) -> bool:
    return can_be_key(kind) or kind in ("double", "timestamp", "timestamp_ntz")


def id_of(key: Key) -> str | None:
    """The id of a key in a system with one text for each row; ``None`` if it could have two forms."""
    if any(isinstance(one, Decimal) and str(one) != f"{one:f}" for one in key):
        return None
    texts = texts_of(key)
    if len(texts) == 1:
        return texts[0]
    return ":".join(text.replace("%", "%25").replace(":", "%3A") for text in texts)


def texts_of(key: Key) -> list[str]:
    return [str(one).lower() if isinstance(one, bool) else str(one) for one in key]


def read_value(kind: str, text: str) -> Any:
    """The value of a key column behind its text; ``None`` if the column cannot have it."""
    import pyarrow as pa

    with suppress(ValueError, ArithmeticError, TypeError):
        if kind == "string":
            return text
        if kind == "boolean":
            return {"true": True, "false": False}.get(text)
        if kind == "date":
            return date.fromisoformat(text)
        if kind in _INTEGERS:
            return pa.scalar(int(text), f"int{_INTEGERS[kind]}").as_py()
        precision, scale = kind[len("decimal(") : -1].split(",")
        return pa.scalar(Decimal(text), pa.decimal128(int(precision), int(scale))).as_py()
    return None


def is_same(kind: str, mine: Any, theirs: Any) -> bool | None:
    """Whether a table and a sink have the same value; ``None`` if it cannot be compared. The sink's may be a
    text, or a number of JSON."""
    if mine is None or theirs is None:
        return mine is theirs
    if kind == "string":
        return bool(mine == theirs)
    if kind == "boolean":
        return (str(theirs).lower() == "true") == mine if str(theirs).lower() in ("true", "false") else False
    if kind == "date" or kind.startswith("timestamp"):
        return _is_same_time(mine, theirs)
    try:
        if isinstance(theirs, bool):
            return False
        if kind == "double":
            number = float(theirs)
            return bool(number == mine or (number != number and mine != mine))
        return bool(Decimal(str(theirs)) == mine)
    except (ValueError, ArithmeticError):
        return False


def _is_same_time(mine: Any, theirs: Any) -> bool | None:
    with suppress(ValueError, TypeError):
        theirs = type(mine).fromisoformat(theirs) if isinstance(theirs, str) else theirs
        is_alike = type(mine) is type(theirs)
        if isinstance(mine, datetime) and isinstance(theirs, datetime):
            is_alike = (mine.tzinfo is None) == (theirs.tzinfo is None)
        if is_alike and theirs.year in _YEARS:
            return bool(mine == theirs)
    return None


def read_json(text: str | None) -> Mapping[str, Any]:
    """A row in JSON, with all digits of its numbers; empty if the text is something else."""
    try:
        found = json.loads(text or "", parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
