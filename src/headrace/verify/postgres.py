"""Reads the batches that a PostgreSQL sink has recorded, and some of its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.model.names import TableName
from headrace.verify.delta_log import TableLog
from headrace.verify.reader import CannotJudgeError, SinkUnreadError
from headrace.verify.sink_log import build_log
from headrace.verify.sink_rows import SinkRow, SinkRows, Wanted, texts_of
from headrace.verify.stored import StoredPath

_OWN_OPTIONS = frozenset({"table", "keys", "create", "sequence_by", "url"})
"""The options of a sink that are not settings of its connection."""
_TYPES = {
    **dict.fromkeys(("byte", "short", "integer", "long"), ("smallint", "integer", "bigint")),
    "decimal": ("numeric",),
    "double": ("double precision",),
    "string": ("text", "character varying"),
    "boolean": ("boolean",),
    "date": ("date",),
    "timestamp": ("timestamp with time zone",),
    "timestamp_ntz": ("timestamp without time zone",),
}
"""The types of PostgreSQL that keep the values of Delta's types as they are."""


def load_sink_log(
    name: TableName, options: Mapping[str, str], path: StoredPath, access: Mapping[str, Any]
) -> TableLog:
    """The commits of a sink that its database still has; raises `SinkUnreadError`. `path`: where the storage
    would have its table."""
    with _connected(options) as (connection, format):
        state = _state(name, options, connection, format)
        batches = format(
            "SELECT version, document FROM {schema}.headrace_batches WHERE sink = %s ORDER BY version"
        )
        documents = connection.execute(batches, [_key(name, options)]).fetchall()
        ((oid,),) = connection.execute(
            "SELECT to_regclass(%s)::oid::bigint", [format("{target}").as_string()]
        )
    return build_log(name, state, f"{state['table_id']}/{oid}", dict(documents), path)


def read_rows(name: TableName, options: Mapping[str, str], wanted: Wanted) -> SinkRows:
    """Rows and state of a sink in one transaction; raises `SinkUnreadError` and `CannotJudgeError`."""
    table = options["table"]
    with _connected(options) as (connection, format):
        # Without it, a policy could hide rows.
        connection.execute("SET LOCAL row_security = off")
        stored = _stored_columns(connection, format, wanted)
        if missing := [key for key in wanted.keys if key not in stored]:
            raise CannotJudgeError(f"the type of {missing[0]} in {table} changes values")
        keys, columns = [stored[key] for key in wanted.keys], list(stored)
        rows = format("SELECT {columns} FROM {target} t", columns=[one for one, _ in stored.values()])
        lists = ", ".join(f"%s::{kind}[]" for _, kind in keys)
        names = [one for one, _ in keys]
        of_keys = format(f" WHERE ({{keys}}) IN (SELECT * FROM unnest({lists}))", keys=names)
        asked = [list(values) for values in zip(*wanted.asked, strict=True)] or [[] for _ in keys]
        held = connection.execute(rows + of_keys, asked).fetchall()
        held += connection.execute(rows + format(" ORDER BY random() LIMIT %s"), [wanted.size]).fetchall()
        state = _state(name, options, connection, format)
    found, strays = dict.fromkeys(wanted.asked, SinkRow(values=None)), set()
    for row in held:
        values = dict(zip(columns, row, strict=True))
        texts = texts_of(tuple(values[one] for one in wanted.keys))
        if any(values[one] is None for one in wanted.keys) or (key := wanted.read_key(texts)) is None:
            strays.add(", ".join(texts))
        else:
            found[key] = SinkRow(values=values)
    return SinkRows(state=state, holder=table, rows=found, columns=columns, strays=strays, has_versions=False)


def _stored_columns(connection: Any, format: Any, wanted: Wanted) -> dict[str, tuple[str, str]]:
    """The name and the type in the table for each column that keeps its values."""
    asked = """
        SELECT attname, format_type(atttypid, atttypmod), EXISTS (
            SELECT FROM pg_trigger WHERE tgrelid = attrelid AND NOT tgisinternal AND tgtype & 2 = 2
        ) FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
    """
    found = connection.execute(asked, [format("{target}").as_string()]).fetchall()
    if any(has_triggers for *_, has_triggers in found):
        raise CannotJudgeError("a trigger of its table can change the rows that are written")
    types = {name: kind for name, kind, _ in found}
    stored = {}
    for column, kind in wanted.columns.items():
        # Names that were written without quotes are in lower case.
        names = [column] if column in types else [one for one in types if one.lower() == column.lower()]
        held = types[names[0]] if len(names) == 1 else ""
        # A text with a length can lose spaces at its end. Numbers with fewer decimals are refused before.
        if re.sub(r"^numeric\(.*", "numeric", held) in _TYPES.get(kind.split("(")[0], ()):
            stored[column] = names[0], held
    return stored


def _key(name: TableName, options: Mapping[str, str]) -> str:
    """The key of the sink's state."""
    return f"{name}/{options['table'].rpartition('.')[2]}"


def _state(name: TableName, options: Mapping[str, str], connection: Any, format: Any) -> Mapping[str, Any]:
    asked = format("SELECT state FROM {schema}.headrace_sinks WHERE sink = %s")
    found = connection.execute(asked, [_key(name, options)]).fetchone()
    if found is None:
        raise SinkUnreadError(f"{options['table']} has no state of it")
    state: Mapping[str, Any] = found[0]
    return state


@contextmanager
def _connected(options: Mapping[str, str]) -> Iterator[tuple[Any, Any]]:
    """A connection that sees one moment, and a function for statements with quoted names."""
    try:
        import psycopg
        import psycopg.conninfo
        from psycopg import sql
    except ImportError:
        raise SinkUnreadError("it needs the package psycopg: pip install 'headrace[postgres]'") from None
    schema, _, table = options["table"].rpartition(".")
    schema = schema or "public"

    def format(text: str, **names: list[str]) -> Any:
        given = {one: sql.SQL(", ").join(map(sql.Identifier, several)) for one, several in names.items()}
        target = sql.Identifier(schema, table)
        return sql.SQL(text).format(schema=sql.Identifier(schema), target=target, **given)

    own = {key: value for key, value in options.items() if key not in _OWN_OPTIONS}
    settings = {"connect_timeout": "10", "client_encoding": "utf8", **own}
    try:
        address = psycopg.conninfo.make_conninfo(options.get("url", ""), **settings)
        with psycopg.connect(address) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield connection, format
    except psycopg.ProgrammingError as error:
        # Without a state of the server it is about the address, and its text can have the password.
        text = str(error).splitlines()[0] if error.sqlstate else "its url is not an address"
        raise SinkUnreadError(f"PostgreSQL: {text}") from None
    except psycopg.Error as error:
        raise SinkUnreadError(f"PostgreSQL: {str(error).strip().splitlines()[0]}") from error
