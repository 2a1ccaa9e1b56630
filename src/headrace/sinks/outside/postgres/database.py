"""The database of a sink: its connection, its statements, and the errors of the server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace import errors
from headrace.sinks.outside.by_key import (
    KEEP_OUT,
    KEEP_OUT_OF_FEED,
    RowsByKey,
    invalid,
    load_package,
    unavailable,
    unknown_option,
)
from headrace.sinks.target import SinkSpec

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composable, Composed

OPTIONS = ("url", "table", "keys", "create", "sequence_by")
"""The options of a sink; all others are libpq's connection settings."""

_DEFAULTS = {
    "application_name": "headrace",
    "connect_timeout": "10",
    "options": "-c lock_timeout=120s",  # for a writer that stands still, and holds the flow's staging table
}


@dataclass(frozen=True)
class StoredColumn:
    """A column of the table: its type as PostgreSQL writes it, and whether each row must give a value."""

    type: str
    is_needed: bool
    is_enum: bool


@dataclass(frozen=True)
class Database:
    """The database and the table of a sink."""

    spec: SinkSpec
    rows: RowsByKey

    @property
    def schema(self) -> str:
        return self.spec.options["table"].rpartition(".")[0] or "public"

    @property
    def table(self) -> str:
        return self.spec.options["table"].rpartition(".")[2]

    @property
    def location(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def key(self) -> str:
        """The key of its state: another pipeline can have a sink of the same name."""
        return f"{self.spec.name}/{self.table}"

    @cached_property
    def conninfo(self) -> str:
        """libpq's connection string."""
        psycopg = load_psycopg(self.spec)
        own = {name: value for name, value in self.spec.options.items() if name not in OPTIONS}
        known = {one.keyword.decode() for one in psycopg.pq.Conninfo.get_defaults()}
        unknown_option(self.spec, {*known, *OPTIONS})
        try:
            address = psycopg.conninfo.conninfo_to_dict(self.spec.options.get("url", ""))
            return str(psycopg.conninfo.make_conninfo(**{**_DEFAULTS, **address, **own}))
        except psycopg.ProgrammingError:
            # The text of the error would have the address, and with it the password.
            remedy = 'write "url": "postgresql://user@host:5432/database", and the password in password'
            raise invalid(self.spec, "its url is not an address of PostgreSQL", None, remedy) from None

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection whose transaction is committed at the end, and undone after an error."""
        psycopg = load_psycopg(self.spec)
        try:
            with psycopg.connect(self.conninfo) as connection:
                yield connection
        except (
            psycopg.OperationalError,
            psycopg.errors.UndefinedTable,
            psycopg.errors.ReadOnlySqlTransaction,
        ) as error:
            raise self.unavailable(first_line(error)) from error
        except psycopg.Error as error:
            place = error.diag.context or error.diag.message_detail or ""
            raise self.refused(first_line(error), place) from error

    def unavailable(self, message: str) -> errors.SinkUnavailableError:
        what = f"PostgreSQL does not answer: {message}"
        return unavailable(self.spec, what, f"table {self.location}")

    def refused(self, message: str, place: str) -> errors.SinkRowRefusedError:
        """The error for a row that the server has refused."""
        return errors.SinkRowRefusedError(
            f"sink {self.spec.name.short}: PostgreSQL refuses a row: {message}",
            facts=(*place.splitlines()[:2], f"table {self.location}", "the batch was not written"),
            remedies=(
                KEEP_OUT_OF_FEED if self.rows.is_feed else KEEP_OUT,
                "or change the table in PostgreSQL, and run again:   headrace run",
            ),
            params={"sink": str(self.spec.name), "reason": message},
        )

    def sql(self, text: str, **names: str | Composable | Iterable[str]) -> Composed:
        """A statement with quoted names: of the table (`target`), of its schema, and others."""
        from psycopg import sql

        def quoted(name: Any) -> Any:
            if isinstance(name, sql.Composable):
                return name
            return sql.Identifier(name) if isinstance(name, str) else listed(map(sql.Identifier, name))

        given = {name: quoted(value) for name, value in names.items()}
        target = sql.Identifier(self.schema, self.table)
        return sql.SQL(text).format(schema=sql.Identifier(self.schema), target=target, **given)

    def columns(self, connection: psycopg.Connection[Any]) -> dict[str, StoredColumn]:
        """The columns of the table by name; empty if it does not exist."""
        found = connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod), "
            "attnotnull AND NOT atthasdef AND attidentity = '', typtype = 'e' "
            "FROM pg_attribute JOIN pg_type t ON t.oid = atttypid "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            [self.regclass(self.table)],
        )
        return {name: StoredColumn(*facts) for name, *facts in found}

    def regclass(self, table: str) -> str:
        return ".".join('"' + name.replace('"', '""') + '"' for name in (self.schema, table))

    @cached_property
    def stored_names(self) -> Mapping[str, str]:
        """The column of the table for each column of the rows."""
        with self.connect() as connection:
            return self.names_in(self.columns(connection))

    def names_in(self, held: Iterable[str]) -> dict[str, str]:
        """The stored column for each column of the rows, or its own name if there is none. PostgreSQL stores
        names that are written without quotes in lower case."""
        exact = set(held)
        lower = {name.lower(): name for name in exact}
        return {name: name if name in exact else lower.get(name.lower(), name) for name in self.rows.columns}

    def forget_names(self) -> None:
        vars(self).pop("stored_names", None)

    @property
    def stored_keys(self) -> list[str]:
        return [self.stored_names[key] for key in self.rows.keys]

    def insert(self, columns: Iterable[str], rows: Composable) -> Composed:
        """The statement that inserts rows, or replaces those with the same keys."""
        from psycopg import sql

        stored, keys = self.stored_names, self.rows.keys
        others = [stored[name] for name in self.rows.columns if name not in keys]
        text = "INSERT INTO {target} AS t ({columns}) {rows}"
        if keys:
            text += " ON CONFLICT ({keys}) DO " + (
                "UPDATE SET ({others}) = ROW({new})" if others else "NOTHING"
            )
        sequence = self.rows.sequence_by
        if sequence is not None:
            # Spark compares texts by their bytes.
            kinds = {one["name"]: one["type"] for one in self.spec.schema["fields"]}
            by_bytes = ' COLLATE "C"' if kinds[sequence] == "string" else ""
            newer = f"excluded.{{sequence}}{by_bytes} >= t.{{sequence}}{by_bytes}"
            text += f" WHERE t.{{sequence}} IS NULL OR {newer}"
        return self.sql(
            text,
            columns=columns,
            rows=rows,
            keys=self.stored_keys,
            others=others,
            new=listed(sql.SQL("excluded.") + sql.Identifier(name) for name in others),
            sequence=stored[sequence or self.rows.columns[0]],
        )


def listed(parts: Iterable[Composable]) -> Composed:
    from psycopg import sql

    return sql.SQL(", ").join(parts)


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def load_psycopg(spec: SinkSpec) -> Any:
    load_package(spec, "psycopg.conninfo", "postgres")
    return load_package(spec, "psycopg", "postgres")
