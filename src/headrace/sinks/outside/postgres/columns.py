"""The columns of a sink's rows in PostgreSQL: their types, and the checks of a table before a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.sinks.outside.by_key import invalid
from headrace.sinks.outside.postgres.database import Database, StoredColumn, first_line, listed

if TYPE_CHECKING:
    import psycopg

_TYPES = {
    "byte": "smallint",
    "short": "smallint",
    "integer": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "boolean": "boolean",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
    "variant": "jsonb",
}
_WHOLE = ("smallint", "integer", "bigint", "numeric", "text")
_TAKEN = {
    **dict.fromkeys(("smallint", "integer", "bigint"), _WHOLE),
    "real": ("real", "double precision", "numeric"),
    "double precision": ("double precision", "numeric"),
    "numeric": ("numeric", "text"),
    "jsonb": ("jsonb", "json", "text"),
    "text": ("text", "character varying", "uuid", "jsonb", "json", "citext"),
}
"""The types of PostgreSQL that take the values of a type as they are, or refuse them with an error."""
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_JSON_KEYS = ("string", "long", "integer", "short", "byte")


def types_of(database: Database) -> dict[str, str]:
    """The type of PostgreSQL for each column of the rows; raises `SinkInvalidError`."""
    return {name: _type(database, name, kind) for name, kind in _kinds(database).items()}


def _kinds(database: Database) -> dict[str, Any]:
    fields = database.spec.schema["fields"]
    return {one["name"]: one["type"] for one in fields if one["name"] in database.rows.columns}


def _type(database: Database, name: str, kind: Any) -> str:
    if "%" in name:
        raise invalid(database.spec, f"its column `{name}` has a % in its name", None, "give it another name")
    if not isinstance(kind, str):
        _check_keys(database, name, kind)
        return "jsonb"
    if kind.startswith("decimal"):
        return "numeric" + kind.removeprefix("decimal")
    found = "text" if kind.startswith(("char", "varchar")) else _TYPES.get(kind)
    if found is None:
        what = f"PostgreSQL has no type for its column `{name}` ({kind})"
        raise invalid(database.spec, what, None, f"cast it in the query:   CAST({name} AS STRING)")
    return found


def _check_keys(database: Database, name: str, kind: Any) -> None:
    """Refuse maps whose keys JSON has no form for."""
    if not isinstance(kind, dict):
        return
    if kind["type"] == "map" and kind["keyType"] not in _JSON_KEYS:
        what = f"the keys of a map in its column `{name}` are neither texts nor whole numbers"
        raise invalid(database.spec, what, None, "convert them in the query, or leave the column out")
    fields = [one["type"] for one in kind.get("fields", ())]
    for inner in (kind.get("elementType"), kind.get("valueType"), *fields):
        _check_keys(database, name, inner)


def check_table(database: Database, connection: psycopg.Connection[Any], *, creates: bool) -> None:
    """Check the table before a run, and raise the errors of its batches. `creates`: whether a run creates a
    missing table and missing columns."""
    types, held, spec = types_of(database), database.columns(connection), database.spec
    where = database.location
    lets_create = 'or let a run do it:   options={"create": "true"}'
    if "%" in where:
        raise invalid(spec, f"the name {where} has a %", None, "give the table another name")
    _check_rights(database, connection)
    if not held:
        if not creates:
            raise invalid(spec, f"the table {where} does not exist", None, "create it", lets_create)
        return
    stored = database.names_in(held)
    missing = [name for name in types if stored[name] not in held]
    if missing and not creates:
        added = ", ".join(f'ADD COLUMN "{name}" {types[name]}' for name in missing)
        what = f"the table {where} lacks the columns {', '.join(missing)}"
        remedies = (f"add them:   ALTER TABLE {where} {added}", lets_create)
        raise invalid(spec, what, f"its columns: {', '.join(held)}", *remedies)
    for name, column in held.items():
        if column.is_needed and name not in stored.values():
            what = f"the column {name} of {where} needs a value, and the rows have none"
            remedy = f'or give it a default:   ALTER TABLE {where} ALTER COLUMN "{name}" SET DEFAULT ..'
            raise invalid(spec, what, None, "add it to the query", remedy)
    there = [name for name in types if name not in missing]
    for name in there:
        _check_type(database, name, stored[name], held[stored[name]], types[name])
    names = [stored[name] for name in there]
    _check_statement(database, connection, {name: held[name].type for name in names})


def _check_type(database: Database, name: str, stored: str, column: StoredColumn, wanted: str) -> None:
    """Refuse a type that would round or reinterpret the values of a column."""
    given, wanted = column.type, wanted.replace(", ", ",")
    base, wanted_base = given.partition("(")[0], wanted.partition("(")[0]
    fits = base in _TAKEN.get(wanted_base, ()) or (wanted == "text" and column.is_enum)
    if numeric := _NUMERIC.fullmatch(given):
        # A number with more decimals would be rounded; one with too many digits is an error.
        decimals = _NUMERIC.fullmatch(wanted)
        is_float = wanted in ("real", "double precision")
        fits = fits and not is_float and int(numeric[2]) >= (int(decimals[2]) if decimals else 0)
    elif "(" in given and base != "character varying":
        fits = False
    if name == database.rows.sequence_by:
        # PostgreSQL must order the values as Spark does.
        fits = False
    fits = fits or (given == wanted and not (name == database.rows.sequence_by and wanted == "jsonb"))
    if not fits:
        raise invalid(
            database.spec,
            f"its column `{name}` is {wanted}, and {given} in PostgreSQL",
            "values would be rounded or mean something else",
            f'change it:   ALTER TABLE {database.location} ALTER COLUMN "{stored}" TYPE {wanted}',
            f"or cast it in the query:   CAST({name} AS ..)",
        )


def _check_rights(database: Database, connection: psycopg.Connection[Any]) -> None:
    """Each batch makes a staging table, so the schema must allow it."""
    asked = "SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %s"
    found = connection.execute(asked, [database.schema]).fetchone()
    if found is not None and not found[0]:
        what = f"PostgreSQL refuses the access: no tables may be created in the schema {database.schema}"
        remedy = f"grant it:   GRANT CREATE ON SCHEMA {database.schema} TO .."
        raise invalid(database.spec, what, "each batch makes a table for its rows there", remedy)


def _check_statement(
    database: Database, connection: psycopg.Connection[Any], types: Mapping[str, str]
) -> None:
    """Let PostgreSQL check keys and rights, by planning the statement of a batch."""
    import psycopg
    from psycopg import sql

    rows = database.sql("SELECT {values}", values=listed(sql.SQL(f"NULL::{kind}") for kind in types.values()))
    statement = database.insert(types, rows)
    where, spec = database.location, database.spec
    try:
        connection.execute(sql.SQL("EXPLAIN ") + statement)
        if database.rows.is_feed:
            connection.execute(database.sql("EXPLAIN DELETE FROM {target}"))
    except psycopg.errors.InvalidColumnReference as error:
        keys = ", ".join(f'"{key}"' for key in database.stored_keys)
        what, remedy = (
            f"{where} has no unique index on its keys ({keys})",
            f"ALTER TABLE {where} ADD UNIQUE ({keys})",
        )
        raise invalid(spec, what, None, f"add one:   {remedy}") from error
    except psycopg.errors.InsufficientPrivilege as error:
        remedy = f"grant it:   GRANT SELECT, INSERT, UPDATE, DELETE ON {where} TO .."
        raise invalid(spec, f"PostgreSQL refuses the access: {first_line(error)}", None, remedy) from error
