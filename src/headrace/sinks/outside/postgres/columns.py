"""The columns of a sink's rows in PostgreSQL: their types, and the checks of a table before a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.sinks.outside.by_key import invalid
from headrace.sinks.outside.postgres.database import Database, first_line, listed

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
_TAKEN = {
    "smallint": ("smallint", "integer", "bigint", "numeric"),
    "integer": ("smallint", "integer", "bigint", "numeric"),
    "bigint": ("smallint", "integer", "bigint", "numeric"),
    "real": ("real", "double precision", "numeric"),
    "double precision": ("double precision", "numeric"),
    "jsonb": ("jsonb", "json", "text", "character varying"),
    "boolean": ("boolean", "text", "character varying"),
}
"""The types of PostgreSQL that take the values of a type as they are, or refuse them with an error."""
_NOT_TEXT = {*_TYPES.values(), "numeric", "interval"} - {"text", "jsonb"}
"""The types of PostgreSQL into which it would read a text in a way of its own."""


def types_of(database: Database) -> dict[str, str]:
    """The type of PostgreSQL for each column of the rows; raises `SinkInvalidError`."""
    return {name: _type(database, name, kind) for name, kind in _kinds(database).items()}


def _kinds(database: Database) -> dict[str, Any]:
    fields = database.spec.schema["fields"]
    return {one["name"]: one["type"] for one in fields if one["name"] in database.rows.columns}


def _type(database: Database, name: str, kind: Any) -> str:
    if not isinstance(kind, str):
        return "jsonb"
    if kind.startswith("decimal"):
        return "numeric" + kind.removeprefix("decimal")
    found = "text" if kind.startswith(("char", "varchar")) else _TYPES.get(kind)
    if found is None:
        what = f"PostgreSQL has no type for its column `{name}` ({kind})"
        raise invalid(database.spec, what, None, f"cast it in the query:   CAST({name} AS STRING)")
    return found


def check_table(database: Database, connection: psycopg.Connection[Any], *, creates: bool) -> None:
    """Raise the errors with which a batch would fail. `creates`: whether a run creates what is missing."""
    types, held, spec = types_of(database), database.columns(connection), database.spec
    where = database.location
    lets_create = 'or let a run do it:   options={"create": "true"}'
    if not held:
        if not creates:
            raise invalid(spec, f"the table {where} does not exist", None, "create it", lets_create)
        return
    stored = {name.lower(): name for name in held}
    missing = [name for name in types if name.lower() not in stored]
    if missing and not creates:
        added = ", ".join(f'ADD COLUMN "{name}" {types[name]}' for name in missing)
        what = f"the table {where} lacks the columns {', '.join(missing)}"
        remedies = (f"add them:   ALTER TABLE {where} {added}", lets_create)
        raise invalid(spec, what, f"its columns: {', '.join(held)}", *remedies)
    given = {name.lower() for name in types}
    for name, column in held.items():
        if column.is_needed and name.lower() not in given:
            what = f"the column {name} of {where} needs a value, and the rows have none"
            remedy = f'or give it a default:   ALTER TABLE {where} ALTER COLUMN "{name}" SET DEFAULT ..'
            raise invalid(spec, what, None, "add it to the query", remedy)
    there = [name for name in types if name not in missing]
    for name in there:
        _check_type(database, name, stored[name.lower()], held[stored[name.lower()]].type, types[name])
    names = [stored[name.lower()] for name in there]
    _check_statement(database, connection, {name: held[name].type for name in names})


def _check_type(database: Database, name: str, stored: str, given: str, wanted: str) -> None:
    """Refuse a type that would round or reinterpret the values of a column."""
    base, _, precision = given.partition("(")
    if given == "text" or given == wanted or (wanted == "text" and base not in _NOT_TEXT):
        return
    wanted_base, _, digits = wanted.partition("(")
    fits = base in _TAKEN.get(wanted_base, (wanted_base,))
    if precision and base == "numeric":
        # A number with more decimals would be rounded; one with too many digits is an error.
        decimals = int(digits.rstrip(")").split(",")[1]) if digits else 0
        fits = "double" not in wanted and wanted != "real" and int(precision[:-1].split(",")[1]) >= decimals
    elif precision and not base.startswith("character"):
        fits = False
    if not fits:
        raise invalid(
            database.spec,
            f"its column `{name}` is {wanted}, and {given} in PostgreSQL",
            "values would be rounded or mean something else",
            f'change it:   ALTER TABLE {database.location} ALTER COLUMN "{stored}" TYPE {wanted}',
            f"or cast it in the query:   CAST({name} AS ..)",
        )


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
