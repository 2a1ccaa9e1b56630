"""What a pipeline's files declare: frozen records, as the decorators leave them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from headrace.errors import SourceLocation
from headrace.model.expectations import DatasetCheck, Expectation
from headrace.model.names import TableName
from headrace.model.queries import Query
from headrace.model.rejection_limit import RejectionLimit
from headrace.model.triggers import Trigger


@dataclass(frozen=True, kw_only=True)
class StreamingTable:
    """A table that only grows, fed by one or more flows.

    Args:
        max_rejected: The limit of rejected records of a batch; ``None`` takes the pipeline's.
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


@dataclass(frozen=True, kw_only=True)
class MaterializedView:
    """A table that a refresh flow keeps equal to the result of its query."""

    name: TableName
    location: SourceLocation
    comment: str | None = None
    table_properties: Mapping[str, str] = field(default_factory=dict)
    partition_cols: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    schema: Any | None = None
    format: str | None = None
    expectations: tuple[Expectation, ...] = ()
    checks: tuple[DatasetCheck, ...] = ()


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
class AppendFlow:
    """A streaming query whose rows are appended to a streaming table; it owns exactly one checkpoint."""

    name: str
    target: TableName
    query: Query
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    trigger: Trigger | None = None
    """``None`` takes the pipeline's."""

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


StreamingFlow = AppendFlow
"""A streaming query that feeds a table; it has a checkpoint. Another kind makes this a union."""

Flow = StreamingFlow | RefreshFlow
"""A query and what is done with its rows. Every `match` over the kinds ends in `assert_never`."""


@dataclass(frozen=True)
class Declarations:
    """Everything that a pipeline's files declare, in the order of their reading."""

    datasets: tuple[Dataset, ...] = ()
    flows: tuple[Flow, ...] = ()

    @property
    def streaming_flows(self) -> tuple[StreamingFlow, ...]:
        found: list[StreamingFlow] = []
        for flow in self.flows:
            match flow:
                case AppendFlow():
                    found.append(flow)
                case RefreshFlow():
                    pass
                case _:
                    assert_never(flow)
        return tuple(found)

    @property
    def refresh_flows(self) -> tuple[RefreshFlow, ...]:
        found: list[RefreshFlow] = []
        for flow in self.flows:
            match flow:
                case RefreshFlow():
                    found.append(flow)
                case AppendFlow():
                    pass
                case _:
                    assert_never(flow)
        return tuple(found)
