"""A query as Spark has resolved it, without its rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.errors import HeadraceError
from headrace.model.names import TableName
from headrace.plan.coordinates import CoordinateColumns
from headrace.plan.logical import LogicalPlan
from headrace.plan.stages import TableRead
from headrace.runtime.lazy_pyspark import DataFrame
from headrace.state.identity import QueryRecord


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A query over empty stand-ins for the tables that it reads."""

    plan: LogicalPlan
    frame: DataFrame = field(repr=False)
    reads: tuple[TableRead, ...] = ()  # the tables that it reads, also through temporary views
    views: tuple[TableName, ...] = ()
    reads_target: bool = False  # whether it reads the table that it feeds
    # The columns that keep each record's coordinates.
    coordinates: CoordinateColumns = field(default_factory=CoordinateColumns)
    # The batch query of a flow that is applied once; ``plan`` is then the stream of its marker.
    batch: LogicalPlan | None = None
    # The query that such a flow was applied with, if its source can no longer be read.
    applied: QueryRecord | None = None
    gone: HeadraceError | None = None
