"""A plan as data: what `explain` prints is what `run` executes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import HeadraceError, SourceLocation
from headrace.model.declarations import (
    Dataset,
    DatasetCheck,
    Expectation,
    Flow,
    MaterializedView,
    RefreshFlow,
    RejectionLimit,
    Sink,
    StreamingFlow,
    StreamingTable,
    TemporaryView,
)
from headrace.model.lineage import ColumnLineage
from headrace.model.names import TableName
from headrace.model.notes import Note
from headrace.model.project import ProjectSettings
from headrace.model.ranges import RecordCoordinates
from headrace.model.texts import counted, error_texts, html_table
from headrace.sinks.target import Followed
from headrace.sources.requests import Found
from headrace.sources.source import Source
from headrace.state.checkpoint import QueryRecord

if TYPE_CHECKING:
    from headrace.plan.strategies import ViewStrategies

Declared = Flow | TemporaryView  # a declaration that has a query


@dataclass(frozen=True, kw_only=True)
class TableRead:
    table: TableName
    streaming: bool
    location: SourceLocation
    declared: bool


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """The columns (dotted paths) of a table that hold the coordinates of each record, by part."""

    columns: Mapping[str, str]
    record: RecordCoordinates

    def to_json(self) -> dict[str, str]:
        return {name: self.columns[name] for name in self.record.names}


@dataclass(frozen=True, kw_only=True)
class PlannedQuery:
    schema: Mapping[str, Any]  # the query's columns, as ``StructType.jsonValue()`` gives them
    reads: tuple[TableRead, ...]  # the tables that the query reads, also through temporary views
    fingerprint: str  # a hash of the query's logical plan
    through: tuple[TableName, ...] = ()  # the temporary views that the query reads, also through each other
    lineage: ColumnLineage | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class PlannedFlow(PlannedQuery):
    flow: StreamingFlow
    sources: tuple[Source, ...]
    stateful: bool  # whether the query keeps state (aggregation, deduplication, stream-stream join)
    # The coordinate columns, if the query returns one row for each record and keeps them.
    coordinates: Coordinates | None
    timestamp: str | None  # the column (dotted path) that holds each record's timestamp, if there is one
    reads_target: bool  # whether the query reads the table that it writes
    expectations: tuple[Expectation, ...] = ()
    repeatable: bool = True  # whether a batch that is computed twice gives the same rows
    # The Python functions in the query that are not declared as changing.
    python_functions: tuple[str, ...] = ()
    reads_all: bool = True  # whether a batch reads every record of its range
    max_rejected: RejectionLimit | None = None  # the limit of rejected records of a batch, if there is one
    limit_place: SourceLocation | None = None  # where the spec sets the limit; ``None`` if the dataset has it
    checked_views: tuple[TemporaryView, ...] = ()
    checks: tuple[DatasetCheck, ...] = ()
    sink: Sink | None = None  # where the rows go, if the target is a sink
    follows: Followed | None = None  # how the rows of a sink follow those of a table
    # The settings of the sink's connection that the profile gives.
    connection: Callable[[], Mapping[str, str]] = field(default=dict, compare=False, repr=False)
    readers: tuple[TableName, ...] = ()  # the other tables whose flows read its table as a stream
    # Why a query that was applied once cannot be read again; its flow has nothing to do.
    gone: HeadraceError | None = None

    @property
    def record(self) -> QueryRecord:
        skips = tuple(one.index for one in self.sources if one.skips_erasures)
        return QueryRecord(fingerprint=self.fingerprint, schema=self.schema, skips_erasures=skips)


@dataclass(frozen=True, kw_only=True)
class PlannedRefresh(PlannedQuery):
    flow: RefreshFlow
    # Why the rows can differ with equal inputs, such as ``calls current_date()``; each update then
    # refreshes the view.
    varies: tuple[str, ...] = ()
    checked_views: tuple[TemporaryView, ...] = ()
    strategies: ViewStrategies | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class PlannedView(PlannedQuery):
    view: TemporaryView
    sources: tuple[Source, ...]  # the streams that it reads, also through other temporary views


@dataclass(frozen=True, kw_only=True)
class OpenTableStage:
    """Create the table if it is missing, otherwise update its properties and add new columns."""

    table: StreamingTable
    schema: Mapping[str, Any]
    properties: Mapping[str, str]
    flows: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RunFlowStage:
    planned: PlannedFlow


@dataclass(frozen=True, kw_only=True)
class RefreshViewStage:
    """Replace the view's rows if its query or its inputs have changed."""

    view: MaterializedView
    planned: PlannedRefresh
    properties: Mapping[str, str]


Stage = OpenTableStage | RunFlowStage | RefreshViewStage


def target_of(stage: Stage) -> TableName:
    return stage.table.name if isinstance(stage, OpenTableStage) else stage.planned.flow.target


