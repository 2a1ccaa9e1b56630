"""The statements of `headrace sql` that SQL files do not have: tables, scans and streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

from headrace.errors import FeatureUnsupportedError, SourceLocation
from headrace.syntax.statements import CreateStored, TableClauses, read_properties
from headrace.syntax.tokens import Cursor, Token, quote_string

Kind = Literal["table", "scan", "stream"]
Verb = Literal["DESCRIBE", "STOP", "DROP"]
_USING = {"kafka": True, "delta": False}


@dataclass(frozen=True, kw_only=True)
class CreateTable(CreateStored):
    """``CREATE TABLE name USING kafka OPTIONS (..)``, or ``USING delta``."""

    kind: ClassVar[Kind] = "table"
    is_kafka: bool  # whether the table is the topics of ``USING kafka``; otherwise it is a Delta table
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    path: str | None = None  # the folder of ``LOCATION``
    if_not_exists: bool = False  # whether a table of the same name is kept


@dataclass(frozen=True, kw_only=True)
class CreateScan:
    """``CREATE SCAN name ON table USING STREAM OPTIONS (..)``."""

    kind: ClassVar[Kind] = "scan"
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

    kind: ClassVar[Kind] = "stream"
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
    pass


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
    if cursor.at("CREATE", "TABLE"):
        return _table(cursor)
    if cursor.at("CREATE", "SCAN"):
        return _scan(cursor)
    if cursor.at("CREATE", "STREAM"):
        return _stream(cursor)
    if cursor.at("INSERT") or cursor.at("MERGE", "INTO"):
        return _write(cursor, None, cursor.locate(cursor.token))
    if cursor.take("SHOW", "STREAMS"):
        cursor.end()
        return ShowStreams()
    if cursor.take("DESCRIBE", "STREAM") or cursor.take("DESC", "STREAM"):
        return _on_definition(cursor, "DESCRIBE", "stream")
    if cursor.take("STOP", "STREAM"):
        return _on_definition(cursor, "STOP", "stream")
    for kind in ("stream", "scan", "table"):
        if cursor.take("DROP", kind.upper()):
            return _on_definition(cursor, "DROP", kind)
    return None


def _table(cursor: Cursor) -> CreateTable:
    cursor.expect("CREATE", "TABLE")
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    location, name = cursor.named("a name")
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
    cursor.end()
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
    cursor.expect("CREATE", "SCAN")
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    location, name = _one_part(cursor, "the name of the scan")
    cursor.expect("ON")
    table_location, table = cursor.named("a table")
    cursor.expect("USING")
    streaming = cursor.take("STREAM")
    if not streaming and not cursor.take("BATCH"):
        raise cursor.unexpected("STREAM or BATCH")
    scan = CreateScan(
        name=name,
        location=location,
        table=table,
        table_location=table_location,
        streaming=streaming,
        options=read_properties(cursor) if cursor.take("OPTIONS") else {},
        if_not_exists=if_not_exists,
    )
    cursor.end()
    return scan


def _stream(cursor: Cursor) -> CreateStream:
    cursor.expect("CREATE", "STREAM")
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    location, name = _one_part(cursor, "the name of the stream")
    options = read_properties(cursor) if cursor.take("OPTIONS") else {}
    cursor.take("AS")
    return _write(cursor, name, location, options, if_not_exists=if_not_exists)


def _write(
    cursor: Cursor,
    name: str | None,
    location: SourceLocation,
    options: Mapping[str, str] | None = None,
    *,
    if_not_exists: bool = False,
) -> CreateStream:
    given = options or {}
    stream = partial(CreateStream, name=name, location=location, options=given, if_not_exists=if_not_exists)
    if cursor.take("MERGE", "INTO"):
        at, target = cursor.named("a table")
        query, merge = parse_merge(cursor, target)
        return stream(target=target, target_location=at, query=query, merge=merge)
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
    at, target = cursor.named("a table")
    columns: tuple[str, ...] = ()
    following = cursor.tokens[cursor.index + 1 : cursor.index + 2]
    is_query = bool(following) and following[0].is_word("SELECT", "WITH", "FROM")
    if cursor.at_symbol("(") and not is_query:
        columns = tuple(item.name("a column")[-1] for item in cursor.group("a list of columns").items())
    by_name = cursor.take("BY", "NAME")
    if cursor.at("VALUES"):
        raise cursor.unsupported("INSERT INTO .. VALUES", "produce the rows to a topic: headrace produce")
    return stream(target=target, target_location=at, query=cursor.query(), columns=columns, by_name=by_name)


def _on_definition(cursor: Cursor, verb: Verb, kind: Kind) -> OnDefinition:
    if_exists = cursor.take("IF", "EXISTS")
    location, name = cursor.named(f"the name of the {kind}")
    cursor.end()
    return OnDefinition(verb=verb, kind=kind, name=name, location=location, if_exists=if_exists)


def _one_part(cursor: Cursor, what: str) -> tuple[SourceLocation, str]:
    first = cursor.token
    location, name = cursor.named(what)
    if len(name) > 1:
        raise cursor.invalid(f"{what} has one part, without a schema", first)
    return location, name[0]


_FORM = (
    "write MERGE INTO t USING source ON t.key = source.key [WHEN MATCHED AND condition THEN DELETE] "
    "WHEN MATCHED THEN UPDATE * WHEN NOT MATCHED THEN INSERT *"
)
_OTHER_KEYS = "MERGE ON anything but equal columns of the same names"
_NEGATED = {"=": ("<>", "!="), "==": ("<>", "!="), "<>": ("=", "=="), "!=": ("=", "==")}


@dataclass(frozen=True, kw_only=True)
class Merge:
    keys: tuple[str, ...]
    # The condition of ``THEN DELETE`` over columns of the source; ``None`` without one.
    deletes: str | None = None


def parse_merge(cursor: Cursor, target: tuple[str, ...]) -> tuple[Cursor, Merge]:
    of_target = _alias(cursor, target[-1], "USING")
    cursor.expect("USING")
    source, name = _merge_source(cursor)
    of_source = _alias(cursor, name, "ON")
    cursor.expect("ON")
    keys = _keys(cursor.until(lambda: cursor.at("WHEN")), of_target, of_source)
    deletes: tuple[Token, ...] | None = None
    updates = inserts = False
    while not cursor.done:
        first = cursor.token
        cursor.expect("WHEN")
        matched = not cursor.take("NOT")
        cursor.expect("MATCHED")
        if cursor.take("BY", "SOURCE"):
            raise _refused(cursor, "WHEN NOT MATCHED BY SOURCE", first)
        cursor.take("BY", "TARGET")
        only_if = cursor.until(lambda: cursor.at("THEN")) if cursor.take("AND") else None
        cursor.expect("THEN")
        if matched and cursor.take("DELETE"):
            if only_if is None or deletes is not None or updates:
                raise _refused(cursor, "THEN DELETE without a condition, or behind UPDATE", first)
            deletes = _columns_of(only_if, of_target, of_source)
        elif matched and cursor.at("UPDATE"):
            cursor.next()
            cursor.take("SET")
            if not cursor.take_symbol("*"):
                raise _refused(cursor, "UPDATE of single columns", cursor.token)
            if only_if is not None or updates:
                raise _refused(cursor, "UPDATE with a condition", first)
            updates = True
        elif not matched and cursor.take("INSERT"):
            if not cursor.take_symbol("*"):
                raise _refused(cursor, "INSERT of single columns", cursor.token)
            if inserts or (only_if is not None and not _negates(only_if, of_target, of_source, deletes)):
                raise _refused(cursor, "INSERT with a condition", first)
            inserts = True
        else:
            raise cursor.unexpected("UPDATE *, DELETE or INSERT *")
    if not (updates and inserts):
        missing = "WHEN NOT MATCHED THEN INSERT *" if updates else "WHEN MATCHED THEN UPDATE *"
        raise _refused(cursor, f"MERGE without {missing}", cursor.tokens[0])
    return source, Merge(keys=keys, deletes=None if deletes is None else _condition_text(deletes))


def _merge_source(cursor: Cursor) -> tuple[Cursor, str]:
    """The source, and the name that its columns have without an alias."""
    if not cursor.at_symbol("("):
        first = cursor.index
        name = cursor.name("a scan, or a query in parentheses")
        return Cursor(cursor.text, cursor.tokens[first : cursor.index], cursor.token), name[-1]
    return cursor.group("a query"), ""


def _alias(cursor: Cursor, name: str, before: str) -> str:
    """The name of a relation behind its optional alias."""
    if cursor.take("AS") or not cursor.at(before):
        return cursor.name("an alias")[-1]
    return name


def _keys(condition: Cursor, target: str, source: str) -> tuple[str, ...]:
    first = condition.token
    if condition.at_symbol("(") and condition.tokens[-1].is_symbol(")"):
        condition = condition.group("a condition")
    keys = []
    while True:
        left = condition.name("a column")
        if not (condition.take_symbol("=") or condition.take_symbol("==")):
            raise _refused(condition, _OTHER_KEYS, condition.token)
        right = condition.name("a column")
        if left[0].casefold() == source.casefold():
            left, right = right, left
        same = left[-1].casefold() == right[-1].casefold() and len(left) == len(right) == 2
        if not same or (left[0].casefold(), right[0].casefold()) != (target.casefold(), source.casefold()):
            raise _refused(condition, _OTHER_KEYS, first)
        keys.append(right[-1])
        if condition.done:
            return tuple(keys)
        if not condition.take("AND"):
            raise _refused(condition, _OTHER_KEYS, first)


def _columns_of(condition: Cursor, target: str, source: str) -> tuple[Token, ...]:
    """A condition without the name of the source before its columns."""
    tokens, kept, index = condition.tokens, [], 0
    while index < len(tokens):
        is_path = index + 1 < len(tokens) and tokens[index + 1].is_symbol(".")
        if is_path and not (index and tokens[index - 1].is_symbol(".")):
            if tokens[index].value.casefold() == source.casefold():
                index += 2
                continue
            if tokens[index].value.casefold() == target.casefold():
                raise _refused(condition, "a column of the target in a condition", tokens[index])
        kept.append(tokens[index])
        index += 1
    return tuple(kept)


def _negates(condition: Cursor, target: str, source: str, deletes: Sequence[Token] | None) -> bool:
    """Whether a condition is the negation of another one, as far as its tokens show."""
    if deletes is None:
        return False
    found = [_plain(one) for one in _columns_of(condition, target, source)]
    other = [_plain(one) for one in deletes]
    if found in (["NOT", *other], ["NOT", "(", *other, ")"]):
        return len(found) > len(other) + 1 or not {"AND", "OR"}.intersection(other)
    signs = [at for at, one in enumerate(other) if one in _NEGATED]
    if len(signs) != 1 or {"AND", "OR", "NOT"}.intersection(other):
        return False
    at = signs[0]
    return any(found == [*other[:at], sign, *other[at + 1 :]] for sign in _NEGATED[other[at]])


def _plain(token: Token) -> str:
    return token.value.upper() if token.kind == "word" else token.value


def _condition_text(tokens: Sequence[Token]) -> str:
    written = {"string": quote_string, "name": "`{}`".format}
    return " ".join(written.get(one.kind, str)(one.value) for one in tokens).replace(" . ", ".")


def _refused(cursor: Cursor, what: str, token: Token) -> FeatureUnsupportedError:
    return cursor.unsupported(what, _FORM, token=token)
