"""The modes in which the user's code runs, and how each treats reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import SourceLocation
from headrace.model.names import TableName
from headrace.model.ranges import SourceRange
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sources.requests import SourceRead

if TYPE_CHECKING:
    from headrace.declare.registry import FolderHook
    from headrace.plan.resolver import FindTable
    from headrace.plan.stages import Plan
    from headrace.runtime.session import RunningSpark


@dataclass(frozen=True, kw_only=True)
class TableAccess:
    name: TableName
    streaming: bool
    location: SourceLocation  # the user's line, or the location within an SQL text
    changes: bool = False  # whether the table's change feed is read and not its rows
    # The reader's options, as the user has set them.
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    parts: tuple[str, ...] = ()  # the name as the user wrote it; empty for a path

    def read_text(self, name: str, *, streaming: bool, **options: str) -> str:
        """Another read of a table, in the language of this one."""
        if self.location.is_sql:
            listed = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
            return f"FROM {'STREAM ' * streaming}{name}" + (f" WITH ({listed})" if listed else "")
        if "readChangeFeed" in options:
            return f'hr.read_changes("{name}")'
        given = "".join(f'.option("{key}", "{value}")' for key, value in options.items())
        return f'spark.{"readStream" if streaming else "read"}{given}.table("{name}")'


TableHook = Callable[[TableAccess], "DataFrame | None"]
"""Called before each read of a table; a DataFrame that it returns is read instead."""

SourceHook = Callable[[SourceRead], "DataFrame | None"]
"""Called before each read of a source; a DataFrame that it returns is read instead."""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Code runs at once, mostly the pipeline's files: reads at module level hit real tables, and actions are
    allowed."""

    session: Callable[[], SparkSession]  # gives the pipeline's session to code that asks Spark for one
    may_write: bool = False  # whether the code runs once; a pipeline's files run for each command
    sources: SourceHook | None = None


@dataclass(frozen=True, kw_only=True)
class Planning:
    """Queries are resolved: tables are empty stand-ins, without rows and without a history."""

    sources: SourceHook | None = None


@dataclass(frozen=True, kw_only=True)
class Running:
    """Queries are built for a run, over the real tables."""

    sources: SourceHook | None = None
    # The records that a first batch may take if the user sets no limit; ``None`` for the limit of the kind.
    record_limit: int | None = None
    whole_commits: bool = False  # whether a batch of changes must not end within a commit


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """Queries are built as batches over records that are there, for a preview or to read a range again."""

    sources: SourceHook
    # Gives the rows of tables that are not read as they are; ``None`` reads all as they are.
    tables: TableHook | None = None


@dataclass(frozen=True, kw_only=True)
class Sending:
    """The function of a sink has the rows of a batch: tables are real, and actions are allowed."""

    sources: SourceHook | None = None


RangeHook = Callable[[SourceRead, Sequence[SourceRange]], "DataFrame | None"]
"""Called for each read when ranges are read again; a DataFrame that it returns is read instead."""

Mode = Loading | Planning | Running | Bounded | Sending

AsRecords = Callable[[Sequence[SourceRange]], Sequence[SourceRange]]
"""Gives the ranges of a batch in the offsets of its records; a test replaces topics by tables."""


@dataclass(frozen=True, kw_only=True)
class SourceOverrides:
    """How a pipeline runs on given rows instead of its sources."""

    # A session with a catalog of its own, into which the pipeline registers its tables.
    running: RunningSpark | None = None
    sources: SourceHook | None = None
    ranges: RangeHook | None = None
    # Gives the ranges of a batch in the offsets of the topics that are replaced.
    as_records: AsRecords = tuple
    folders: FolderHook | None = None
    # Called for each table that no file declares, before it is looked up in the storage.
    find_table: FindTable | None = None
    check: Callable[[Plan], None] = lambda _: None


REAL_SOURCES = SourceOverrides()
