"""Sees what a query asks of Spark: its reads, each with the user's line, and what it must not do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import ActionInQueryError, HeadraceError, SourceLocation
from headrace.model.connections import KafkaConnection
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.secrets import Redactor
from headrace.plan.bad_records import failfast_edits
from headrace.plan.delta_options import check_delta, require_table
from headrace.plan.kafka_options import check_values, connection_options
from headrace.plan.names import NameRules, quoted, split_name
from headrace.plan.options import ReadRequest, protocol_options
from headrace.plan.sqltext import Edit, SqlRelation, edited, expression_end, original_index, parse_sql
from headrace.sources.files.source import FORMATS as FILE_FORMATS
from headrace.sources.limits import KAFKA_MAX_OFFSETS_PER_TRIGGER
from headrace.syntax.locations import caller, pinpoint_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCATION_OPTION = "headrace.location"
"""An option without effect that carries the user's line to the leaf of the plan, when planning."""


@dataclass(frozen=True, kw_only=True)
class TableAccess:
    """A query is about to read a table.

    Args:
        name: The dataset that the name, or the path, means.
        streaming: Whether a stream reads it.
        location: The user's line, or the place within an SQL text.
        changes: Whether the table's change feed is read and not its rows.
        options: The reader's options, as the user has set them.
    """

    name: TableName
    streaming: bool
    location: SourceLocation
    changes: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


TableHook = Callable[[TableAccess], "DataFrame | None"]
"""Called before each read of a table; what it returns is read instead."""


@dataclass(frozen=True, kw_only=True)
class SourceRead:
    """A query is about to read what is no dataset: a topic, a folder of files, a table elsewhere.

    Args:
        request: What it asks of the reader, with the options that the protocol adds.
        paths: The folders or files; empty for a system such as Kafka.
        location: The user's line.
        session: The session that reads.
    """

    request: ReadRequest
    paths: tuple[str, ...]
    location: SourceLocation
    session: SparkSession = field(repr=False)


SourceHook = Callable[[SourceRead], "DataFrame | None"]
"""Called before each read of a source; what it returns is read instead."""


@dataclass(frozen=True, kw_only=True)
class Replacements:
    """What queries read in place of what they ask for.

    Args:
        sources: Asked before each read of a source.
        tables: Asked before each read of a table, temporary views aside.
        batchwise: Whether streams become batches: a query is computed over rows that are there.
    """

    sources: SourceHook | None = None
    tables: TableHook | None = None
    batchwise: bool = False


AS_WRITTEN = Replacements()
"""Queries read what they ask for."""


@dataclass(frozen=True)
class SqlCall:
    """An SQL text as the user wrote it, and what was changed in it before Spark saw it."""

    text: str
    location: SourceLocation
    edits: tuple[Edit, ...] = ()

    def place(self, start: int, stop: int, root: Path | None) -> SourceLocation:
        """The place in the user's file of characters of the text that Spark saw."""
        first, last = original_index(start, self.edits), original_index(stop, self.edits)
        return pinpoint_sql(self.location, self.text, first, max(first, last), root)


@dataclass(frozen=True)
class _Answer:
    """What a read of a table becomes: a DataFrame at hand, or Spark's own read of a name."""

    text: str
    name: TableName | None = None
    frame: DataFrame | None = None


