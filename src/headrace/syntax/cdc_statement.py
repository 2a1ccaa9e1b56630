"""``AUTO CDC INTO`` and its older form, ``APPLY CHANGES INTO``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    """A flow that applies change records."""

    name: str | None  # the flow's name; ``None`` for that of the table
    location: SourceLocation  # the location of the flow's name, else of the statement
    target: tuple[str, ...]
    source: Cursor  # the stream of change records: a relation of a ``FROM`` clause
    is_stream: bool  # whether the source is written as ``STREAM`` or as a subquery
    # Whether the statement is ``AUTO CDC FROM SNAPSHOT``, whose source is a table or a folder.
    is_snapshot: bool
    keys: Columns
    sequence_by: str
    ignores_nulls: bool = False  # whether the statement has ``IGNORE NULL UPDATES``
    kept_if_null: ColumnChoice | None = None  # the columns behind ``IGNORE NULL UPDATES ON``
    deletes: str | None = None
    truncates: str | None = None
    columns: ColumnChoice | None = None
    scd_type: str = "1"
    tracked: ColumnChoice | None = None
    once: bool = False  # whether the source is read as a batch, whose records are applied once


_CLAUSES = (
    ("KEYS",),
    ("IGNORE", "NULL"),
    ("APPLY", "AS"),
    ("SEQUENCE", "BY"),
    ("COLUMNS",),
    ("STORED", "AS"),
    ("TRACK", "HISTORY"),
)


_OF_SNAPSHOTS = frozenset({"KEYS", "STORED AS SCD TYPE", "TRACK HISTORY ON"})


def parse_cdc(
    cursor: Cursor, flow: tuple[str, SourceLocation] | None, target: tuple[str, ...] | None = None
) -> CdcFlow:
    """The flow of a cursor at ``AUTO CDC`` or ``APPLY CHANGES``.

    A statement that declares its ``target`` together with the flow has no ``INTO``.
    """
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
    source = cursor.until(lambda: any(cursor.at(*words) for words in _CLAUSES))
    if source.done:
        raise source.unexpected("the stream of change records")
    clauses = _Clauses(cursor, _OF_SNAPSHOTS if is_snapshot else None)
    clauses.read()
    if not clauses.keys:
        raise cursor.unexpected("KEYS (columns)")
    if clauses.sequence_by is None and not is_snapshot:
        raise cursor.unexpected("SEQUENCE BY column")
    name, location = flow or (None, cursor.text.locate(first.start, cursor.tokens[1].stop - 1, None))
    return CdcFlow(
        name=name,
        location=location,
        target=target,
        source=source,
        is_stream=source.at("STREAM") or source.at_symbol("("),
        keys=clauses.keys,
        is_snapshot=is_snapshot,
        sequence_by=clauses.sequence_by or "",
        ignores_nulls=clauses.ignores_nulls,
        kept_if_null=clauses.kept_if_null,
        deletes=clauses.deletes,
        truncates=clauses.truncates,
        columns=clauses.columns,
        scd_type=clauses.scd_type,
        tracked=clauses.tracked,
        once=once,
    )


def without_live(name: tuple[str, ...]) -> tuple[str, ...]:
    """A name without the schema ``LIVE`` of Delta Live Tables."""
    return name[1:] if len(name) > 1 and name[0].upper() == "LIVE" else name


class _Clauses:
    """The clauses behind the source, in any order."""

    def __init__(self, cursor: Cursor, allowed: frozenset[str] | None) -> None:
        self._cursor = cursor
        self._allowed = allowed
        self._seen: set[str] = set()
        self.keys: Columns = ()
        self.sequence_by: str | None = None
        self.ignores_nulls = False
        self.kept_if_null: ColumnChoice | None = None
        self.deletes: str | None = None
        self.truncates: str | None = None
        self.columns: ColumnChoice | None = None
        self.scd_type = "1"
        self.tracked: ColumnChoice | None = None

    def read(self) -> None:
        while not self._cursor.done:
            self._clause()

    def _clause(self) -> None:
        cursor = self._cursor
        first = cursor.token
        for words, read in (
            ("KEYS", self._read_keys),
            ("IGNORE NULL UPDATES", self._read_nulls),
            ("APPLY AS DELETE WHEN", self._read_deletes),
            ("APPLY AS TRUNCATE WHEN", self._read_truncates),
            ("SEQUENCE BY", self._read_sequence),
            ("COLUMNS", self._read_columns),
            ("STORED AS SCD TYPE", self._read_type),
            ("TRACK HISTORY ON", self._read_tracked),
        ):
            if cursor.take(*words.split()):
                if self._allowed is not None and words not in self._allowed:
                    raise cursor.invalid(f"AUTO CDC FROM SNAPSHOT has no {words}", first)
                if words in self._seen:
                    raise cursor.invalid(f"{words} is given twice", first)
                self._seen.add(words)
                read()
                return
        raise cursor.unexpected(
            "a clause such as KEYS, SEQUENCE BY, APPLY AS DELETE WHEN or STORED AS SCD TYPE"
        )

    def _read_keys(self) -> None:
        self.keys = _names(self._cursor.group("the key columns in parentheses"))

    def _read_nulls(self) -> None:
        self.ignores_nulls = True
        if self._cursor.take("ON"):
            self.kept_if_null = self._choice()

    def _read_deletes(self) -> None:
        self.deletes = self._expression("a condition")

    def _read_truncates(self) -> None:
        self.truncates = self._expression("a condition")

    def _read_sequence(self) -> None:
        self.sequence_by = self._expression("a column")

    def _read_columns(self) -> None:
        self.columns = self._choice()

    def _read_type(self) -> None:
        self.scd_type = self._cursor.next().value
        if self.scd_type not in ("1", "2"):
            raise self._cursor.invalid("expected 1 or 2", self._cursor.tokens[self._cursor.index - 1])

    def _read_tracked(self) -> None:
        self.tracked = self._choice()

    def _expression(self, what: str) -> str:
        found = self._cursor.until(self._at_clause())
        if found.done:
            raise found.unexpected(what)
        return found.rest

    def _choice(self) -> ColumnChoice | None:
        """The columns of ``(a, b)``, ``a, b`` or ``* EXCEPT (a, b)``; ``None`` for ``*`` alone."""
        cursor = self._cursor
        if cursor.take_symbol("*"):
            if not cursor.take("EXCEPT"):
                return None
            return ColumnChoice(excluded=_names(cursor.group("the columns in parentheses")))
        if cursor.at_symbol("("):
            return ColumnChoice(included=_names(cursor.group("the columns in parentheses")))
        return ColumnChoice(included=_names(cursor.until(self._at_clause())))

    def _at_clause(self) -> Callable[[], bool]:
        return lambda: any(self._cursor.at(*words) for words in _CLAUSES)


def _names(cursor: Cursor) -> Columns:
    found = []
    if cursor.done:
        raise cursor.unexpected("a column")
    for item in cursor.items():
        found.append(".".join(item.name("a column")))
        if not item.done:
            raise item.unexpected("a comma")
    return tuple(found)
