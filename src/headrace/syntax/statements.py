"""The statements of SQL files, as Spark's declarative pipelines and Lakeflow write them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.errors import HeadraceError, MultipartFlowNameError, SourceLocation, did_you_mean
from headrace.model.declarations import Action, RefreshPolicy
from headrace.syntax.cdc_statement import CdcFlow, parse_cdc, without_live
from headrace.syntax.tokens import Cursor, Token

Kind = Literal["streaming table", "materialized view", "view"]


@dataclass(frozen=True, kw_only=True)
class Constraint:
    name: str
    condition: str
    action: Action
    location: SourceLocation


@dataclass(frozen=True, kw_only=True)
class CreateStored:
    name: tuple[str, ...]
    location: SourceLocation
    columns: str | None = None  # the column list as DDL; ``None`` if there is none
    partition_cols: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CreateDataset(CreateStored):
    """A ``CREATE`` of a streaming table, a materialized view or a view."""

    kind: Kind
    constraints: tuple[Constraint, ...] = ()
    format: str | None = None
    # Clauses that have no effect here, with their locations.
    ignored: tuple[tuple[str, SourceLocation], ...] = ()
    # The path of ``LOCATION`` and where it is written.
    path: tuple[str, SourceLocation] | None = None
    query: Cursor | None = None  # the text after ``AS``; ``None`` if there is none
    is_private: bool = False  # whether other pipelines should not read the table, or cannot read the view
    refresh_policy: RefreshPolicy | None = None  # of a materialized view
    cdc: CdcFlow | None = None  # the flow of ``FLOW AUTO CDC``, if the statement has one


@dataclass(frozen=True, kw_only=True)
class InsertFlow:
    """``CREATE FLOW name AS INSERT INTO [ONCE] target BY NAME query``."""

    name: str
    location: SourceLocation
    target: tuple[str, ...]
    query: Cursor
    once: bool = False


@dataclass(frozen=True)
class SetSetting:
    """``SET key = value``; ``None`` for ``SET key``, which only shows the value."""

    key: str
    value: str | None


@dataclass(frozen=True)
class UseNames:
    """``USE CATALOG``, ``SET CATALOG`` and ``USE SCHEMA``: where later names of the file begin."""

    catalog: str | None
    schema: str | None


@dataclass(frozen=True, kw_only=True)
class AlterColumns:
    """``ALTER TABLE name RENAME COLUMN old TO new``, or ``DROP COLUMN``: a change of an existing table."""

    name: tuple[str, ...]
    location: SourceLocation
    renamed: Mapping[str, str] = field(default_factory=dict)  # the new names of columns, by their old names
    dropped: tuple[str, ...] = ()


Statement = CreateDataset | InsertFlow | CdcFlow | SetSetting | UseNames | AlterColumns


def parse_statement(cursor: Cursor) -> Statement:
    if cursor.at("CREATE"):
        return _create(cursor)
    if cursor.at("AUTO", "CDC") or cursor.at("APPLY", "CHANGES"):
        return parse_cdc(cursor, None)
    if cursor.at("SET", "CATALOG") or cursor.at("USE"):
        return _use(cursor)
    if cursor.at("SET"):
        found = _SETTING.fullmatch(cursor.rest)
        if found is None:
            raise cursor.unsupported("this form of SET", "write SET name = value")
        return SetSetting(found[1], found[2])
    if cursor.at("ALTER"):
        return _alter(cursor)
    first = cursor.token.value.upper()
    _check_spelling(cursor, ("CREATE", "ALTER"))
    raise cursor.unsupported(
        f"the statement {first} in an SQL file",
        "declare a table: CREATE STREAMING TABLE name AS ..., or CREATE MATERIALIZED VIEW name AS ...",
    )


_CREATED = {
    "VOLUME": "remove it, and map its path in the spec:   paths: {/Volumes/CATALOG/SCHEMA/NAME: ./volume}",
    "SCHEMA": "remove it: a schema exists when a table is in it",
    "DATABASE": "remove it: a schema exists when a table is in it",
    "CATALOG": "remove it, and name the catalog in the spec:   catalog: NAME",
    "FUNCTION": "write its expression in the query, or a Python function with spark.udf.register",
    "": "remove it: a pipeline declares tables, views and flows only",
}
"""What to do about statements that create something else."""

_FLAGS = ("PRIVATE", "TEMPORARY", "TEMP", "STREAMING", "INCREMENTAL", "LIVE", "MATERIALIZED")
_PRIVATE = {"PRIVATE", "TEMPORARY", "TEMP"}


def _create(cursor: Cursor) -> CreateDataset | InsertFlow | CdcFlow:
    cursor.expect("CREATE")
    if cursor.take("OR") and not (cursor.take("REFRESH") or cursor.take("REPLACE")):
        raise cursor.unexpected("REFRESH or REPLACE")
    flags: dict[str, Token] = {}
    while cursor.token.is_word(*_FLAGS):
        flags[cursor.token.value.upper()] = cursor.token
        cursor.next()
    if cursor.take("FLOW"):
        return _flow(cursor)
    kind = _kind(cursor, flags)
    cursor.next()
    cursor.take("IF", "NOT", "EXISTS")
    location, name = cursor.named("a name")
    create = TableClauses(cursor, kind)
    if cursor.at_symbol("("):
        create.column_list()
    while not (cursor.done or cursor.at("AS") or cursor.at("FLOW", "AUTO")):
        create.clause()
    query, cdc = None, None
    if kind == "streaming table" and cursor.at("FLOW", "AUTO"):
        cursor.expect("FLOW")
        cdc = parse_cdc(cursor, None, name)
    elif cursor.take("AS"):
        query = cursor.query()
    elif kind != "streaming table":
        raise cursor.unexpected("AS and a query")
    return CreateDataset(
        kind=kind,
        name=name,
        location=location,
        query=query,
        is_private=not flags.keys().isdisjoint(_PRIVATE | ({"LIVE"} if kind == "view" else set())),
        cdc=cdc,
        **create.found(),
    )


def _kind(cursor: Cursor, flags: Mapping[str, Token]) -> Kind:
    streams = not flags.keys().isdisjoint({"STREAMING", "INCREMENTAL"})
    if cursor.at("TABLE") and "MATERIALIZED" not in flags:
        if streams:
            return "streaming table"
        if "LIVE" in flags:
            return "materialized view"
        raise cursor.unsupported(
            "CREATE TABLE in an SQL file",
            "write CREATE STREAMING TABLE if its query is a stream, else CREATE MATERIALIZED VIEW",
        )
    if cursor.at("VIEW"):
        return "materialized view" if "MATERIALIZED" in flags else "view"
    _check_spelling(cursor, (*_FLAGS, "TABLE", "VIEW", "FLOW"))
    if cursor.token.kind == "word" and (not flags or cursor.token.is_word("FUNCTION")):
        word = cursor.token.value.upper()
        word = f"{word} VOLUME" if cursor.at("EXTERNAL", "VOLUME") else word
        raise cursor.unsupported(
            f"CREATE {word} in an SQL file", _CREATED.get(word.split()[-1], _CREATED[""])
        )
    raise cursor.unexpected("TABLE, VIEW or FLOW")


def _check_spelling(cursor: Cursor, words: Sequence[str]) -> None:
    word = cursor.token.value
    if cursor.token.kind == "word" and (meant := did_you_mean(word, words)):
        raise cursor.invalid(f"unknown word `{word}`", None, *meant)


class TableClauses:
    """The parts of a ``CREATE`` behind the name."""

    def __init__(self, cursor: Cursor, kind: Kind) -> None:
        self._cursor = cursor
        self._kind = kind
        self._columns: list[str] = []
        self._constraints: list[Constraint] = []
        self._clauses: dict[str, Any] = {}
        self.ignored: list[tuple[str, SourceLocation]] = []

    def found(self) -> dict[str, Any]:
        return {
            "columns": ", ".join(self._columns) or None,
            "constraints": tuple(self._constraints),
            "ignored": tuple(self.ignored),
            **self._clauses,
        }

    def column_list(self) -> None:
        self.read_columns(self._cursor.group("a list of columns"))

    def read_columns(self, columns: Cursor) -> None:
        for item in columns.items():
            if item.done:
                raise item.unexpected("a column or CONSTRAINT")
            if not _at_constraint(item):
                self._column(item.until(lambda item=item: _at_constraint(item)))  # type: ignore[misc]
            while not item.done:
                if _at_key(item):
                    self._key(item)
                elif self._columns and _at_rest(item):
                    self._columns[-1] += f" {item.until(lambda item=item: _at_constraint(item)).rest}"  # type: ignore[misc]
                else:
                    self._constraints.append(_constraint(item))

    def _key(self, item: Cursor) -> None:
        """A primary or foreign key: for readers only, as on Databricks, where no key is enforced."""
        first = item.token
        if item.take("CONSTRAINT"):
            item.name("the name of the constraint")
        kind = item.next().value.upper()
        self._ignore(first, "FOREIGN KEY" if kind == "REFERENCES" else f"{kind} KEY")
        item.until(lambda: (_at_constraint(item) or _at_rest(item)) and not item.at("REFERENCES"))

    def _column(self, item: Cursor) -> None:
        name = item.token
        if self._kind == "view":
            raise item.unsupported(
                "the column list of a view", "name the columns in the query: SELECT x AS name"
            )
        text = item.rest
        item.name("a column")
        if item.done or item.at("COMMENT") or item.at("NOT"):
            raise item.unsupported(
                "a column without a type", f"add the type: {name.value} STRING", token=name
            )
        for before, token, after in zip(item.tokens, item.tokens[1:], (*item.tokens[2:], None), strict=False):
            # Fields of a struct may have these names.
            is_field = any(map(before.is_symbol, "<,")) or (after is not None and after.is_symbol(":"))
            if token.is_word(*_COLUMN_REMEDIES) and not is_field:
                has_identity = any(one.is_word("IDENTITY") for one in item.tokens)
                word = "IDENTITY" if has_identity else token.value.upper()
                raise item.unsupported(f"{word} in a column", _COLUMN_REMEDIES[word], token=token)
        self._columns.append(text)

    def clause(self) -> None:
        cursor = self._cursor
        first = cursor.token
        if cursor.take("USING"):
            self._once(first, "format", cursor.next().value)
        elif cursor.take("PARTITIONED", "BY"):
            self._once(first, "partition_cols", _columns(cursor))
        elif cursor.take("CLUSTER", "BY"):
            if cursor.at("AUTO") or cursor.at("NONE"):
                self._ignore(first, f"CLUSTER BY {cursor.next().value.upper()}")
            else:
                self._once(first, "cluster_by", _columns(cursor))
        elif cursor.take("COMMENT"):
            self._once(first, "comment", cursor.string("the text of the comment"))
        elif cursor.take("LOCATION"):
            self._once(first, "path", (cursor.string("a path"), cursor.locate(first)))
        elif cursor.take("TBLPROPERTIES"):
            self._once(first, "properties", read_properties(cursor))
        elif cursor.take("REFRESH", "POLICY"):
            self._once(first, "refresh_policy", self._policy())
        elif cursor.at("SCHEDULE") or cursor.at("TRIGGER", "ON"):
            clause = cursor.next().value.upper()
            # `SCHEDULE REFRESH EVERY 1 DAY` has the same word.
            cursor.until(lambda: cursor.token.is_word(*_CLAUSES) or cursor.at("REFRESH", "POLICY"))
            self._ignore(first, clause)
        else:
            raise self._refused()

    def _policy(self) -> RefreshPolicy:
        cursor = self._cursor
        if self._kind != "materialized view":
            raise cursor.unsupported("a refresh policy here", "only a materialized view has one")
        if cursor.take("INCREMENTAL"):
            return "incremental strict" if cursor.take("STRICT") else "incremental"
        if cursor.take("AUTO"):
            return "auto"
        if cursor.take("FULL"):
            return "full"
        raise cursor.unexpected("AUTO, INCREMENTAL, INCREMENTAL STRICT or FULL")

    def _refused(self) -> HeadraceError:
        cursor = self._cursor
        for words, remedies in _REFUSED.items():
            if cursor.at(*words.split()):
                return cursor.unsupported(words, *remedies)
        return cursor.unexpected(
            "AS, or a clause such as COMMENT, PARTITIONED BY, CLUSTER BY or TBLPROPERTIES"
        )

    def _once(self, first: Token, name: str, value: object) -> None:
        if name in self._clauses:
            raise self._cursor.invalid(f"{first.value.upper()} is given twice", first)
        if self._kind == "view" and name in ("format", "partition_cols", "cluster_by", "path"):
            raise self._cursor.invalid(f"a view has no {first.value.upper()}: its rows are not stored", first)
        self._clauses[name] = value

    def _ignore(self, first: Token, clause: str) -> None:
        self.ignored.append((clause, self._cursor.locate(first)))


_CLAUSES = ("AS", "USING", "PARTITIONED", "CLUSTER", "COMMENT", "TBLPROPERTIES", "SCHEDULE", "LOCATION")
_REFUSED: Mapping[str, tuple[str, ...]] = {
    "OPTIONS": (),
    "WITH": (),
    "DEFAULT COLLATION": (),
    "FLOW": ("declare the flow in a statement of its own: CREATE FLOW name AS ...",),
}


_COLUMN_REMEDIES: Mapping[str, str] = {
    "GENERATED": "compute the column in the query: SELECT .., expression AS name",
    "IDENTITY": "remove the column, or compute a key in the query: uuid(), or a hash of other columns",
    "DEFAULT": "give the value in the query: SELECT .., coalesce(name, VALUE) AS name",
    "CHECK": "write CONSTRAINT name EXPECT (condition) ON VIOLATION FAIL UPDATE",
    "MASK": "compute the masked value in the query: SELECT .., function(name) AS name",
}

HAS_CLAUSES = re.compile(
    rf"\b(?:CONSTRAINT|(?:PRIMARY|FOREIGN)\s+KEY|REFERENCES|{'|'.join(_COLUMN_REMEDIES)})\b", re.IGNORECASE
)
"""Finds the words of constraints and of other clauses that Spark's parser of schemas does not know."""


