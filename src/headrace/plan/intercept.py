"""How the reads and actions of the user's code are treated while one piece of it runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from headrace.errors import ActionInQueryError, SourceLocation
from headrace.model.connections import KafkaConnection
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.secrets import Redactor
from headrace.plan.event_log import EVENT_LOG, open_event_log
from headrace.plan.modes import (
    Bounded,
    Loading,
    Mode,
    Planning,
    Running,
    SourceHook,
    TableAccess,
    TableHook,
)
from headrace.plan.names import NameRules, quoted, split_name
from headrace.sources.limits import KAFKA_MAX_OFFSETS_PER_TRIGGER
from headrace.sources.registry import kind_for
from headrace.sources.requests import ReaderDefaults, ReadRequest, SourceRead
from headrace.syntax.locations import caller

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCATION_OPTION = "headrace.location"
"""An option that Spark ignores: it carries the user's line to the leaf of the plan."""


@dataclass(frozen=True)
class Answer:
    """What a read of a table becomes: a DataFrame, or Spark's own read of a name."""

    text: str
    name: TableName | None = None
    frame: DataFrame | None = None


@dataclass(frozen=True, kw_only=True)
class Interception:
    """How the reads and actions of one piece of the user's code are treated.

    Args:
        mode: The mode in which the code runs.
        names: Which dataset a name means.
        root: The pipeline's folder: locations and relative paths start there.
        session: The session that the code gets, also where it asks Spark for one; ``None`` while the
            files are loaded.
        tables: Called before each read of a table; ``None`` leaves such reads to Spark.
        declared: Whether the pipeline declares a dataset; a temporary view never hides its name.
        redactor: Learns secrets from readers' options.
        kafka: The connection of readers of Kafka that name no broker.
    """

    mode: Mode
    names: NameRules
    root: Path
    session: SparkSession | None = None
    tables: TableHook | None = None
    declared: Callable[[TableName], bool] = field(default=lambda _: False)
    redactor: Redactor = field(default_factory=Redactor)
    kafka: KafkaConnection = field(default_factory=KafkaConnection)
    views: list[str] = field(default_factory=list)
    """The temporary views that the code has made."""
    replaced: dict[str, TableName] = field(default_factory=dict)
    """The datasets that temporary views of their names replace in SQL."""

    @classmethod
    def of(
        cls,
        settings: ProjectSettings,
        mode: Mode,
        *,
        session: SparkSession | None = None,
        tables: TableHook | None = None,
        declared: Callable[[TableName], bool] = lambda _: False,
    ) -> Interception:
        """An interception with a pipeline's names, connection and secrets."""
        return cls(
            mode=mode,
            names=NameRules.of(settings),
            root=settings.root,
            session=session,
            tables=tables,
            declared=declared,
            redactor=settings.redactor,
            kafka=settings.kafka,
        )

    @property
    def stands_in(self) -> bool:
        """Whether tables are empty stand-ins, without rows and without a history."""
        return isinstance(self.mode, Planning)

    @property
    def batches_only(self) -> bool:
        """Whether streams become batches."""
        return isinstance(self.mode, Bounded)

    @property
    def sources(self) -> SourceHook | None:
        """What gives the records of sources in place of Spark's readers."""
        return self.mode.sources

    @property
    def marks_locations(self) -> bool:
        """Whether streams carry the user's line into the plan."""
        match self.mode:
            case Loading() | Planning():
                return True
            case Running() | Bounded():
                return False
            case other:
                assert_never(other)

    def current_session(self) -> SparkSession:
        """The session for code that asks Spark for the session in use."""
        if isinstance(self.mode, Loading):
            with suspended():
                return self.mode.session()
        assert self.session is not None
        return self.session

    # -- reads

    def read_table(
        self,
        session: SparkSession,
        text: str,
        *,
        streaming: bool,
        changes: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> Answer:
        """A read through Spark's API, by name."""
        parts = split_name(text)
        name = None if parts is None else self.dataset(session, parts)
        if name is None:
            return Answer(text)
        if self.tables is None:
            return Answer(text if parts is None or len(parts) <= 2 else quoted(name), name)
        return self.ask(name, streaming=streaming, changes=changes, options=options)

    def read_path(
        self,
        path: str | None,
        *,
        format: str,
        streaming: bool,
        changes: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> Answer | None:
        """A read of a folder; ``None`` if the folder is not a dataset of the storage."""
        is_table = kind_for(format).reader.reads_tables and self.tables is not None
        name = self.names.path(path) if path and is_table else None
        if name is None:
            return None
        return self.ask(name, streaming=streaming, changes=changes, options=options)

    def read_source(
        self, session: SparkSession, request: ReadRequest, paths: tuple[str, ...]
    ) -> DataFrame | None:
        """The DataFrame that replaces a read of a source; ``None`` leaves the read to Spark."""
        if self.sources is None:
            return None
        read = SourceRead(request=request, paths=paths, location=caller(self.root), session=session)
        with suspended():
            return self.sources(read)

    def reader_options(self, request: ReadRequest, location: SourceLocation | None = None) -> dict[str, str]:
        """The options to add to a reader.

        Args:
            request: What is read.
            location: Where; by default the user's line.
        """
        location = caller(self.root) if location is None else location
        self.redactor.add_settings(request.options)
        limit = self.mode.kafka_limit if isinstance(self.mode, Running) else KAFKA_MAX_OFFSETS_PER_TRIGGER
        defaults = ReaderDefaults(kafka=self.kafka, kafka_limit=limit)
        options = kind_for(request.format).reader.options(request, location, defaults)
        self.redactor.add_settings(options)
        if self.marks_locations and request.streaming:
            options[LOCATION_OPTION] = str(location)
        return options

    def check_path(self, path: str | None, format: str) -> None:
        """Check that the folder of a read outside of the storage exists."""
        if path:
            kind_for(format).reader.check_path(path, caller(self.root))

    def absolute_path(self, path: str) -> str:
        """A path as Spark gets it: a relative one starts at the pipeline's folder."""
        if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", path):
            return path
        return os.path.normpath(self.root.absolute() / path)

    def refuse_action(self, what: str) -> None:
        """Refuse an action in a query; at module level actions are allowed."""
        if isinstance(self.mode, Loading):
            return
        raise ActionInQueryError(
            f"a query calls {what}, which would compute or write at once",
            location=caller(self.root),
            facts=["a query only describes its table; Headrace runs it, once for each batch"],
            remedies=["remove the call, or compute the value at module level"],
            params={"action": what},
        )

    def dataset(self, session: SparkSession, parts: tuple[str, ...]) -> TableName | None:
        """The dataset that a name means; ``None`` if it is a temporary view or belongs to Spark."""
        name = self.names.table(parts)
        if name is None or len(parts) > 1 or self.declared(name):
            return name
        # A view that the user's own code has made in this session hides a table, as in Spark.
        view = session._jsparkSession.sessionState().catalog().getTempView(parts[0])
        if parts[0].casefold() == EVENT_LOG:
            with suspended():
                open_event_log(session, view, self.names.storage)
            return None
        return None if view.isDefined() else name

    def ask(
        self,
        name: TableName,
        *,
        streaming: bool,
        changes: bool,
        options: Mapping[str, str] | None = None,
        location: SourceLocation | None = None,
    ) -> Answer:
        """What a read of a dataset becomes."""
        if self.tables is None:
            return Answer(quoted(name), name)
        access = TableAccess(
            name=name,
            streaming=streaming,
            location=location or caller(self.root),
            changes=changes,
            options=options or {},
        )
        with suspended():
            return Answer(quoted(name), name, self.tables(access))


# -- the interception in force

_current: ContextVar[Interception | None] = ContextVar("headrace_interception", default=None)
_quiet: ContextVar[bool] = ContextVar("headrace_quiet", default=False)


def current_interception() -> Interception | None:
    """The interception of the code that this thread runs."""
    return _current.get()


def is_quiet() -> bool:
    """Whether Headrace reports what the code of this thread raises, so that PySpark need not print it."""
    return _quiet.get()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PySpark from printing the errors that the code within raises."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


@contextmanager
def in_force(interception: Interception | None) -> Iterator[None]:
    """Apply an interception to the code within; PySpark must have been patched."""
    token = _current.set(interception)
    try:
        with quiet():
            yield
    finally:
        _current.reset(token)


@contextmanager
def suspended() -> Iterator[None]:
    """Intercept nothing within: the code is Spark's or Headrace's own."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)
