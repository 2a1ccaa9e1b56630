"""A table of PostgreSQL as a sink that keeps the state of its flows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.outside.by_key import RowsByKey, invalid
from headrace.sinks.outside.postgres.columns import check_table, types_of
from headrace.sinks.outside.postgres.database import Database, listed
from headrace.sinks.outside.postgres.writer import PostgresWriter
from headrace.sinks.outside.stateful import SinkState, SinkTransaction, StatefulSink
from headrace.sinks.target import BatchStamp, SinkSpec

if TYPE_CHECKING:
    import psycopg

_STATE_TABLES = """
CREATE TABLE IF NOT EXISTS {schema}.headrace_sinks (sink text PRIMARY KEY, state jsonb NOT NULL);
CREATE TABLE IF NOT EXISTS {schema}.headrace_batches (
    sink text, version bigint, committed_at timestamptz NOT NULL DEFAULT now(), document jsonb NOT NULL,
    PRIMARY KEY (sink, version)
)
"""
_KEPT = "30 days"
"""How long the database keeps what a batch has read; the storage keeps it, too."""


@dataclass(kw_only=True)
class PostgresTransaction(SinkTransaction):
    """A transaction that holds the lock on the state of the sink."""

    database: Database
    connection: psycopg.Connection[Any]
    state: SinkState

    def clear(self) -> None:
        self.connection.execute(self.database.sql("DELETE FROM {target}"))

    def record(self, state: SinkState, document: Mapping[str, Any]) -> None:
        name, sql, execute = self.database.key, self.database.sql, self.connection.execute
        text = json.dumps(state.kept())
        execute(sql("UPDATE {schema}.headrace_sinks SET state = %s WHERE sink = %s"), [text, name])
        added = sql("INSERT INTO {schema}.headrace_batches (sink, version, document) VALUES (%s, %s, %s)")
        execute(added, [name, state.version, json.dumps(document)])
        if state.version % 1000 == 0:
            old = "sink = %s AND committed_at < now() - %s::interval"
            execute(sql(f"DELETE FROM {{schema}}.headrace_batches WHERE {old}"), [name, _KEPT])


class PostgresSink(StatefulSink):
    """A table of a PostgreSQL database."""

    def __init__(self, spec: SinkSpec) -> None:
        super().__init__(spec)
        self.database = Database(spec, RowsByKey.of(spec))
        creates = spec.options.get("create", "false").lower()
        if creates not in ("true", "false"):
            raise invalid(spec, "its option create must be true or false", None, 'write "create": "true"')
        self.creates = creates == "true"

    @property
    def location(self) -> str:
        return self.database.location

    def check(self) -> None:
        with self.database.connect() as connection:
            check_table(self.database, connection, creates=self.creates)

    def create(self) -> None:
        with self.database.connect() as connection:
            # Two drivers that create the same table at once would meet errors.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('headrace'))")
            if self.creates:
                self._create_table(connection)
            connection.execute(self.database.sql(_STATE_TABLES))
            first = "INSERT INTO {schema}.headrace_sinks VALUES (%s, %s) ON CONFLICT DO NOTHING"
            values = [self.database.key, json.dumps(SinkState().kept())]
            connection.execute(self.database.sql(first), values)
        self.database.forget_names()

    def _create_table(self, connection: psycopg.Connection[Any]) -> None:
        """Create the schema and the table if they are missing, and add new columns."""
        from psycopg import sql

        database, types, keys = self.database, types_of(self.database), self.database.rows.keys
        columns = [sql.Identifier(name) + sql.SQL(f" {kind}") for name, kind in types.items()]
        if keys:
            columns.append(sql.SQL("PRIMARY KEY ({})").format(listed(map(sql.Identifier, keys))))
        # `IF NOT EXISTS` would need the right to create them, even if both exist.
        asked = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
        if connection.execute(asked, [database.schema]).fetchone() is None:
            connection.execute(database.sql("CREATE SCHEMA {schema}"))
        if not database.columns(connection):
            connection.execute(database.sql("CREATE TABLE {target} ({columns})", columns=listed(columns)))
        held = database.columns(connection)
        for name, stored in database.names_in(held).items():
            if stored not in held:
                added = "ALTER TABLE {target} ADD COLUMN {name} " + types[name]
                connection.execute(database.sql(added, name=name))

    @contextmanager
    def transaction(self) -> Iterator[PostgresTransaction]:
        with self.database.connect() as connection:
            state = self._state(connection, " FOR UPDATE")
            if state is None:
                raise self.database.unavailable("headrace_sinks has lost the state of the sink")
            yield PostgresTransaction(database=self.database, connection=connection, state=state)

    def state(self) -> SinkState | None:
        with self.database.connect() as connection:
            return self._state(connection)

    def _state(self, connection: psycopg.Connection[Any], lock: str = "") -> SinkState | None:
        database = self.database
        asked = "SELECT to_regclass(%s) IS NOT NULL, to_regclass(%s)::oid::bigint"
        names = [database.regclass("headrace_sinks"), database.regclass(database.table)]
        ((has_state, oid),) = connection.execute(asked, names)
        if not has_state:
            return None
        text = database.sql("SELECT state FROM {schema}.headrace_sinks WHERE sink = %s" + lock)
        found = connection.execute(text, [self.database.key]).fetchone()
        if found is None:
            return None
        state = SinkState.of_json(found[0])
        # A table that was dropped and created again has lost its rows.
        return replace(state, table_id=f"{state.table_id}/{oid}")

    @property
    def span(self) -> range:
        text = self.database.sql(
            "SELECT min(version), max(version) FROM {schema}.headrace_batches WHERE sink = %s"
        )
        with self.database.connect() as connection:
            ((first, last),) = connection.execute(text, [self.database.key])
        return range(0) if first is None else range(first, last + 1)

    def documents(self, first: int, last: int) -> list[Mapping[str, Any]]:
        text = self.database.sql(
            "SELECT document FROM {schema}.headrace_batches "
            "WHERE sink = %s AND version BETWEEN %s AND %s ORDER BY version"
        )
        with self.database.connect() as connection:
            found = connection.execute(text, [self.database.key, first, last])
            return [document for (document,) in found]

    def writer(self, session: SparkSession, stamp: BatchStamp, held: int) -> PostgresWriter:
        return PostgresWriter(sink=self, database=self.database, stamp=stamp, held=held)
