"""The declarations of a pipeline's files, and the pipeline that is active while its code runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headrace.errors import (
    DuplicateNameError,
    ExpectationInvalidError,
    NoActivePipelineError,
    SourceLocation,
    TargetInvalidError,
)
from headrace.model.declarations import (
    Dataset,
    DatasetCheck,
    Declarations,
    Expectation,
    Flow,
    StreamingTable,
    TemporaryView,
)
from headrace.model.folders import FileFolder
from headrace.model.names import TableName
from headrace.model.notes import Note
from headrace.model.project import ProjectSettings
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sources.bad_records import BadRecords
from headrace.state.kept_schemas import SchemaKey

Expected = Expectation | DatasetCheck
"""What a decorator expects of the rows of a dataset, or of the whole dataset."""


class Registry:
    """Collects declarations while a pipeline's files run."""

    def __init__(self, default_schema: str = "default") -> None:
        self._default_schema = default_schema
        self._datasets: dict[str, Dataset] = {}
        self._flows: dict[str, Flow] = {}
        self._notes: list[Note] = []
        self._owners: list[tuple[Any, str]] = []
        self._expected: list[tuple[Any, tuple[Expected, ...]]] = []
        self._changed: list[tuple[TableName, SourceLocation, Mapping[str, Any]]] = []

    def add_dataset(self, dataset: Dataset, function: Any = None) -> None:
        # Tables are folders: two names that differ only in case would share one folder on some machines.
        key = str(dataset.name).casefold()
        if earlier := self._datasets.get(key):
            shown = str(dataset.name).removeprefix(f"{self._default_schema}.")
            raise _duplicate("dataset", shown, earlier.location, dataset.location)
        self._datasets[key] = dataset
        if function is not None:
            self.own(function, dataset.name)

    @property
    def newest(self) -> Dataset:
        return next(reversed(self._datasets.values()))

    def own(self, function: Any, dataset: TableName) -> None:
        self._owners.append((function, str(dataset).casefold()))

    def let_query_decide(self, function: Any) -> None:
        """Let the table that a function declares be a materialized view if its query reads no stream."""
        for owner, key in self._owners:
            dataset = self._datasets[key]
            if owner is function and isinstance(dataset, StreamingTable):
                self._datasets[key] = replace(dataset, can_be_view=True)

    def expect(self, function: Any, expectations: tuple[Expected, ...]) -> None:
        """Add expectations and checks to the dataset that a function declares, now or later."""
        self._expected.append((function, expectations))

    def change_columns(self, table: TableName, location: SourceLocation, changed: Mapping[str, Any]) -> None:
        """Add to the ``renamed_columns`` and ``dropped_columns`` of a table."""
        self._changed.append((table, location, changed))

    def add_flow(self, flow: Flow) -> None:
        """Add a flow whose name must be new in the whole pipeline."""
        key = flow.name.casefold()
        if earlier := self._flows.get(key):
            raise _duplicate("flow", flow.name, earlier.location, flow.location)
        self._flows[key] = flow

    def add_note(self, note: Note) -> None:
        self._notes.append(note)

    def declarations(self) -> Declarations:
        """All declarations so far, in their order."""
        datasets = dict(self._datasets)
        # Decorators run from the bottom to the top; a reader reads them from the top.
        for function, expectations in reversed(self._expected):
            owned = [key for owner, key in self._owners if owner is function]
            if not owned:
                raise _without_dataset(function, expectations)
            for key in owned:
                datasets[key] = _with_expectations(datasets[key], expectations)
        for name, location, changed in self._changed:
            table = datasets.get(str(name).casefold())
            if not isinstance(table, StreamingTable):
                raise TargetInvalidError(
                    f"ALTER TABLE names `{name.short}`, which is not a streaming table of this pipeline",
                    location=location,
                    remedies=["name a table that a file declares with CREATE STREAMING TABLE"],
                    params={"target": str(name)},
                )
            datasets[str(name).casefold()] = replace(
                table,
                renamed_columns={**table.renamed_columns, **changed["renamed_columns"]},
                dropped_columns=(*table.dropped_columns, *changed["dropped_columns"]),
            )
        return Declarations(tuple(datasets.values()), tuple(self._flows.values()), tuple(self._notes))