@dataclass(kw_only=True)
class Interception:
    """How the reads and actions of one piece of the user's code are treated.

    Args:
        names: Which dataset a name means.
        root: The pipeline's folder, against which places are shown.
        hook: Asked before each read of a table; ``None`` leaves reads as they are.
        declared: Whether a dataset is the pipeline's own; such a name is never a session's view.
        session: The session that the code gets, also where it asks for the session in use.
        forbids_actions: Whether computing rows is an error, as it is within a query.
        marks: Whether streaming reads carry the user's line into the plan.
        kafka_limit: The records that a first batch from Kafka may take, where the user does not say.
        redactor: Learns of secrets among a reader's options.
        kafka: The connection that readers of Kafka get where they name none.
        sources: Asked before each read of a source; ``None`` leaves reads as they are.
        batchwise: Whether the query's streams are batches here.
    """

    names: NameRules
    root: Path | None = None
    hook: TableHook | None = None
    declared: Callable[[TableName], bool] = field(default=lambda _: False)
    session: SparkSession | None = None
    forbids_actions: bool = False
    marks: bool = False
    kafka_limit: int = KAFKA_MAX_OFFSETS_PER_TRIGGER
    redactor: Redactor = field(default_factory=Redactor)
    kafka: KafkaConnection = field(default_factory=KafkaConnection)
    sources: SourceHook | None = None
    batchwise: bool = False
    views: list[str] = field(default_factory=list)
    standing: dict[str, TableName] = field(default_factory=dict)
    """The datasets behind temporary views of their names, which SQL reads."""

    @property
    def stands_in(self) -> bool:
        """Whether tables are empty stand-ins, without rows and without a history."""
        return self.marks and self.hook is not None

    def read_table(
        self,
        session: SparkSession,
        text: str,
        *,
        streaming: bool,
        changes: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> _Answer:
        """A read through Spark's API, by name."""
        parts = split_name(text)
        name = None if parts is None else self._dataset(session, parts)
        if name is None or self.hook is None:
            return _Answer(text if name is None else self._forwarded(text, parts, name), name)
        location = caller(self.root)
        return self._asked(name, streaming=streaming, changes=changes, location=location, options=options)

    def read_path(
        self,
        path: str | None,
        *,
        format: str,
        streaming: bool,
        changes: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> _Answer | None:
        """A read of a folder; ``None`` where that is no dataset of the storage."""
        name = self.names.path(path) if path and format == "delta" and self.hook is not None else None
        if name is None:
            return None
        location = caller(self.root)
        return self._asked(name, streaming=streaming, changes=changes, location=location, options=options)

    def read_source(
        self, session: SparkSession, request: ReadRequest, paths: tuple[str, ...]
    ) -> DataFrame | None:
        """A read of a source; what is read in its place, if anything is."""
        if self.sources is None:
            return None
        read = SourceRead(request=request, paths=paths, location=caller(self.root), session=session)
        with suspended():
            return self.sources(read)

    def reader_options(self, request: ReadRequest, location: SourceLocation | None = None) -> dict[str, str]:
        """What a reader's options lack.

        Args:
            request: What is read.
            location: Where; by default the user's line.
        """
        location = caller(self.root) if location is None else location
        self.redactor.add_settings(request.options)
        options = protocol_options(request, location, self.kafka_limit)
        if request.format == "kafka":
            check_values(request.options, request.streaming, location)
            options = connection_options(request.options, self.kafka) | options
        if request.format == "delta" and request.streaming:
            check_delta(request.options, location)
        if self.marks and request.streaming:
            options[LOCATION_OPTION] = str(location)
        return options

    def require_table(self, path: str | None, format: str) -> None:
        """Make sure that a Delta table which is no dataset of ours is there."""
        if path and format == "delta":
            require_table(path, caller(self.root))

    def read_sql(self, session: SparkSession, text: str) -> SqlCall:
        """An SQL text: its reads are asked for, and the text gets what they need."""
        location = caller(self.root)
        from pyspark.errors import ParseException

        try:
            parsed = parse_sql(session, text)
        except ParseException:
            # Spark's own call reports it, with the user's line on the stack.
            return SqlCall(text, location)
        if parsed.writes is not None:
            self.refuse_action(f"spark.sql with {parsed.writes}")
        edits = list(failfast_edits(text))
        for relation in parsed.relations:
            if parsed.writes is not None:
                # Spark gives the target of a command options of its own.
                relation = replace(relation, options={})
            edits.extend(self._sql_read(session, text, relation, location))
        return SqlCall(text, location, tuple(edits))

    def refuse_action(self, what: str) -> None:
        """Raise where the code is a query, which must compute nothing."""
        if not self.forbids_actions:
            return
        raise ActionInQueryError(
            f"a query calls {what}, which would compute or write at once",
            location=caller(self.root),
            facts=["a query only says what its table is; Headrace runs it, once for each batch"],
            remedies=["leave it out of the query; what must be known beforehand is computed at module level"],
            params={"action": what},
        )

    def _dataset(self, session: SparkSession, parts: tuple[str, ...]) -> TableName | None:
        name = self.names.table(parts)
        if name is None or len(parts) > 1 or self.declared(name):
            return name
        # A view that the user's own code has made in this session hides a table, as in Spark.
        view = session._jsparkSession.sessionState().catalog().getTempView(parts[0])
        return None if view.isDefined() else name

    def _asked(
        self,
        name: TableName,
        *,
        streaming: bool,
        changes: bool,
        location: SourceLocation,
        options: Mapping[str, str] | None = None,
    ) -> _Answer:
        assert self.hook is not None
        access = TableAccess(
            name=name, streaming=streaming, location=location, changes=changes, options=options or {}
        )
        with suspended():
            frame = self.hook(access)
        return _Answer(quoted(name), name, frame)

    @staticmethod
    def _forwarded(text: str, parts: tuple[str, ...] | None, name: TableName) -> str:
        return text if parts is None or len(parts) <= 2 else quoted(name)

    def _sql_read(
        self, session: SparkSession, text: str, relation: SqlRelation, location: SourceLocation
    ) -> Iterator[Edit]:
        name = self._dataset(session, relation.parts)
        if name is None:
            yield from self._sql_source(session, text, relation, location)
            return
        place = pinpoint_sql(location, text, relation.start, relation.stop, self.root)
        request = ReadRequest(streaming=relation.streaming, format="delta", options=relation.options)
        lacking = self.reader_options(request, place)
        if self.hook is not None:
            answer = self._asked(
                name,
                streaming=relation.streaming,
                changes=request.reads_changes,
                location=place,
                options=relation.options,
            )
            if answer.frame is not None:
                # The columns of a relation are qualified by its name, so the view keeps it.
                mine = self.standing.setdefault(name.name.casefold(), name) == name
                yield from _replaced(text, relation, answer.frame, name.name if mine else None)
                return
            if self.stands_in and relation.travel is not None:
                # An empty stand-in has no history; its columns are those of any version.
                yield Edit(*relation.travel, "")
        if len(relation.parts) > 2 or relation.parts != (name.schema, name.name)[-len(relation.parts) :]:
            yield Edit(relation.start, relation.stop + 1, quoted(name))
        if relation.streaming:
            if LOCATION_OPTION in lacking:
                lacking[LOCATION_OPTION] = str(location)
            yield from _with_options(relation, lacking)

    def _sql_source(
        self, session: SparkSession, text: str, relation: SqlRelation, location: SourceLocation
    ) -> Iterator[Edit]:
        """A folder in an SQL text, such as ``STREAM delta.`/data/orders```: read as a reader reads it.

        Spark's own SQL knows no stream of a Delta table by its path; batch reads it knows well.
        """
        if len(relation.parts) != 2 or (self.sources is None and not relation.streaming):
            return
        format, path = relation.parts
        if format.lower() != "delta" and format.lower() not in FILE_FORMATS:
            return
        place = pinpoint_sql(location, text, relation.start, relation.stop, self.root)
        reader = session.readStream if relation.streaming else session.read
        try:
            frame = reader.format(format).options(**relation.options).load(path)
        except HeadraceError as error:
            raise error.with_(location=place) from error.__cause__
        yield from _replaced(text, relation, frame, None)


def _with_options(relation: SqlRelation, options: Mapping[str, str]) -> Iterator[Edit]:
    """Add options to a stream, behind its name or among those that it has."""
    listed = ", ".join(f"'{key}' = '{_literal(value)}'" for key, value in options.items())
    if listed and relation.options_at is None:
        yield Edit(relation.ends, relation.ends, f" WITH ({listed})")
    elif listed and relation.options_at is not None:
        yield Edit(relation.options_at, relation.options_at, f"{listed}, ")


_numbers = itertools.count(1)


def _replaced(text: str, relation: SqlRelation, frame: DataFrame, name: str | None) -> Iterator[Edit]:
    """A relation's place in the text, taken by a temporary view of the DataFrame."""
    # SQL knows temporary views by a name of one part only.
    view = name or f"headrace_read_{next(_numbers)}"
    with suspended():
        frame.createOrReplaceTempView(view)
    end = expression_end(text, relation)
    if relation.streaming and not frame.isStreaming:
        yield Edit(relation.begins, end, f"`{view}`")
        return
    yield Edit(relation.start, relation.stop + 1, f"`{view}`")
    if end > relation.ends:
        # The DataFrame was read with these options.
        yield Edit(relation.ends, end, "")


def _literal(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def apply_edits(call: SqlCall) -> str:
    """The text that Spark gets."""
    return edited(call.text, call.edits)


_current: ContextVar[Interception | None] = ContextVar("headrace_interception", default=None)


_quiet: ContextVar[bool] = ContextVar("headrace_quiet", default=False)


def is_quiet() -> bool:
    """Whether the code of this thread is a pipeline's: what it raises is reported by Headrace."""
    return _quiet.get()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PySpark from printing what it raises within: Headrace says it better."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def current_interception() -> Interception | None:
    """The interception in force for the code of this thread."""
    return _current.get()


@contextmanager
def intercepted(interception: Interception) -> Iterator[Interception]:
    """Treat the reads and actions of the code within as ``interception`` says."""
    from headrace.plan.patches import install

    install()
    token, quiet = _current.set(interception), _quiet.set(True)
    try:
        yield interception
    finally:
        _current.reset(token)
        _quiet.reset(quiet)


@contextmanager
def suspended() -> Iterator[None]:
    """Leave the code within alone: it is Spark's or Headrace's own."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def loading(
    settings: ProjectSettings, session: Callable[[], SparkSession], sources: SourceHook | None = None
) -> Iterator[Callable[[], SparkSession]]:
    """Give the reads of a pipeline's files at module level the protocol's options; actions are allowed.

    Args:
        settings: The pipeline's settings.
        session: Gives the pipeline's session.
        sources: Asked before each read of a source.

    Yields:
        Gives the same session. PySpark is neither imported nor patched before it is called.
    """

    def patched() -> SparkSession:
        from headrace.plan.patches import install

        install()
        return session()

    token = _current.set(
        Interception(
            names=NameRules.of(settings),
            root=settings.root,
            marks=True,
            redactor=settings.redactor,
            kafka=settings.kafka,
            sources=sources,
        )
    )
    before = _quiet.set(True)
    try:
        yield patched
    finally:
        _current.reset(token)
        _quiet.reset(before)


SQL_CALL_ATTRIBUTE = "_headrace_sql_call"
"""Where an exception that Spark raised for an SQL text keeps the `SqlCall`."""


def sql_call_of(error: BaseException) -> SqlCall | None:
    """The SQL text that made Spark raise the exception, if one did."""
    call = getattr(error, SQL_CALL_ATTRIBUTE, None)
    return call if isinstance(call, SqlCall) else None
