"""What a pipeline's files declare: frozen records, as the decorators leave them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, assert_never

from headrace.errors import SourceLocation
from headrace.model.changes import ChosenColumns
from headrace.model.expectations import DatasetCheck, Expectation
from headrace.model.names import TableName
from headrace.model.notes import Note
from headrace.model.queries import Query
from headrace.model.rejection_limit import RejectionLimit
from headrace.model.sinks import Sink
from headrace.model.snapshots import Snapshots
from headrace.model.triggers import Trigger


@dataclass(frozen=True, kw_only=True)
class StreamingTable:
    """A table fed by one or more flows, which either append rows or apply changes by key.

    Args:
        max_rejected: The limit of rejected records of a batch; ``None`` takes the pipeline's.
        maintenance: How the table is cared for, by the names of `CarePolicy`.
        can_be_view: Whether a query that reads no stream makes it a materialized view, as in Lakeflow.
        renamed_columns: New names for columns of an existing table, by their old names.
    """

    name: TableName
    location: SourceLocation
    comment: str | None = None
    table_properties: Mapping[str, str] = field(default_factory=dict)
    partition_cols: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    schema: Any | None = None
    """A DDL string or a ``pyspark.sql.types.StructType``; ``None`` takes the query's."""
    format: str | None = None
    expectations: tuple[Expectation, ...] = ()
    max_rejected: RejectionLimit | None = None
    checks: tuple[DatasetCheck, ...] = ()
    maintenance: Mapping[str, Any] = field(default_factory=dict)
    sink: Sink | None = None  # where the rows go, if the table is a sink, which only records the batches
    can_be_view: bool = False
    renamed_columns: Mapping[str, str] = field(default_factory=dict)
    dropped_columns: tuple[str, ...] = ()
    is_private: bool = False


@dataclass(frozen=True, kw_only=True)
class MaterializedView:
    """A table that a refresh flow keeps equal to the result of its query.

    Args:
        max_rejected: The limit of rejected rows of a refresh; ``None`` takes the pipeline's.
        maintenance: How the table is cared for, by the names of `CarePolicy`.
    """

    name: TableName
    location: SourceLocation
    comment: str | None = None
    table_properties: Mapping[str, str] = field(default_factory=dict)
    partition_cols: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    schema: Any | None = None
    format: str | None = None
    expectations: tuple[Expectation, ...] = ()
    max_rejected: RejectionLimit | None = None
    checks: tuple[DatasetCheck, ...] = ()
    maintenance: Mapping[str, Any] = field(default_factory=dict)
    is_private: bool = False  # whether the table is left out of lists of tables


@dataclass(frozen=True, kw_only=True)
class TemporaryView:
    """A named query of the pipeline, stored nowhere."""

    name: TableName
    query: Query
    comment: str | None = None
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    expectations: tuple[Expectation, ...] = ()

    @property
    def location(self) -> SourceLocation:
        return self.query.location


Dataset = StreamingTable | MaterializedView | TemporaryView


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The groups of a streaming aggregate; each batch has the groups that have changed."""

    keys: tuple[str, ...]  # the columns that identify a group; empty if all rows are one group
    only_new: bool  # whether the query returns no other columns, as ``SELECT DISTINCT`` does: no row changes


@dataclass(frozen=True, kw_only=True)
class AppendFlow:
    """A streaming query whose rows are appended to a streaming table; it owns exactly one checkpoint.

    Args:
        groups: The groups of a query that aggregates without a watermark: the table has one row for each.
            ``None`` appends all rows.
    """

    name: str
    target: TableName
    query: Query
    groups: Groups | None = None
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    trigger: Trigger | None = None  # ``None`` takes the pipeline's
    once: bool = False  # whether the query is a batch query, whose rows are appended once

    @property
    def location(self) -> SourceLocation:
        return self.query.location


@dataclass(frozen=True, kw_only=True)
class AutoCdcFlow:
    """A streaming query of change records that are applied to a table by key; it owns one checkpoint.

    Args:
        null_keys: What happens to a record without a key or a sequence.
        history: The tracked columns of a table with the history of each key (SCD type 2); ``None`` if it has
            the current row of each key (SCD type 1).
        kept_if_null: The columns that keep their value where a record has NULL; ``None`` if none does.
        snapshots: Where the snapshots come from whose differences are the change records; ``None`` if the
            query gives the records.
    """

    name: str
    target: TableName
    query: Query  # gives the change records, with the columns of `contracts.changes`
    keys: tuple[str, ...]
    sequence_by: str  # what orders the records of a key, for people
    truncates: bool = False  # whether records can truncate the table
    null_keys: Literal["quarantine", "fail"] = "quarantine"
    history: ChosenColumns | None = None
    kept_if_null: ChosenColumns | None = None
    snapshots: Snapshots | None = None
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    trigger: Trigger | None = None
    once: bool = False  # whether the query is a batch query, whose records are applied once

    @property
    def location(self) -> SourceLocation:
        return self.query.location


@dataclass(frozen=True, kw_only=True)
class RefreshFlow:
    """A batch query whose result replaces the rows of a materialized view."""

    target: TableName
    query: Query
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    trigger: Trigger | None = None
    """The minimum time between two refreshes of a continuous update; ``None`` uses the pipeline's."""

    @property
    def name(self) -> str:
        return str(self.target)

    @property
    def location(self) -> SourceLocation:
        return self.query.location