def _with_expectations(dataset: Dataset, found: tuple[Expected, ...]) -> Dataset:
    expectations = tuple(one for one in found if isinstance(one, Expectation))
    checks = tuple(one for one in found if isinstance(one, DatasetCheck))
    dataset = replace(dataset, expectations=(*dataset.expectations, *expectations))
    if not checks:
        return dataset
    if isinstance(dataset, TemporaryView):
        raise ExpectationInvalidError(
            f"the temporary view `{dataset.name.short}` has no table for the check `{checks[0].name}`",
            location=checks[0].location,
            remedies=["declare the check on the table that reads the view"],
            params={"dataset": str(dataset.name), "expectation": checks[0].name},
        )
    return replace(dataset, checks=(*dataset.checks, *checks))


def _without_dataset(function: Any, expectations: tuple[Expected, ...]) -> ExpectationInvalidError:
    name = getattr(function, "__name__", "the function")
    return ExpectationInvalidError(
        f"`{name}` has expectations and declares no dataset",
        location=expectations[0].location if expectations else None,
        facts=["an append flow has none of its own: the rows of all flows meet the table's expectations"],
        remedies=[
            "decorate it with @hr.table, @hr.materialized_view or @hr.temporary_view too",
            "for a table with append flows: hr.create_streaming_table(.., expect_all={..})",
        ],
        params={"function": name},
    )


def _duplicate(kind: str, name: str, first: SourceLocation, second: SourceLocation) -> DuplicateNameError:
    other = "another name" if second.is_sql else f'another name, such as name="{name.rpartition(".")[2]}_2"'
    return DuplicateNameError(
        f"the {kind} `{name}` is declared twice",
        location=second,
        facts=[f"first declared at {first}"],
        remedies=[f"give one of the two {other}"],
        params={"kind": kind, "name": name, "first": str(first), "second": str(second)},
    )


FolderHook = Callable[[FileFolder, str, Any, Mapping[str, str], SourceLocation], FileFolder]
"""Gives the folder to read for a folder, the format and schema of its files, the options and the line."""


@dataclass(frozen=True)
class ActivePipeline:
    """The pipeline whose files or queries run now."""

    settings: ProjectSettings
    session: Callable[[], SparkSession]
    registry: Registry | None = None  # the registry of decorators; ``None`` after the files have been loaded
    schema_files: dict[str, str] = field(default_factory=dict)
    inferred: list[tuple[SchemaKey, Mapping[str, Any]]] = field(default_factory=list)
    # Gives the folder that is read in place of another; ``None`` reads the named one.
    folders: FolderHook | None = None
    # Whether reads leave bad records out of their rows, to be found again. Reads at module level are not
    # evaluated again for it.
    quarantines: bool = False
    bad_records: list[BadRecords] | None = None  # takes the bad records of reads, if they are wanted

    def note(
        self,
        text: str,
        location: SourceLocation,
        *,
        level: Literal["warning", "note"] = "note",
        remedy: str | None = None,
    ) -> None:
        """Add a note to the plan while the files are loaded."""
        if self.registry is not None:
            self.registry.add_note(Note(level=level, text=text, location=location, remedy=remedy))


_active: ContextVar[ActivePipeline | None] = ContextVar("headrace_active_pipeline", default=None)


def current_pipeline() -> ActivePipeline | None:
    return _active.get()


def require_pipeline(what: str) -> ActivePipeline:
    """The active pipeline; without one, an error about ``what``."""
    active = _active.get()
    if active is None:
        raise NoActivePipelineError(
            f"{what} was used outside of a pipeline",
            remedies=[
                "run the files of the pipeline:   headrace plan",
                "or, in a test, use your own session in place of `headrace.spark`: "
                "SparkSession.builder.getOrCreate()",
            ],
            params={"what": what},
        )
    return active


@contextmanager
def activate_pipeline(active: ActivePipeline) -> Iterator[None]:
    token = _active.set(active)
    try:
        yield
    finally:
        _active.reset(token)


class ActiveSession:
    """A proxy of the active pipeline's session, looked up at each use: a flow runs in a clone of its own."""

    def __getattr__(self, name: str) -> Any:
        # Tools probe for dunder attributes (copy, pickle, inspect); none of them may start a JVM.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(require_pipeline("spark").session(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(require_pipeline("spark").session(), name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """``SparkSession`` where PySpark is loaded, so that ``isinstance`` answers as users expect."""
        pyspark_sql = sys.modules.get("pyspark.sql")
        return ActiveSession if pyspark_sql is None else pyspark_sql.SparkSession

    def __repr__(self) -> str:
        return "<spark: the active pipeline's session>"


spark = ActiveSession()
