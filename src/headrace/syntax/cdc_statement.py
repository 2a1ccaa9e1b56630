"""``AUTO CDC INTO`` and its older form, ``APPLY CHANGES INTO``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import SourceLocation
from headrace.syntax.tokens import Cursor

Columns = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ColumnChoice:
    """A list of columns, or ``* EXCEPT`` a list."""

    included: Columns | None = None
    excluded: Columns | None = None


@dataclass(frozen=True, kw_only=True)
class CdcFlow:
    name: str | None  # the flow's name; ``None`` for that of the table
    location: SourceLocation  # the location of the flow's name, else of the statement
    target: tuple[str, ...]
    source: Cursor  # the stream of change records: a relation of a ``FROM`` clause
    is_stream: bool  # whether the source is written as ``STREAM`` or as a subquery
    # Whether the statement is ``AUTO CDC FROM SNAPSHOT``, whose source is a table or a folder.
    is_snapshot: bool
    keys: Columns
    sequence_by: str = ""
    ignores_nulls: bool = False  # whether the statement has ``IGNORE NULL UPDATES``
    kept_if_null: ColumnChoice | None = None  # the columns behind ``IGNORE NULL UPDATES ON``
    deletes: str | None = None
    truncates: str | None = None
    columns: ColumnChoice | None = None
    scd_type: str = "1"
    tracked: ColumnChoice | None = None
    once: bool = False  # whether the source is read as a batch, whose records are applied once


_OF_SNAPSHOTS = ("KEYS", "STORED AS SCD TYPE", "TRACK HISTORY ON")


def parse_cdc(
    cursor: Cursor, flow: tuple[str, SourceLocation] | None, target: tuple[str, ...] | None = None
) -> CdcFlow:
    """The flow of a cursor at ``AUTO CDC`` or ``APPLY CHANGES``; with a target there is no ``INTO``."""
    first = cursor.token
    cursor.index += 2
    once = cursor.take("ONCE")
    is_snapshot = not once and cursor.take("FROM", "SNAPSHOT")
    if target is None:
        cursor.expect("INTO")
        target = without_live(cursor.name("a table"))
        cursor.expect("FROM")
    elif not is_snapshot:
        cursor.expect("FROM")
    source = cursor.until(lambda: _at_clause(cursor))
    if source.done:
        raise source.unexpected("the stream of change records")
    found = dict(_clauses(cursor, _OF_SNAPSHOTS if is_snapshot else tuple(_READERS)))
    if not found.get("keys"):
        raise cursor.unexpected("KEYS (columns)")
    if "sequence_by" not in found and not is_snapshot:
        raise cursor.unexpected("SEQUENCE BY column")
    name, location = flow or (None, cursor.text.locate(first.start, cursor.tokens[1].stop - 1, None))
    return CdcFlow(
        name=name,
        location=location,
        target=target,
        source=source,
        is_stream=source.at("STREAM") or source.at_symbol("("),
        is_snapshot=is_snapshot,
        ignores_nulls="kept_if_null" in found,
        once=once,
        **found,
    )


def without_live(name: tuple[str, ...]) -> tuple[str, ...]:
    """A name without the schema ``LIVE`` of Delta Live Tables."""
    return name[1:] if len(name) > 1 and name[0].upper() == "LIVE" else name


def _clauses(cursor: Cursor, allowed: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The clauses behind the source, in any order: the field of `CdcFlow` of each, and its value."""
    seen: set[str] = set()
    while not cursor.done:
        first = cursor.token
        for refused, remedy in _REFUSED.items():
            if cursor.at(*refused.split()):
                raise cursor.unsupported(refused, remedy)
        words = next((one for one in _READERS if cursor.take(*one.split())), None)
        if words is None:
            raise cursor.unexpected(
                "a clause such as KEYS, SEQUENCE BY, APPLY AS DELETE WHEN or STORED AS SCD TYPE"
            )
        if words not in allowed:
            raise cursor.invalid(f"AUTO CDC FROM SNAPSHOT has no {words}", first)
        if words in seen:
            raise cursor.invalid(f"{words} is given twice", first)
        seen.add(words)
        field, read = _READERS[words]
        yield field, read(cursor)


def _scd_type(cursor: Cursor) -> str:
    token = cursor.next()
    if token.value not in ("1", "2"):
        raise cursor.invalid("expected 1 or 2", token)
    return token.value


def _condition(cursor: Cursor, what: str = "a condition") -> str:
    found = cursor.until(lambda: _at_clause(cursor))
    if found.done:
        raise found.unexpected(what)
    return found.rest


def _choice(cursor: Cursor) -> ColumnChoice | None:
    """The columns of ``(a, b)``, ``a, b`` or ``* EXCEPT (a, b)``; ``None`` for ``*`` alone."""
    if cursor.take_symbol("*"):
        if not cursor.take("EXCEPT"):
            return None
        return ColumnChoice(excluded=_names(cursor.group("the columns in parentheses")))
    if cursor.at_symbol("("):
        return ColumnChoice(included=_names(cursor.group("the columns in parentheses")))
    return ColumnChoice(included=_names(cursor.until(lambda: _at_clause(cursor))))


def _at_clause(cursor: Cursor) -> bool:
    return any(cursor.at(*words.split()[:2]) for words in (*_READERS, *_REFUSED))


def _names(cursor: Cursor) -> Columns:
    found = []
    if cursor.done:
        raise cursor.unexpected("a column")
    for item in cursor.items():
        found.append(".".join(item.name("a column")))
        if not item.done:
            raise item.unexpected("a comma")
    return tuple(found)


_READERS: Mapping[str, tuple[str, Callable[[Cursor], Any]]] = {
    "KEYS": ("keys", lambda cursor: _names(cursor.group("the key columns in parentheses"))),
    "IGNORE NULL UPDATES": ("kept_if_null", lambda cursor: _choice(cursor) if cursor.take("ON") else None),
    "APPLY AS DELETE WHEN": ("deletes", _condition),
    "APPLY AS TRUNCATE WHEN": ("truncates", _condition),
    "SEQUENCE BY": ("sequence_by", lambda cursor: _condition(cursor, "a column")),
    "COLUMNS": ("columns", _choice),
    "STORED AS SCD TYPE": ("scd_type", _scd_type),
    "TRACK HISTORY ON": ("tracked", _choice),
}
"""The clauses, with the field of `CdcFlow` and the function that reads the value."""

_REFUSED: Mapping[str, str] = {
    "SYSTEM SEQUENCE BY": "only Databricks has bitemporal histories: remove it, with STORED AS SCD TYPE 2",
    "STORED AS BITEMPORAL": "only Databricks has bitemporal histories: write STORED AS SCD TYPE 2",
    "COLUMNS TO UPDATE": "all columns are written: IGNORE NULL UPDATES keeps a value where a record has NULL",
}
"""The clauses that are refused, with what to write in their place."""
