"""How the reads and actions of the user's code are treated while one piece of it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from headrace.errors import ActionInQueryError, SourceLocation, WriteInFileError
from headrace.model.event_forms import event_columns
from headrace.model.names import NamesInUse, TableName, names_in_use
from headrace.model.notes import Note
from headrace.model.project import MappedTable, ProjectSettings
from headrace.plan.modes import Loading, Mode, Planning, Running, Sending, SourceHook, TableAccess, TableHook
from headrace.plan.names import EVENT_LOG, NameRules, quoted, quoted_parts, split_name
from headrace.runtime.gateway import named_frame, new_frame, quiet
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession, T
from headrace.sources.registry import kind_for
from headrace.sources.requests import ReaderDefaults, ReadRequest, SourceRead
from headrace.storage.layout import Storage
from headrace.storage.mapped_files import mapped_path
from headrace.storage.table_log import is_table
from headrace.syntax.locations import caller, method_location

_EFFECTS = {"writeStream": "start a stream"}
_DECLARATIONS = {
    "writeStream": (
        "write a function that returns the stream:   @hr.table",
        "and in the next line:   def NAME(): return STREAM",
        "or, to send it to another system, declare a sink: hr.create_sink(..), @hr.foreach_batch_sink",
    ),
    "write": (
        "write a function that returns the rows:   @hr.materialized_view",
        "and in the next line:   def NAME(): return ROWS",
    ),
}
"""What is declared in place of a write."""

LOCATION_OPTION = "headrace.location"
"""An option that Spark ignores: it carries the user's line to the leaf of the plan."""


@dataclass(frozen=True)
class Answer:
    """What a read of a table becomes: a DataFrame, Spark's own read of a name, or the read of a path."""

    text: str
    name: TableName | None = None
    frame: DataFrame | None = None
    path: str | None = None  # the path of a Delta table, if an entry of `tables` maps the name to it