def _at_constraint(item: Cursor) -> bool:
    return item.at("CONSTRAINT") or _at_key(item)


def _at_rest(item: Cursor) -> bool:
    """Whether a part of a column follows that can stand behind its keys. ``NOT ENFORCED`` is of a key."""
    return item.at("COMMENT") or item.at("NOT", "NULL")


def _at_key(item: Cursor) -> bool:
    rest = item.tokens[item.index :]
    if item.at("CONSTRAINT"):
        rest = rest[2:]
    if len(rest) > 1 and rest[0].is_word("REFERENCES"):
        # A column can have this name.
        return item.index > 0
    return len(rest) > 1 and rest[0].is_word("PRIMARY", "FOREIGN") and rest[1].is_word("KEY")


def _constraint(item: Cursor) -> Constraint:
    item.expect("CONSTRAINT")
    named = item.token
    name = ".".join(item.name("the name of the constraint"))
    if not item.at("EXPECT"):
        raise item.unsupported(
            f"the constraint {item.token.value.upper()}",
            "remove it, or write EXPECT (condition) ON VIOLATION FAIL UPDATE",
        )
    item.expect("EXPECT")
    condition = item.group("a condition in parentheses")
    if condition.done:
        raise condition.unexpected("a condition")
    action: Action = "warn"
    if item.take("ON", "VIOLATION"):
        for words, meaning in _ACTIONS.items():
            if item.take(*words.split()):
                action = meaning
                break
        else:
            raise item.unexpected(", ".join(_ACTIONS))
    if not (item.done or item.at("CONSTRAINT")):
        raise item.unexpected("a comma")
    return Constraint(name=name, condition=condition.rest, action=action, location=item.locate(named))