ChangedPart = Literal[
    "table", "kind", "column", "property", "comment", "layout", "query", "inputs", "flow", "always"
]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change that a run would make in the storage, or something that it would keep (``keep``)."""

    kind: Literal["create", "alter", "recompute", "remove", "keep"]
    dataset: TableName
    text: str
    part: ChangedPart = "table"
    name: str | None = None  # the column, the property or the flow that changes, if it is one


@dataclass(frozen=True, kw_only=True)
class Plan:
    project: ProjectSettings
    datasets: tuple[Dataset, ...]
    # The stages of the whole pipeline in dependency order; the stages of one level do not depend on each
    # other.
    all_levels: tuple[tuple[Stage, ...], ...]
    views: tuple[PlannedView, ...] = ()
    selected: frozenset[TableName] | None = None  # the datasets to run; ``None`` runs all
    # The changes that a run would make in the storage; ``None`` when planned offline.
    changes: tuple[Change, ...] | None = None
    # What each source holds now, by flow and source index, if its system answered.
    found: Mapping[tuple[str, int], Found] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()  # the warnings about sources whose systems did not answer
    # The errors with which a run would stop; empty when planned offline.
    refusals: tuple[HeadraceError, ...] = ()
    notes: tuple[Note, ...] = ()

    def __repr__(self) -> str:
        facts = [f"{len(self.datasets)} datasets", f"{len(self.flows)} flows"]
        if self.changes is not None:
            facts.append(f"{sum(change.kind != 'keep' for change in self.changes)} changes")
        if self.refusals:
            facts.append(f"{len(self.refusals)} refusals")
        return f"<Plan of {self.project.name}: {', '.join(facts)}>"

    def _repr_html_(self) -> str:
        changes = [one for one in self.changes or () if one.kind != "keep"]
        rows = [(one.dataset.short, one.kind, one.text) for one in changes]
        planned = f"{counted(len(self.datasets), 'dataset')}, {counted(len(self.flows), 'flow')}"
        lines = [] if changes or self.changes is None else ["A run would change no table."]
        title = f"{self.project.name}: {planned}"
        return html_table(title, ("dataset", "change", "what"), rows, [*lines, *error_texts(self.refusals)])

    @property
    def levels(self) -> tuple[tuple[Stage, ...], ...]:
        if self.selected is None:
            return self.all_levels
        levels = (tuple(s for s in level if target_of(s) in self.selected) for level in self.all_levels)
        return tuple(level for level in levels if level)

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(stage for level in self.levels for stage in level)

    @cached_property
    def flows(self) -> tuple[PlannedFlow, ...]:
        return tuple(one.planned for one in self._all_stages if isinstance(one, RunFlowStage))

    @cached_property
    def refreshes(self) -> tuple[PlannedRefresh, ...]:
        return tuple(one.planned for one in self._all_stages if isinstance(one, RefreshViewStage))

    @property
    def schemas(self) -> Mapping[TableName, Mapping[str, Any]]:
        found: dict[TableName, Mapping[str, Any]] = {one.view.name: one.schema for one in self.views}
        opened = (stage for stage in self._all_stages if isinstance(stage, OpenTableStage))
        found |= {stage.table.name: stage.schema for stage in opened}
        return found | {one.flow.target: one.schema for one in self.refreshes}

    @property
    def _all_stages(self) -> Iterator[Stage]:
        return (stage for level in self.all_levels for stage in level)

    def feeding(self, table: TableName) -> tuple[PlannedFlow, ...]:
        return self._feeding.get(table, ())

    @cached_property
    def _feeding(self) -> Mapping[TableName, tuple[PlannedFlow, ...]]:
        found: dict[TableName, tuple[PlannedFlow, ...]] = {}
        for one in self.flows:
            found[one.flow.target] = (*found.get(one.flow.target, ()), one)
        return found

    def streams(self, table: TableName) -> bool:
        return any(source.table == table for planned in self.flows for source in planned.sources)

    def streams_rows(self, table: TableName) -> bool:
        """Whether a flow reads the rows of a table as a stream, and not its changes."""
        sources = (source for planned in self.flows for source in planned.sources)
        return any(source.table == table and source.feed is None for source in sources)

    def flows_of(self, table: TableName) -> frozenset[str]:
        return frozenset(one.flow.name for one in self.feeding(table))

    def queries_of(self, dataset: Dataset) -> tuple[Declared, ...]:
        if isinstance(dataset, TemporaryView):
            return (dataset,)
        planned: list[PlannedFlow | PlannedRefresh] = [*self.flows, *self.refreshes]
        return tuple(one.flow for one in planned if one.flow.target == dataset.name)

    @property
    def tables_read(self) -> tuple[TableName, ...]:
        resolved = (*self.flows, *self.refreshes, *self.views)
        return tuple(dict.fromkeys(read.table for one in resolved for read in one.reads))

    @property
    def would_change(self) -> bool | None:
        """Whether a run would change more than rows, apart from views that each run computes."""
        if self.changes is None:
            return None
        return any(change.kind != "keep" and change.part != "always" for change in self.changes)


def build_levels(
    tables: Iterable[OpenTableStage], flows: Iterable[PlannedFlow], views: Iterable[RefreshViewStage]
) -> tuple[tuple[Stage, ...], ...]:
    """Stages in dependency order: first all tables, then flows and views after those that they read."""
    opens, runs, refreshes = tuple(tables), tuple(flows), tuple(views)
    reads: dict[TableName, set[TableName]] = {}
    for planned in runs:
        reads.setdefault(planned.flow.target, set()).update(_tables(planned.reads))
    for stage in refreshes:
        reads.setdefault(stage.view.name, set()).update(_tables(stage.planned.reads))
    depths = _depths(reads)
    levels: list[list[Stage]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
    for planned in runs:
        levels[depths[planned.flow.target]].append(RunFlowStage(planned=planned))
    for stage in refreshes:
        levels[depths[stage.view.name]].append(stage)
    first: list[Stage] = [*opens]
    return tuple(tuple(level) for level in (first, *levels) if level)


def _tables(reads: Iterable[TableRead]) -> set[TableName]:
    return {read.table for read in reads if read.declared}


def _depths(reads: Mapping[TableName, set[TableName]]) -> dict[TableName, int]:
    """The length of the longest chain of datasets that each dataset reads, without reads of itself."""
    depths: dict[TableName, int] = {}

    def depth(name: TableName) -> int:
        if name not in depths:
            before = [depth(other) + 1 for other in reads.get(name, ()) if other != name and other in reads]
            depths[name] = max(before, default=0)
        return depths[name]

    for name in reads:
        depth(name)
    return depths
