"""Flows whose batch query is applied once.

Such a flow is a stream of one file, the marker of the storage: its one batch has the rows of the batch query.
So it has a checkpoint, a transaction id and ranges as every flow has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, StreamingQueryForOnceFlowError
from headrace.model.declarations import StreamingFlow
from headrace.model.queries import PythonQuery, Query
from headrace.plan.logical import LogicalPlan
from headrace.plan.snapshots import marker_stream
from headrace.sinks.delta.table import read_checksum
from headrace.state.identity import QueryRecord, generations, load_identity, load_query
from headrace.storage.layout import Storage
from headrace.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.plan.resolver import Resolved

_MARKER = "once.json"
"""A checkpoint knows files by their paths, so the file always has this name."""


def marker_of(storage: Storage) -> Location:
    """The file that all such flows of a storage read, each with its own checkpoint."""
    return storage.once / _MARKER


def once_stream(session: SparkSession, storage: Storage, schema: Mapping[str, Any]) -> DataFrame:
    """The stream of the marker, with the columns of a batch query, whose rows replace those of the batch."""
    return marker_stream(session, f"{storage.once}/*.json", schema)


def resolve_once(
    flow: StreamingFlow, resolve: Callable[[Query], Resolved], session: SparkSession, storage: Storage
) -> Resolved:
    """Resolve a flow to the stream of its marker, with the columns of its batch query.

    If the query fails after it was applied, because its source is gone, the flow has nothing more to do.
    """

    def stream(schema: Mapping[str, Any]) -> Resolved:
        return resolve(PythonQuery(lambda: once_stream(session, storage, schema), flow.location))

    try:
        batch = resolve(flow.query)
        _check_once(batch.plan, flow)
    except HeadraceError as error:
        applied = load_applied(storage, flow)
        if applied is None or applied.schema is None:
            raise
        return replace(stream(applied.schema), applied=applied, gone=error)
    return replace(stream(batch.plan.schema), reads=batch.reads, views=batch.views, batch=batch.plan)


def _check_once(plan: LogicalPlan, flow: StreamingFlow) -> None:
    """Refuse a streaming query."""
    if plan.streaming:
        raise StreamingQueryForOnceFlowError(
            f"the flow `{flow.name}` is applied once, but its query is a stream",
            location=flow.location,
            remedies=["read with spark.read, or without STREAM in SQL", "or remove `once`"],
            params={"flow": flow.name},
        )


def load_applied(storage: Storage, flow: StreamingFlow) -> QueryRecord | None:
    """The query that a flow was applied with; ``None`` if it was not applied yet."""
    known = generations(storage.flow_checkpoints(flow.target, flow.name))
    if not known or (record := load_query(known[-1])) is None or record.schema is None:
        return None
    checksum = read_checksum(storage.table(flow.target))
    held = {} if checksum is None else checksum.transactions
    is_committed = (known[-1] / "commits" / "0").exists() or load_identity(known[-1]).checkpoint in held
    return record if is_committed else None