_ACTIONS: Mapping[str, Action] = {"DROP ROW": "drop", "FAIL UPDATE": "fail", "QUARANTINE ROW": "quarantine"}


def _columns(cursor: Cursor) -> tuple[str, ...]:
    found = []
    for item in cursor.group("a list of columns").items():
        found.append(".".join(item.name("a column")))
        if not item.done:
            raise item.unsupported(
                "an expression or a type in a list of columns", "name columns of the query"
            )
    return tuple(found)


def read_properties(cursor: Cursor) -> dict[str, str]:
    """The properties of ``TBLPROPERTIES``; keys and values may be without quotes."""
    found: dict[str, str] = {}
    for item in cursor.group("a list of properties").items():
        is_quoted = item.token.kind == "string"
        key = item.next().value if is_quoted else ".".join(item.name("a property"))
        item.take_symbol("=")
        if item.done:
            raise item.unexpected("a value")
        found[key] = item.next().value if len(item.tokens) - item.index == 1 else item.rest
    return found


def _flow(cursor: Cursor) -> InsertFlow | CdcFlow:
    location, parts = cursor.named("the name of the flow")
    name = ".".join(parts)
    if len(parts) > 1:
        raise MultipartFlowNameError(
            f"the flow name `{name}` has {len(parts)} parts",
            location=location,
            remedies=[f"write CREATE FLOW {parts[-1]}"],
            params={"flow": name},
        )
    if cursor.take("COMMENT"):
        cursor.string("the text of the comment")
    cursor.expect("AS")
    if cursor.at("AUTO", "CDC") or cursor.at("APPLY", "CHANGES"):
        return parse_cdc(cursor, (name, location))
    cursor.expect("INSERT", "INTO")
    once = cursor.take("ONCE")
    cursor.take("TABLE")
    target = without_live(cursor.name("a table"))
    if not cursor.take("BY", "NAME"):
        raise cursor.unsupported(
            "INSERT INTO without BY NAME",
            f"write INSERT INTO {'.'.join(target)} BY NAME: columns go to the columns of their names",
        )
    return InsertFlow(name=name, location=location, target=target, query=cursor.query(), once=once)


