"""Runs the statements of `headrace sql`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from headrace.declare.sql_files import open_literal, with_values
from headrace.errors import HeadraceError
from headrace.model.project import ProjectSettings
from headrace.shell.definitions import Definitions
from headrace.shell.queries import Answer, Queries
from headrace.shell.stream_sql import scans_of
from headrace.shell.streams import Streams
from headrace.syntax.sql import SqlText
from headrace.syntax.stream_statements import (
    CreateStream,
    OnDefinition,
    ShowStreams,
    kind_of,
    parse_stream_statement,
)
from headrace.syntax.tokens import Cursor, SqlTokenError

_DECLARED = ("STREAMING", "INCREMENTAL", "LIVE", "MATERIALIZED", "FLOW", "PRIVATE")
_SHOWN = ("stream", "table", "state", "trigger", "batch", "lag", "committed", "pid")


class Shell:
    """One session of statements."""

    def __init__(self, settings: ProjectSettings, start: Callable[[str], int], limit: int) -> None:
        self.definitions = Definitions(settings)
        self.streams = Streams(self.definitions)
        self._queries = Queries(self.definitions)
        self._start = start
        self._limit = limit
        self._values: dict[str, str] = {}

    def close(self) -> None:
        """Stop the Spark that was started here."""
        self._queries.close()

    def execute(self, text: SqlText) -> Answer:
        """Run one statement.

        A statement that writes a table without ``CREATE STREAM`` is not run: the answer names its stream.
        """
        try:
            text = with_values(text, {**self.definitions.settings.configuration, **self._values})
            cursor = Cursor(text)
        except SqlTokenError as error:
            raise open_literal(text, error) from error
        try:
            return self._execute(text, cursor)
        except HeadraceError as error:
            error = self.definitions.settings.redactor.error(error)
            raise error.with_location(text.locate(cursor.start, cursor.start, None)) from error.__cause__

    def _execute(self, text: SqlText, cursor: Cursor) -> Answer:
        if cursor.at("CREATE") and any(one.is_word(*_DECLARED) for one in cursor.tokens[1:5]):
            raise cursor.unsupported(
                "declarations of a pipeline in headrace sql",
                "write the statement to an SQL file of the pipeline:   headrace run",
            )
        statement = parse_stream_statement(cursor)
        match statement:
            case None:
                if cursor.at("SET") and not cursor.at("SET", "CATALOG"):
                    self._set(cursor)
                return self._queries.run(text, self._limit)
            case CreateStream():
                return self._create_stream(statement, text.edited)
            case ShowStreams():
                return self._show()
            case OnDefinition():
                return self._on_definition(statement)
            case definition:
                kind, name = kind_of(definition), self.definitions.key_of(definition)
                added = self.definitions.add(definition, text.edited)
                shown = name.removeprefix(f"{self.definitions.settings.database}.")
                return Answer(note=f"{kind} {shown} {'created' if added else 'exists already'}")

    def _set(self, cursor: Cursor) -> None:
        """Keep the value of ``SET name = value`` as a parameter of later statements."""
        found = re.fullmatch(r"SET\s+`?([\w.-]+)`?\s*=\s*(.*)", cursor.rest, re.IGNORECASE | re.DOTALL)
        if found is not None:
            self._values[found[1]] = found[2]

    def _create_stream(self, statement: CreateStream, text: str) -> Answer:
        definitions = self.definitions
        if statement.name is None:
            return self._write(statement, text)
        name = statement.name
        added = definitions.add(statement, text)
        kept = statement if added else definitions.stream(name)[0]
        if (driver := self.streams.driver(name)) is not None:
            return Answer(note=f"stream {name} exists already, and runs: pid {driver.pid} on {driver.host}")
        try:
            self.streams.check(name, kept)
        except HeadraceError:
            if added:
                definitions.remove("stream", name)
            raise
        pid = self._start(name)
        return Answer(note=f"stream {name} {'started' if added else 'started again'}: pid {pid}")

    def _write(self, statement: CreateStream, text: str) -> Answer:
        """Define the stream of a statement without a name."""
        target = self.definitions.name_of(statement.target)
        scans = scans_of(statement.query, self.definitions.names("scan"))
        name = "_from_".join((target.name, *scans[:1]))
        self.streams.check(name, replace(statement, name=name))
        self.definitions.write("stream", name, text)
        return Answer(run=name)

    def _show(self) -> Answer:
        found = [one.facts() for one in self.streams.statuses()]
        return Answer(
            columns=_SHOWN,
            types=tuple("long" if name in ("batch", "lag", "pid") else "string" for name in _SHOWN),
            rows=tuple(tuple(one[name] for name in _SHOWN) for one in found),
        )

    def _on_definition(self, statement: OnDefinition) -> Answer:
        definitions, location = self.definitions, statement.location
        if statement.kind == "table":
            table = definitions.name_of(statement.name)
            if not (statement.if_exists and definitions.table(table) is None):
                definitions.drop_table(table, location)
            return Answer(note=f"table {table.short} dropped")
        name = ".".join(statement.name)
        if definitions.find(statement.kind, name) is None:
            if statement.if_exists:
                return Answer(note=f"there is no {statement.kind} {name}")
            raise definitions.unknown(statement.kind, name, location)
        if statement.verb == "DESCRIBE":
            (found,) = self.streams.statuses(name)
            rows = tuple((key, None if value is None else str(value)) for key, value in found.facts().items())
            return Answer(columns=("name", "value"), types=("string", "string"), rows=rows)
        ended = statement.kind == "stream" and self.streams.stop(name, location)
        if statement.verb == "STOP":
            return Answer(note=f"stream {name} {'stopped' if ended else 'does not run'}")
        definitions.remove(statement.kind, name)
        kept = "; its table and its checkpoint are kept" if statement.kind == "stream" else ""
        return Answer(note=f"{statement.kind} {name} dropped{kept}")
