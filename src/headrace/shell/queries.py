"""Batch queries of `headrace sql` over the tables of the storage, and over Kafka tables."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import HeadraceError
from headrace.model.names import TableName
from headrace.plan.catalog import StandIns, isolated_session
from headrace.plan.evaluate import run_code
from headrace.plan.intercept import Interception, in_force, suspended
from headrace.plan.modes import Loading
from headrace.plan.sql_queries import SQL_TEXT_ATTRIBUTE, read_sql
from headrace.plan.stored import load_stored
from headrace.project.engine import Engine
from headrace.project.preview import collect_columns, type_name
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.shell.definitions import Definitions
from headrace.shell.stream_sql import batch_options, kafka_options
from headrace.syntax.sql import SqlText, parse_sql
from headrace.syntax.stream_statements import CreateScan
from headrace.syntax.tokens import Cursor

_TAG = f"headrace-sql-{os.getpid()}"  # two shells can share a JVM, and Ctrl-C cancels only the jobs of one
_POLL_S = 0.2
_CANCELLED_S = 30.0  # seconds that a cancelled query may take to end
_NAME = "the statement"


@dataclass(frozen=True, kw_only=True)
class Answer:
    columns: tuple[str, ...] = ()  # the names of the columns; none for a statement without rows
    types: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    is_cut: bool = False  # whether there are more rows than the limit
    note: str = ""  # what a statement without rows has done
    # A stream to run now, for a statement that writes a table without ``CREATE STREAM``.
    run: str | None = None


class Queries:
    """Runs statements in a Spark session of their own."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._settings = definitions.settings
        self._engine = Engine(self._settings)
        self._stack = ExitStack()
        self._worker = ThreadPoolExecutor(1, "headrace-sql")
        self._session: tuple[SparkSession, StandIns] | None = None
        self._known: set[TableName] = set()
        self._empty: set[TableName] = set()

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._stack.close()
        self._engine.close()

    def run(self, text: SqlText, limit: int) -> Answer:
        session, catalog = self._opened()
        settings = self._settings
        interception = Interception(
            settings=settings, mode=Loading(session=lambda: session, may_write=True), session=session
        )
        cursor = Cursor(text)
        location = cursor.text.locate(cursor.start, cursor.start, None)
        self._register(session, catalog)
        self._register_topics(session, cursor, interception)

        def computed() -> Answer:
            sql = read_sql(interception, session, text.with_edits())
            with suspended():
                try:
                    if parse_sql(session, sql.edited).writes is not None:
                        raise cursor.unsupported(
                            f"the statement {cursor.token.value.upper()} in headrace sql",
                            "rows come from streams: INSERT INTO name SELECT .. FROM scan",
                            "to delete rows:   headrace erase TABLE --where CONDITION",
                        )
                    answer = _answer(session, sql, cursor, limit)
                    return self._without_private(answer) if cursor.at("SHOW", "TABLES") else answer
                except HeadraceError:
                    raise
                except Exception as error:
                    setattr(error, SQL_TEXT_ATTRIBUTE, sql)
                    raise

        try:
            return self._interruptible(
                session, lambda: run_code(computed, interception, name=_NAME, location=location)
            )
        except HeadraceError as error:
            summary = error.summary.replace(f"the query of `{_NAME}` failed: ", "")
            raise error.with_(summary=summary.replace(f"the query of `{_NAME}`", _NAME)) from error.__cause__

    def _without_private(self, tables: Answer) -> Answer:
        """The rows of ``SHOW TABLES`` without those of private tables."""
        found = ((name, load_stored(self._settings.storage, name)) for name in self._known)
        private = {(name.schema, name.name) for name, stored in found if stored and stored.is_private}
        return replace(tables, rows=tuple(row for row in tables.rows if row[:2] not in private))

    def _opened(self) -> tuple[SparkSession, StandIns]:
        if self._session is None:
            spark = self._engine.session()
            self._session = self._stack.enter_context(isolated_session(spark, self._settings.database))
        return self._session

    def _register(self, session: SparkSession, catalog: StandIns) -> None:
        """Register the tables that other processes or streams have created, and tables without rows."""
        definitions, stored = self._definitions, self._settings.storage.find_tables()
        for name in stored:
            if name not in self._known:
                session.catalog.dropTempView(name.name)
                catalog.add_stored(name, self._settings.storage.table(name))
                self._known.add(name)
        for text in definitions.names("table"):
            name = TableName.parse(text, self._settings.database)
            table = None if name in self._known | self._empty else definitions.table(name)
            if table is not None and table.columns and name.schema == self._settings.database:
                self._empty.add(name)
                session.createDataFrame([], table.columns).createOrReplaceTempView(name.name)

    def _register_topics(self, session: SparkSession, cursor: Cursor, interception: Interception) -> None:
        """Make a view of each Kafka table and scan that the statement names."""
        words = {token.value.casefold() for token in cursor.tokens if token.kind in ("word", "name")}
        for view, options in self._topics(words).items():
            settings = self._engine.reachable(start=True)
            reader = Interception(settings=settings, mode=interception.mode, session=session)
            with in_force(reader):
                frame = session.read.format("kafka").options(**options).load()
            with suspended():
                frame.createOrReplaceTempView(view)

    def _topics(self, words: set[str]) -> Mapping[str, Mapping[str, str]]:
        """The options of the Kafka tables and scans among words, by name."""
        found: dict[str, dict[str, str]] = {}
        for name in self._definitions.names("table"):
            table = self._definitions.table(TableName.parse(name, self._settings.database))
            if table is not None and table.is_kafka and table.name[-1].casefold() in words:
                found[table.name[-1]] = batch_options(kafka_options(None, table))
        for name in words.intersection(self._definitions.names("scan")):
            kept = self._definitions.find("scan", name)
            scan = None if kept is None else kept[0]
            if isinstance(scan, CreateScan):
                table = self._definitions.table(self._definitions.name_of(scan.table))
                if table is not None and table.is_kafka:
                    found[scan.name] = batch_options(kafka_options(scan, table))
        return found

    def _interruptible(self, session: SparkSession, work: Callable[[], Answer]) -> Answer:
        """Do work in a thread, so that Ctrl-C can cancel its Spark jobs.

        The thread that Ctrl-C interrupts must not wait for an answer of the JVM: the next call of this thread
        would wait for the same answer.
        """
        context = session.sparkContext

        def tagged() -> Answer:
            context.addJobTag(_TAG)
            return work()

        running = self._worker.submit(contextvars.copy_context().run, tagged)
        try:
            while not wait([running], _POLL_S).done:
                pass
        except BaseException:
            context.cancelJobsWithTag(_TAG)
            wait([running], _CANCELLED_S)
            raise
        return running.result()


def _answer(session: SparkSession, sql: SqlText, cursor: Cursor, limit: int) -> Answer:
    frame = session.sql(sql.edited)
    if frame.isStreaming:
        raise cursor.unsupported(
            "a query over a stream",
            "remove STREAM to query the rows that exist now",
            "or write the stream to a table: INSERT INTO name SELECT ..",
        )
    fields = frame.schema.fields
    if not fields:
        return Answer(note="OK")
    rows = tuple(zip(*collect_columns(frame.limit(limit + 1)), strict=True))
    return Answer(
        columns=tuple(field.name for field in fields),
        types=tuple(type_name(field.dataType) for field in fields),
        rows=rows[:limit],
        is_cut=len(rows) > limit,
    )
