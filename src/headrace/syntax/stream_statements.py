"""The statements of `headrace sql` that SQL files do not have: tables, scans and streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from headrace.errors import SourceLocation
from headrace.syntax.merge_statement import Merge, parse_merge
from headrace.syntax.statements import TableClauses, read_properties
from headrace.syntax.tokens import Cursor, Token

Kind = Literal["table", "scan", "stream"]
Verb = Literal["DESCRIBE", "STOP", "DROP"]
_Any = TypeVar("_Any")
_USING = {"kafka": True, "delta": False}


@dataclass(frozen=True, kw_only=True)
class CreateTable:
    """``CREATE TABLE name USING kafka OPTIONS (..)``, or ``USING delta``."""

    name: tuple[str, ...]
    location: SourceLocation
    is_kafka: bool  # whether the table is the topics of ``USING kafka``; otherwise it is a Delta table
    columns: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    path: str | None = None  # the folder of ``LOCATION``
    partition_cols: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False  # whether a table of the same name is kept


@dataclass(frozen=True, kw_only=True)
class CreateScan:
    """``CREATE SCAN name ON table USING STREAM OPTIONS (..)``."""

    name: str
    location: SourceLocation
    table: tuple[str, ...]
    table_location: SourceLocation
    streaming: bool = True  # whether the scan is a stream; ``USING BATCH`` reads what the table holds
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    if_not_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class CreateStream:
    """``CREATE STREAM name OPTIONS (..) INSERT INTO ..``, and ``INSERT`` and ``MERGE`` alone."""

    name: str | None  # the stream's name; ``None`` for a statement without ``CREATE STREAM``
    location: SourceLocation  # the name's location, else that of the first word
    target: tuple[str, ...]  # the parts of the table's name
    target_location: SourceLocation
    query: Cursor  # the rows to insert; of a ``MERGE``, its source: a name, or a query in parentheses
    columns: tuple[str, ...] = ()  # the columns of ``INSERT INTO t (columns)``
    by_name: bool = False
    merge: Merge | None = None  # the keys and conditions of a ``MERGE``
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    if_not_exists: bool = False


@dataclass(frozen=True)
class ShowStreams:
    """``SHOW STREAMS``."""


@dataclass(frozen=True, kw_only=True)
class OnDefinition:
    """``DESCRIBE``, ``STOP`` or ``DROP`` of a stream, and ``DROP`` of a scan or a table."""

    verb: Verb
    kind: Kind
    name: tuple[str, ...]
    location: SourceLocation
    if_exists: bool = False


Definition = CreateTable | CreateScan | CreateStream
ShellStatement = Definition | ShowStreams | OnDefinition


def parse_stream_statement(cursor: Cursor) -> ShellStatement | None:
    """The statement of a cursor; ``None`` if it is not one of this module.

    Raises:
        SqlInvalidError: It is not complete, or has a word in the wrong place.
        FeatureUnsupportedError: The shell does not support this form.
    """
    if cursor.at("CREATE", "TABLE"):
        return _ended(cursor, _table(cursor))
    if cursor.at("CREATE", "SCAN"):
        return _ended(cursor, _scan(cursor))
    if cursor.at("CREATE", "STREAM"):
        return _stream(cursor)
    if cursor.at("INSERT") or cursor.at("MERGE", "INTO"):
        return _write(cursor, None, _here(cursor), {}, if_not_exists=False)
    if cursor.take("SHOW", "STREAMS"):
        return _ended(cursor, ShowStreams())
    if cursor.take("DESCRIBE", "STREAM") or cursor.take("DESC", "STREAM"):
        return _on_definition(cursor, "DESCRIBE", "stream")
    if cursor.take("STOP", "STREAM"):
        return _on_definition(cursor, "STOP", "stream")
    for kind in ("stream", "scan", "table"):
        if cursor.take("DROP", kind.upper()):
            return _on_definition(cursor, "DROP", kind)
    return None


def kind_of(definition: Definition) -> Kind:
    """What a definition defines."""
    match definition:
        case CreateTable():
            return "table"
        case CreateScan():
            return "scan"
        case CreateStream():
            return "stream"


def _table(cursor: Cursor) -> CreateTable:
    if_not_exists = _create(cursor, "TABLE")
    location, name = _named(cursor, "a name")
    clauses = TableClauses(cursor, "streaming table")
    if cursor.at_symbol("("):
        clauses.column_list()
    options: dict[str, str] = {}
    path = None
    while not cursor.done:
        if cursor.take("OPTIONS"):
            options = read_properties(cursor)
        elif cursor.take("LOCATION"):
            path = cursor.string("a path")
        elif cursor.at("AS"):
            raise cursor.unsupported(
                "CREATE TABLE .. AS",
                "create the table, and fill it with a stream: INSERT INTO name SELECT .. FROM scan",
            )
        else:
            clauses.clause()
    found = clauses.found()
    if found.pop("constraints"):
        raise cursor.unsupported("CONSTRAINT in a table of headrace sql", "declare the table in an SQL file")
    found.pop("ignored")
    using = str(found.pop("format", "delta")).lower()
    if using not in _USING:
        raise cursor.unsupported(
            f"CREATE TABLE .. USING {using}",
            "write USING kafka or USING delta",
            "other sources are read by a pipeline: STREAM read_files(..) in an SQL file",
        )
    table = CreateTable(
        name=name,
        location=location,
        is_kafka=_USING[using],
        options=options,
        path=path,
        if_not_exists=if_not_exists,
        **found,
    )
    if not table.is_kafka and options:
        raise cursor.unsupported("OPTIONS of a Delta table", "write TBLPROPERTIES (name = value)")
    if table.is_kafka and (table.columns or path or table.partition_cols or table.cluster_by):
        raise cursor.unsupported(
            "columns, LOCATION, PARTITIONED BY and CLUSTER BY of a Kafka table",
            "remove them: its columns are key, value, topic, partition, offset, timestamp, timestampType",
        )
    return table


def _scan(cursor: Cursor) -> CreateScan:
    if_not_exists = _create(cursor, "SCAN")
    location, name = _one_part(cursor, "the name of the scan")
    cursor.expect("ON")
    table_location, table = _named(cursor, "a table")
    cursor.expect("USING")
    streaming = cursor.take("STREAM")
    if not streaming and not cursor.take("BATCH"):
        raise cursor.unexpected("STREAM or BATCH")
    return CreateScan(
        name=name,
        location=location,
        table=table,
        table_location=table_location,
        streaming=streaming,
        options=read_properties(cursor) if cursor.take("OPTIONS") else {},
        if_not_exists=if_not_exists,
    )


def _stream(cursor: Cursor) -> CreateStream:
    if_not_exists = _create(cursor, "STREAM")
    location, name = _one_part(cursor, "the name of the stream")
    options = read_properties(cursor) if cursor.take("OPTIONS") else {}
    cursor.take("AS")
    return _write(cursor, name, location, options, if_not_exists=if_not_exists)


def _write(
    cursor: Cursor,
    name: str | None,
    location: SourceLocation,
    options: Mapping[str, str],
    *,
    if_not_exists: bool,
) -> CreateStream:
    if cursor.take("MERGE", "INTO"):
        target_location, target = _named(cursor, "a table")
        query, merge = parse_merge(cursor, target)
        return CreateStream(
            name=name,
            location=location,
            target=target,
            target_location=target_location,
            query=query,
            merge=merge,
            options=options,
            if_not_exists=if_not_exists,
        )
    if not cursor.take("INSERT"):
        raise cursor.unexpected("INSERT INTO or MERGE INTO")
    if not cursor.take("INTO"):
        raise cursor.unsupported(
            f"INSERT {cursor.token.value.upper()}", "write INSERT INTO: a stream appends its rows"
        )
    if cursor.at("ONCE"):
        raise cursor.unsupported(
            "INSERT INTO ONCE", "write CREATE STREAM name OPTIONS (triggerType 'AvailableNow')"
        )
    cursor.take("TABLE")
    target_location, target = _named(cursor, "a table")
    columns: tuple[str, ...] = ()
    if cursor.at_symbol("(") and not _is_query(cursor):
        columns = tuple(item.name("a column")[-1] for item in cursor.group("a list of columns").items())
    by_name = cursor.take("BY", "NAME")
    if cursor.done:
        raise cursor.unexpected("a query")
    if cursor.at("VALUES"):
        raise cursor.unsupported("INSERT INTO .. VALUES", "produce the rows to a topic: headrace produce")
    return CreateStream(
        name=name,
        location=location,
        target=target,
        target_location=target_location,
        query=Cursor(cursor.text, cursor.tokens[cursor.index :]),
        columns=columns,
        by_name=by_name,
        options=options,
        if_not_exists=if_not_exists,
    )


def _on_definition(cursor: Cursor, verb: Verb, kind: Kind) -> OnDefinition:
    if_exists = cursor.take("IF", "EXISTS")
    location, name = _named(cursor, f"the name of the {kind}")
    return _ended(
        cursor, OnDefinition(verb=verb, kind=kind, name=name, location=location, if_exists=if_exists)
    )


# -- parts


def _create(cursor: Cursor, what: str) -> bool:
    """Read ``CREATE what [IF NOT EXISTS]``; returns whether ``IF NOT EXISTS`` is there."""
    cursor.expect("CREATE", what)
    return cursor.take("IF", "NOT", "EXISTS")


def _named(cursor: Cursor, what: str) -> tuple[SourceLocation, tuple[str, ...]]:
    first = cursor.token
    name = cursor.name(what)
    return _location(cursor, first, cursor.tokens[cursor.index - 1]), name


def _one_part(cursor: Cursor, what: str) -> tuple[SourceLocation, str]:
    first = cursor.token
    location, name = _named(cursor, what)
    if len(name) > 1:
        raise cursor.invalid(f"{what} has one part, without a schema", first)
    return location, name[0]


def _is_query(cursor: Cursor) -> bool:
    """Whether a query follows the parenthesis, and not a list of columns."""
    following = cursor.tokens[cursor.index + 1 : cursor.index + 2]
    return bool(following) and following[0].is_word("SELECT", "WITH", "FROM")


def _ended(cursor: Cursor, statement: _Any) -> _Any:
    if not cursor.done:
        raise cursor.unexpected("the end of the statement")
    return statement


def _here(cursor: Cursor) -> SourceLocation:
    return _location(cursor, cursor.token, cursor.token)


def _location(cursor: Cursor, first: Token, last: Token) -> SourceLocation:
    return cursor.text.locate(first.start, last.stop - 1, None)