StreamingFlow = AppendFlow | AutoCdcFlow
"""A streaming query that feeds a table; it has a checkpoint."""

Flow = StreamingFlow | RefreshFlow
"""A query and what is done with its rows. Every `match` over the kinds ends in `assert_never`."""


def snapshots_of(flow: Flow | TemporaryView) -> Snapshots | None:
    """Where the snapshots of a flow come from; ``None`` if its query gives its rows."""
    return flow.snapshots if isinstance(flow, AutoCdcFlow) else None


def is_once(flow: Flow | TemporaryView) -> bool:
    """Whether the flow's query is a batch query whose rows are applied once."""
    return isinstance(flow, AppendFlow | AutoCdcFlow) and flow.once


@dataclass(frozen=True)
class Declarations:
    """Everything that a pipeline's files declare, in the order of their reading."""

    datasets: tuple[Dataset, ...] = ()
    flows: tuple[Flow, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def streaming_flows(self) -> tuple[StreamingFlow, ...]:
        found: list[StreamingFlow] = []
        for flow in self.flows:
            match flow:
                case AppendFlow() | AutoCdcFlow():
                    found.append(flow)
                case RefreshFlow():
                    pass
                case _:
                    assert_never(flow)
        return tuple(found)

    def auto_cdc_of(self, table: TableName) -> AutoCdcFlow | None:
        """A flow that applies changes by key to a table; all its flows have the same keys."""
        found = (one for one in self.streaming_flows if isinstance(one, AutoCdcFlow) and one.target == table)
        return next(found, None)

    def groups_of(self, table: TableName) -> Groups | None:
        """The groups that a table has, if its flow aggregates."""
        flows = (one for one in self.streaming_flows if one.target == table)
        return next((one.groups for one in flows if isinstance(one, AppendFlow) and one.groups), None)

    def changes_rows(self, table: TableName) -> bool:
        """Whether flows update or delete rows of a table."""
        groups = self.groups_of(table)
        return self.auto_cdc_of(table) is not None or (groups is not None and not groups.only_new)

    def with_flow(self, flow: StreamingFlow) -> Declarations:
        """The declarations with a flow in place of the one with its name."""
        flows = (flow if one.name == flow.name else one for one in self.flows)
        return replace(self, flows=tuple(flows))

    def with_view(self, table: StreamingTable) -> Declarations:
        """The declarations with a materialized view in place of a table with one append flow."""
        names = [one.name for one in fields(MaterializedView)]
        view = MaterializedView(**{name: getattr(table, name) for name in names})
        flows = (
            RefreshFlow(target=one.target, query=one.query, spark_conf=one.spark_conf, trigger=one.trigger)
            if one.target == table.name
            else one
            for one in self.flows
        )
        datasets = (view if one is table else one for one in self.datasets)
        return replace(self, datasets=tuple(datasets), flows=tuple(flows))

    @property
    def refresh_flows(self) -> tuple[RefreshFlow, ...]:
        found: list[RefreshFlow] = []
        for flow in self.flows:
            match flow:
                case RefreshFlow():
                    found.append(flow)
                case AppendFlow() | AutoCdcFlow():
                    pass
                case _:
                    assert_never(flow)
        return tuple(found)
