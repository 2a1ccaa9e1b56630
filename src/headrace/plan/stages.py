"""A plan as data: what `explain` prints is what `run` executes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.errors import HeadraceError, SourceLocation
from headrace.model.declarations import (
    Dataset,
    Flow,
    MaterializedView,
    StreamingTable,
    TemporaryView,
)
from headrace.model.names import TableName
from headrace.model.project import OnDataLoss, ProjectSettings
from headrace.model.ranges import SourceKind


@dataclass(frozen=True, kw_only=True)
class TableRead:
    """A query reads a table, of this pipeline or of another."""

    table: TableName
    streaming: bool
    location: SourceLocation
    declared: bool


@dataclass(frozen=True, kw_only=True)
class PlannedSource:
    """One streaming source of a flow's query, in Spark's order.

    Args:
        topics: Kafka topics by name; empty for other kinds, and for a topic pattern.
        topic_pattern: The pattern that topics are found by.
        partitions: The partitions of each topic, where they are given one by one.
        allow_no_topics: Whether the pattern may match nothing yet.
        on_data_loss: The policy of this source alone; ``None`` takes the pipeline's.
        table: The dataset behind a delta source of our own storage.
        path: The path of a delta or files source.
        format: What the files of a files source hold.
        options: The source's options as Spark holds them; they can hold secrets.
        folder: The number of its folder in a checkpoint's ``sources/``; smaller than ``index`` where
            the query reads one DataFrame several times, since Spark opens such a source once.
        read: The number of the read in the query; a DataFrame that is used twice has one.
        erasures_only: Whether it passes over what others erase from the table, and over nothing else.
        adaptive: Whether the limit of its batches is ours to choose.
    """

    index: int
    kind: SourceKind
    location: SourceLocation
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    allow_no_topics: bool = False
    on_data_loss: OnDataLoss | None = None
    table: TableName | None = None
    path: str | None = None
    format: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: int | None = None
    read: int = 0
    erasures_only: bool = False
    adaptive: bool = False


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """The columns of a table that hold each record's place in Kafka (dotted paths)."""

    topic: str
    partition: str
    offset: str

    def to_json(self) -> dict[str, str]:
        return {"topic": self.topic, "partition": self.partition, "offset": self.offset}


@dataclass(frozen=True, kw_only=True)
class PlannedFlow:
    """A flow whose query has been resolved.

    Args:
        schema: The query's columns, as ``StructType.jsonValue()`` gives them.
        reads: The tables that the query reads, streaming or not, also through temporary views.
        sources: Its streaming sources.
        stateful: Whether the query keeps state (aggregation, deduplication, stream-stream join).
        coordinates: Set where the query makes exactly one row of each record and keeps its place.
        timestamp: The column (dotted path) that holds the Kafka timestamp, where one does.
        reads_target: Whether the query reads the table that it writes.
        fingerprint: A hash of the query's plan, equal as long as the query means the same.
        through: The temporary views that the query reads, also through each other.
    """

    flow: Flow
    schema: Mapping[str, Any]
    reads: tuple[TableRead, ...]
    sources: tuple[PlannedSource, ...]
    stateful: bool
    coordinates: Coordinates | None
    timestamp: str | None
    reads_target: bool
    fingerprint: str
    through: tuple[TableName, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlannedView:
    """A materialized or temporary view whose query has been resolved.

    Args:
        reads: The tables that the query reads, also through temporary views.
        through: The temporary views that the query reads, also through each other.
    """

    view: MaterializedView | TemporaryView
    schema: Mapping[str, Any]
    reads: tuple[TableRead, ...]
    fingerprint: str
    through: tuple[TableName, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OpenTableStage:
    """Create the table if it is missing, else bring its properties and new columns up to date."""

    table: StreamingTable
    schema: Mapping[str, Any]
    properties: Mapping[str, str]
    flows: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RunFlowStage:
    planned: PlannedFlow


@dataclass(frozen=True, kw_only=True)
class RefreshViewStage:
    planned: PlannedView
    properties: Mapping[str, str]


Stage = OpenTableStage | RunFlowStage | RefreshViewStage


ChangedPart = Literal["table", "kind", "column", "property", "comment", "layout", "query", "inputs", "flow"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a run would change in the storage, or what it would leave there (``keep``).

    Args:
        text: The change in one sentence.
        part: What of the dataset it is about.
        name: The column, the property or the flow that it is about, where it is about one.
    """

    kind: Literal["create", "alter", "recompute", "remove", "keep"]
    dataset: TableName
    text: str
    part: ChangedPart = "table"
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Note:
    """A fact about the pipeline that may surprise its author; a run is not refused for it."""

    level: Literal["warning", "note"]
    text: str
    location: SourceLocation
    remedy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The resolved pipeline.

    Args:
        levels: Stages in dependency order; the stages of one level do not depend on each other.
        changes: Against the storage; ``None`` when planned offline.
        partitions: Of each Kafka topic, as far as a broker was there to be asked.
        matches: The topics of each pattern, as far as a broker was there to be asked.
        folders: What each files source finds now, in words, by the place of its read.
        refusals: What a run would refuse as things stand, each with its remedy; not known offline.
        reads_kafka: Whether any query does, as a stream or not.
        notes: Facts that may surprise the author.
    """

    project: ProjectSettings
    datasets: tuple[Dataset, ...]
    flows: tuple[PlannedFlow, ...]
    views: tuple[PlannedView, ...]
    levels: tuple[tuple[Stage, ...], ...]
    schemas: Mapping[TableName, Mapping[str, Any]]
    changes: tuple[Change, ...] | None = None
    partitions: Mapping[str, int] = field(default_factory=dict)
    matches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folders: Mapping[SourceLocation, str] = field(default_factory=dict)
    refusals: tuple[HeadraceError, ...] = ()
    reads_kafka: bool = False
    notes: tuple[Note, ...] = ()

    def __repr__(self) -> str:
        facts = [f"{len(self.datasets)} datasets", f"{len(self.flows)} flows"]
        if self.changes is not None:
            facts.append(f"{sum(change.kind != 'keep' for change in self.changes)} changes")
        if self.refusals:
            facts.append(f"{len(self.refusals)} refusals")
        return f"<Plan of {self.project.name}: {', '.join(facts)}>"

    def feeding(self, table: TableName) -> tuple[PlannedFlow, ...]:
        """The flows that write a table."""
        return tuple(one for one in self.flows if one.flow.target == table)

    @property
    def would_change(self) -> bool | None:
        """Whether a run would change a table by more than new rows; ``None`` when planned offline."""
        return None if self.changes is None else any(change.kind != "keep" for change in self.changes)
