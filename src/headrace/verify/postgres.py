"""Reads the batches that a PostgreSQL sink has recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.model.names import TableName
from headrace.verify.delta_log import TableLog
from headrace.verify.reader import SinkUnreadError
from headrace.verify.sink_log import build_log
from headrace.verify.stored import StoredPath

_OWN_OPTIONS = frozenset({"table", "keys", "create", "sequence_by", "url"})
"""The options of a sink that are not settings of its connection."""


def load_sink_log(
    name: TableName, options: Mapping[str, str], path: StoredPath, access: Mapping[str, Any]
) -> TableLog:
    """The commits of a sink that its database still has; raises `SinkUnreadError`. `path`: where the storage
    would have its table."""
    try:
        import psycopg
        import psycopg.conninfo
        from psycopg import sql
    except ImportError:
        raise SinkUnreadError("it needs the package psycopg: pip install 'headrace[postgres]'") from None
    schema, _, table = options["table"].rpartition(".")
    own = {key: value for key, value in options.items() if key not in _OWN_OPTIONS}
    key, names = f"{name}/{table}", {"schema": sql.Identifier(schema or "public")}
    state = sql.SQL("SELECT state FROM {schema}.headrace_sinks WHERE sink = %s").format(**names)
    batches = sql.SQL(
        "SELECT version, document FROM {schema}.headrace_batches WHERE sink = %s ORDER BY version"
    ).format(**names)
    try:
        address = psycopg.conninfo.make_conninfo(options.get("url", ""), **{"connect_timeout": "10", **own})
        with psycopg.connect(address) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            found = connection.execute(state, [key]).fetchone()
            documents = connection.execute(batches, [key]).fetchall()
            regclass = sql.Identifier(schema or "public", table).as_string(connection)
            ((oid,),) = connection.execute("SELECT to_regclass(%s)::oid::bigint", [regclass])
    except psycopg.ProgrammingError as error:
        # Without a state of the server it is about the address, and its text can have the password.
        text = str(error).splitlines()[0] if error.sqlstate else "its url is not an address"
        raise SinkUnreadError(f"PostgreSQL: {text}") from None
    except psycopg.Error as error:
        raise SinkUnreadError(f"PostgreSQL: {str(error).strip().splitlines()[0]}") from error
    if found is None:
        raise SinkUnreadError(f"{options['table']} has no state of it")
    return build_log(name, found[0], f"{found[0]['table_id']}/{oid}", dict(documents), path)