_SETTING = re.compile(r"SET\s+`?([\w.:-]+)`?\s*(?:=\s*(.*))?", re.IGNORECASE | re.DOTALL)


def _use(cursor: Cursor) -> UseNames:
    cursor.next()
    is_catalog = cursor.take("CATALOG")
    _ = is_catalog or cursor.take("SCHEMA") or cursor.take("DATABASE") or cursor.take("NAMESPACE")
    parts = (cursor.string("a name"),) if cursor.token.kind == "string" else cursor.name("a name")
    cursor.end()
    if len(parts) > (1 if is_catalog else 2):
        raise cursor.invalid(
            f"`{'.'.join(parts)}` is not the name of a {'catalog' if is_catalog else 'schema'}"
        )
    if is_catalog:
        return UseNames(parts[0], None)
    return UseNames(parts[0] if len(parts) == 2 else None, parts[-1])


def _alter(cursor: Cursor) -> AlterColumns:
    cursor.expect("ALTER")
    cursor.take("STREAMING")
    if not cursor.take("TABLE"):
        raise cursor.unsupported(f"ALTER {cursor.token.value.upper()} in an SQL file")
    location, name = cursor.named("a table")
    renamed: dict[str, str] = {}
    dropped: tuple[str, ...] = ()
    if cursor.take("RENAME", "COLUMN"):
        old = ".".join(cursor.name("a column"))
        cursor.expect("TO")
        renamed = {old: ".".join(cursor.name("the new name"))}
    elif cursor.take("DROP", "COLUMN") or cursor.take("DROP", "COLUMNS"):
        cursor.take("IF", "EXISTS")
        dropped = _columns(cursor) if cursor.at_symbol("(") else (".".join(cursor.name("a column")),)
    elif cursor.at("ALTER", "COLUMN") or cursor.at("CHANGE", "COLUMN"):
        raise cursor.unsupported(
            "ALTER COLUMN in an SQL file",
            "change the type in the query, and let Delta widen the column: "
            "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
        )
    else:
        raise cursor.unsupported(
            f"ALTER TABLE .. {cursor.token.value.upper()} in an SQL file",
            "change the CREATE statement; ALTER TABLE can only RENAME COLUMN and DROP COLUMN",
        )
    cursor.end()
    return AlterColumns(name=without_live(name), location=location, renamed=renamed, dropped=dropped)