@dataclass(frozen=True, kw_only=True)
class Interception:
    """How the reads and actions of one piece of the user's code are treated."""

    mode: Mode
    settings: ProjectSettings
    # The catalog and the schema that ``USE`` has set.
    in_use: NamesInUse = field(default_factory=NamesInUse)
    # The session that the code gets, also where it asks Spark for one; ``None`` while the files are loaded.
    session: SparkSession | None = None
    tables: TableHook | None = None  # called before each read of a table; ``None`` leaves such reads to Spark
    # Whether a name, which is given with its parts, is that of a dataset of the pipeline. A temporary view of
    # the user's code never hides it.
    declared: Callable[[TableName, tuple[str, ...]], bool] = field(default=lambda *_: False)
    views: list[str] = field(default_factory=list)  # the temporary views that the code has made
    replaced: dict[str, TableName] = field(default_factory=dict)
    """The datasets that temporary views of their names replace in SQL."""
    notes: dict[str, Note] = field(default_factory=dict)
    """Notes about names and paths that the spec maps, by their texts."""

    @cached_property
    def names(self) -> NameRules:
        return NameRules(self.settings, self.in_use)

    @property
    def root(self) -> Path:
        return self.settings.root

    @property
    def stands_in(self) -> bool:
        """Whether tables are empty stand-ins, without rows and without a history."""
        return isinstance(self.mode, Planning)

    @property
    def acts(self) -> bool:
        """Whether the code may compute and write: at module level, and in the function of a sink."""
        return isinstance(self.mode, Loading | Sending)

    @property
    def sources(self) -> SourceHook | None:
        return self.mode.sources

    def using(self, names: NamesInUse) -> Interception:
        return self if names.schema is None else replace(self, in_use=names)

    def current_session(self) -> SparkSession:
        if isinstance(self.mode, Loading):
            with suspended():
                return self.mode.session()
        assert self.session is not None
        return self.session

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
        if parts is None:
            return Answer(text)
        if (mapped := self.mapped(session, parts)) is not None:
            if mapped.path is not None:
                return Answer(text, path=mapped.path)
            parts = mapped.parts
            text = quoted_parts(parts)
        name = self.dataset(session, parts)
        if name is None:
            return Answer(text)
        if self.tables is None:
            is_spark_name = len(parts) <= 2 and not self.names.qualifies
            return Answer(text if is_spark_name else quoted(name), name)
        return self.ask(name, streaming=streaming, changes=changes, options=options, parts=parts)

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

    def replaced_options(self, request: ReadRequest) -> Mapping[str, str] | None:
        """All options that take the place of a reader's; ``None`` if it keeps its own."""
        found = kind_for(request.format).reader.replaced_options(request, caller(self.root), self.settings)
        if found is None:
            return None
        options, note = found
        if note is not None:
            self.note(note)
        return options

    def reader_options(self, request: ReadRequest, location: SourceLocation | None = None) -> dict[str, str]:
        location = caller(self.root) if location is None else location
        self.settings.redactor.add_settings(request.options)
        defaults = ReaderDefaults(settings=self.settings)
        if isinstance(mode := self.mode, Running):
            defaults = replace(defaults, record_limit=mode.record_limit, whole_commits=mode.whole_commits)
        options = kind_for(request.format).reader.options(request, location, defaults)
        self.settings.redactor.add_settings(options)
        if request.streaming and isinstance(self.mode, Loading | Planning):
            options[LOCATION_OPTION] = str(location)
        return options

    def check_path(self, path: str | None, format: str) -> None:
        if path:
            kind_for(format).reader.check_path(path, caller(self.root))

    def absolute_path(self, path: str) -> str:
        """A path as Spark gets it: an entry of `paths` applies, and relative paths start at the pipeline."""
        found = self.settings.paths.find(path)
        if found is not None:
            self.note(f"`{path}` is {_shown(found.path, self.root)} (paths: {found.rule})")
        return mapped_path(path, self.settings, caller(self.root))

    def refuse_action(self, what: str, *, remedy: str | None = None, does: str = "compute") -> None:
        """Refuse an action in a query. `remedy`: by default, how to compute a value elsewhere."""
        if self.acts:
            return
        location, rows, call = method_location(caller(self.root), what.removesuffix("()"))
        rows = rows or 'spark.read.table("TABLE")'
        counted = f'return or join the count as a column:   {rows}.selectExpr("count(*) AS count")'
        above = "or compute it above the function, from the rows before the run, and use `value`"
        remedies = (
            counted if what == "count()" else f"return or join the rows without {what}:   {rows}",
            above if call is None else f"{above}:   value = {call}",
        )
        raise ActionInQueryError(
            f"a query calls {what}, which would {does} at once",
            location=location,
            facts=["a query only describes its table; Headrace runs it"],
            remedies=remedies if remedy is None else (remedy,),
            params={"action": what},
        )

    def refuse_write(self, what: str) -> None:
        """Refuse a write or the start of a stream: a pipeline's files run for each command, also `plan`."""
        if not isinstance(self.mode, Loading):
            remedy = "remove the call; to write elsewhere, declare a sink: @hr.foreach_batch_sink"
            self.refuse_action(what, remedy=remedy, does="write")
            return
        if self.mode.may_write:
            return
        raise WriteInFileError(
            f"the file calls {what}, which would {_EFFECTS.get(what, 'write')} while it is loaded",
            location=caller(self.root),
            facts=["nothing was written: Headrace runs the files for each command, also for plan"],
            remedies=[
                *_DECLARATIONS.get(what, _DECLARATIONS["write"]),
                "or move the file to a folder that `libraries` does not have, and run it by itself",
            ],
            params={"action": what},
        )

    def mapped(self, session: SparkSession, parts: tuple[str, ...]) -> MappedTable | None:
        """The entry of `tables` for a name that no file declares."""
        mapped = self.names.mapped(parts)
        if mapped is None:
            return None
        name = self.names.table(parts)
        if name is not None and (
            self.declared(name, parts) or (len(parts) == 1 and _view(session, parts[0]).isDefined())
        ):
            return None
        to = _shown(mapped.path, self.root) if mapped.path else ".".join(mapped.parts)
        self.note(f"`{'.'.join(parts)}` is {to} (tables: {mapped.rule})")
        return mapped

    def note(self, text: str) -> None:
        self.notes.setdefault(text, Note(level="note", text=text, location=caller(self.root)))

    def dataset(self, session: SparkSession, parts: tuple[str, ...]) -> TableName | None:
        """The dataset that a name means; ``None`` if it is a temporary view or belongs to Spark."""
        name = self.names.table(parts)
        if name is None or len(parts) > 1 or self.declared(name, parts):
            return name
        # A view that the user's own code has made in this session hides a table, as in Spark.
        view = _view(session, parts[0])
        if parts[0].casefold() == EVENT_LOG:
            with suspended():
                open_event_log(session, view, self.settings.storage)
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
        parts: tuple[str, ...] = (),
    ) -> Answer:
        if self.tables is None:
            return Answer(quoted(name), name)
        if len(parts) == 3:
            self.note(f"`{'.'.join(parts)}` is the table `{name.short}` of this pipeline")
        access = TableAccess(
            name=name,
            streaming=streaming,
            location=location or caller(self.root),
            changes=changes,
            options=options or {},
            parts=parts,
        )
        with suspended():
            frame = self.tables(access)
            if frame is not None:
                frame = named_frame(frame, parts if len(parts) > 1 else (name.schema, name.name))
            return Answer(quoted(name), name, frame)


def _shown(path: str, root: Path) -> str:
    """A path as the user would write it in the spec."""
    shown = os.path.relpath(path, root) if path.startswith("/") else path
    return path if shown.startswith("../..") else shown


def _view(session: SparkSession, name: str) -> Any:
    """The temporary view of a name in a session, as Scala's Option."""
    return session._jsparkSession.sessionState().catalog().getTempView(name)


_current: ContextVar[Interception | None] = ContextVar("headrace_interception", default=None)


def current_interception() -> Interception | None:
    """The interception of the code that this thread runs."""
    found = _current.get()
    if found is not None and isinstance(found.mode, Loading):
        return found.using(names_in_use())
    return found


@contextmanager
def in_force(interception: Interception | None) -> Iterator[None]:
    """Apply an interception to the code within; PySpark must have been patched."""
    token = _current.set(interception)
    try:
        with quiet():
            yield
    finally:
        _current.reset(token)


def suspended() -> AbstractContextManager[None]:
    """Intercept nothing within: the code is Spark's or Headrace's own, which reports its errors itself."""
    return in_force(None)


_MARK = "headrace_event_log"
"""An alias in the plan of the view, which tells it from a view that the user's code has made."""


def open_event_log(session: SparkSession, view: Any, storage: Storage) -> None:
    """Create the view over the event log at each read, unless the user's code has a view of its name."""
    if view.isDefined() and _MARK not in str(view.get().toString()):
        return
    if is_table(storage.events):
        frame = session.read.format("delta").load(str(storage.events))
    else:
        frame = new_frame(session, [], T.StructType.fromJson(event_columns()))
    frame.alias(_MARK).createOrReplaceTempView(EVENT_LOG)
