"""Checks of declarations and of resolved queries, before anything runs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.errors import (
    AggregateWithoutWatermarkError,
    BatchQueryForStreamingTableError,
    ColumnInvalidError,
    ColumnNotFoundError,
    FlowSchemasDifferError,
    HeadraceError,
    LayoutConflictError,
    PropertyForbiddenError,
    SchemaMismatchError,
    SourceLocation,
    StreamingQueryForViewError,
    StreamingUnsupportedError,
    TableWithoutFlowError,
    TargetInvalidError,
)
from headrace.model.declarations import Dataset, Declarations, MaterializedView, StreamingFlow, StreamingTable
from headrace.model.names import TableName
from headrace.plan import columns
from headrace.plan.coordinates import CoordinateColumns
from headrace.plan.evaluate import shortened
from headrace.plan.logical import LogicalPlan
from headrace.plan.names import shown
from headrace.plan.properties import COORDINATES, FORBIDDEN, TIMESTAMP, USER_SETTABLE, coordinates_of

Stored = StreamingTable | MaterializedView


def check_declarations(declarations: Declarations) -> list[HeadraceError]:
    """The errors in declarations, without their queries."""
    errors: list[HeadraceError] = []
    datasets = {str(dataset.name).casefold(): dataset for dataset in declarations.datasets}
    # A refresh flow is declared together with its view.
    flows = declarations.streaming_flows
    for flow in flows:
        errors.extend(_check_target(flow, datasets))
    fed = {str(flow.target).casefold() for flow in flows}
    for dataset in declarations.datasets:
        if isinstance(dataset, StreamingTable) and str(dataset.name).casefold() not in fed:
            errors.append(_without_flow(dataset))
        if isinstance(dataset, Stored):
            errors.extend(_check_properties(dataset))
            errors.extend(_check_layout(dataset))
    return errors


def _check_target(flow: StreamingFlow, datasets: Mapping[str, Dataset]) -> Iterator[HeadraceError]:
    target = datasets.get(str(flow.target).casefold())
    if isinstance(target, StreamingTable):
        return
    if target is None:
        tables = [d.name for d in datasets.values() if isinstance(d, StreamingTable)]
        near = difflib.get_close_matches(str(flow.target), [str(name) for name in tables], n=1)
        problem = "which no file declares"
        remedy = f"did you mean `{near[0]}`?" if near else "declare it with create_streaming_table"
    else:
        kind = "materialized view" if isinstance(target, MaterializedView) else "temporary view"
        problem = f"which is a {kind} ({target.location})"
        remedy = "choose a streaming table as the target; a view has no flows but its own query"
    yield TargetInvalidError(
        f"the target of the flow `{flow.name}` is `{shown(flow.target)}`, {problem}",
        location=flow.location,
        remedies=[remedy],
        params={"flow": flow.name, "target": str(flow.target)},
    )


def _without_flow(table: StreamingTable) -> TableWithoutFlowError:
    return TableWithoutFlowError(
        f"no flow writes the streaming table `{shown(table.name)}`",
        location=table.location,
        remedies=[f'add a flow: @hr.append_flow(target="{shown(table.name)}")'],
        params={"dataset": str(table.name)},
    )


def _check_properties(dataset: Stored) -> Iterator[HeadraceError]:
    forbidden = {key.lower(): reason for key, reason in FORBIDDEN.items()}
    for key in dataset.table_properties:
        reason = forbidden.get(key.lower())
        if reason is None and key.lower().startswith("headrace.") and key not in USER_SETTABLE:
            reason = "this prefix is reserved for Headrace"
        if reason is None and key.lower() == "delta.appendonly" and isinstance(dataset, MaterializedView):
            reason = "each refresh replaces the rows of the view, which an append-only table does not allow"
        if reason is not None:
            yield PropertyForbiddenError(
                f"`{shown(dataset.name)}` sets the table property {key}, which is not allowed",
                location=dataset.location,
                facts=[reason],
                remedies=["remove the property"],
                params={"dataset": str(dataset.name), "property": key},
            )
    try:
        coordinates_of(dataset.table_properties)
    except HeadraceError as error:
        yield error.with_(location=dataset.location)


def _check_layout(dataset: Stored) -> Iterator[HeadraceError]:
    if dataset.partition_cols and dataset.cluster_by:
        yield LayoutConflictError(
            f"`{shown(dataset.name)}` has both partition_cols and cluster_by",
            location=dataset.location,
            facts=[
                f"partition_cols: {', '.join(dataset.partition_cols)}",
                f"cluster_by: {', '.join(dataset.cluster_by)}",
            ],
            remedies=["keep one of the two; cluster_by also helps queries by other columns"],
            params={"dataset": str(dataset.name)},
        )


# -- queries


def check_streaming(plan: LogicalPlan, name: TableName, location: SourceLocation) -> None:
    """A streaming table's query must be a stream."""
    if plan.streaming:
        return
    raise BatchQueryForStreamingTableError(
        f"the query of the streaming table `{shown(name)}` reads no stream",
        location=location,
        remedies=[
            "read with spark.readStream, to read each record once",
            "declare it with @hr.materialized_view, to recompute it",
        ],
        params={"dataset": str(name)},
    )


def check_batch(plan: LogicalPlan, name: TableName, location: SourceLocation) -> None:
    """A materialized view's query must not be a stream."""
    if not plan.streaming:
        return
    raise StreamingQueryForViewError(
        f"the query of the materialized view `{shown(name)}` is a stream",
        location=location,
        remedies=[
            "read with spark.read, to recompute the view as a whole",
            "declare it with @hr.table, to read each record once",
        ],
        params={"dataset": str(name)},
    )


def check_appends(error: Exception, plan: LogicalPlan, name: str, location: SourceLocation) -> HeadraceError:
    """The error for a query that Spark would refuse to run as an appending stream."""
    text = str(error)
    params: dict[str, Any] = {"name": name, "condition": getattr(error, "getCondition", lambda: None)()}
    recompute = "declare it with @hr.materialized_view, to recompute the aggregate"
    if "aggregations without watermark" in text:
        times = list(columns.paths(plan.read_aggregated(), kind="timestamp"))
        fact, *remedies = _watermark(times, plan.watermark)
        return AggregateWithoutWatermarkError(
            f"`{name}` aggregates a stream without a watermark, so no group is ever complete",
            location=location,
            facts=[fact],
            remedies=[*remedies, recompute],
            params={**params, "timestamps": times},
        )
    return StreamingUnsupportedError(
        f"Spark cannot run the query of `{name}` as a stream: {shortened(text).splitlines()[0]}",
        location=location,
        remedies=["declare it with @hr.materialized_view, which allows every batch query"],
        params=params,
    )


def _watermark(times: Sequence[str], existing: str | None) -> list[str]:
    """The timestamp columns of the rows that are aggregated, and the remedies that they allow."""
    if existing is not None:
        window = f'group by it too: .groupBy(F.window("{existing}", "1 hour"), ..)'
        return [f"its watermark is on `{existing}`, by which it does not group", window]
    if not times:
        return [
            "its rows have no TIMESTAMP column, which a watermark needs",
            "add a TIMESTAMP column to them",
        ]
    # A watermark needs a column of its own.
    path, name = times[0], times[0].rpartition(".")[2]
    column = "" if path == name else f'.withColumn("{name}", F.col("{path}"))'
    return [
        f"timestamp columns of the rows before it: {', '.join(times)}",
        f'{column}.withWatermark("{name}", "10 minutes").groupBy(F.window("{name}", "1 hour"), ..)',
    ]


# -- columns


def check_columns(schema: columns.Schema, name: TableName, location: SourceLocation) -> None:
    """Delta must be able to store the columns."""
    found = columns.unstorable(schema)
    if found is None:
        return
    column, reason = found
    raise ColumnInvalidError(
        f"a Delta table cannot store the column `{column}` of `{shown(name)}`",
        location=location,
        facts=[reason],
        remedies=[f'select it under another name or type: F.col("{column}").cast(..).alias(..)'],
        params={"dataset": str(name), "column": column},
    )


def check_declared(
    declared: columns.Schema, schema: columns.Schema, dataset: Stored, location: SourceLocation
) -> None:
    """The query's columns must match the declared ones."""
    extra = columns.missing(schema, declared)
    different = columns.conflicts(schema, declared)
    absent = [
        field["name"]
        for field in columns.fields(declared)
        if not field.get("nullable", True) and columns.find(schema, field["name"]) is None
    ]
    if isinstance(dataset, MaterializedView):
        absent = columns.missing(declared, schema)
    if not (extra or different or absent):
        return
    facts = [f"{name}: {given} in the query, {wanted} in the schema" for name, given, wanted in different]
    facts += [f"{name}: in the query, not in the schema" for name in extra]
    facts += [f"{name}: in the schema, not in the query" for name in absent]
    raise SchemaMismatchError(
        f"the query's columns do not match the declared schema of `{shown(dataset.name)}`: "
        + ", ".join([*(name for name, _, _ in different), *extra, *absent]),
        location=location,
        facts=[*facts, f"the schema is declared at {dataset.location}"],
        remedies=["cast or select the columns in the query, or change the schema"],
        params={
            "dataset": str(dataset.name),
            "different": [name for name, _, _ in different],
            "extra": extra,
            "missing": absent,
        },
    )


def check_flows_agree(
    schemas: Iterable[tuple[StreamingFlow, columns.Schema]], table: StreamingTable
) -> HeadraceError | None:
    """All flows of a table must have the same types for its columns."""
    seen: list[tuple[StreamingFlow, columns.Schema]] = []
    for flow, schema in schemas:
        for earlier, other in seen:
            for name, mine, theirs in columns.conflicts(schema, other):
                return FlowSchemasDifferError(
                    f"the flows `{earlier.name}` and `{flow.name}` have different types for the column "
                    f"`{name}` of `{shown(table.name)}`",
                    location=flow.location,
                    facts=[f"{theirs} at {earlier.location}", f"{mine} at {flow.location}"],
                    remedies=["cast it in one of the two queries"],
                    params={"dataset": str(table.name), "column": name, "types": [theirs, mine]},
                )
        seen.append((flow, schema))
    return None


def check_layout_columns(dataset: Stored, schema: columns.Schema) -> Iterator[HeadraceError]:
    """Partition, clustering and coordinate columns must exist in the table."""
    named = [("partition_cols", path) for path in dataset.partition_cols]
    named += [("cluster_by", path) for path in dataset.cluster_by]
    named += _named(coordinates_of(dataset.table_properties))
    named += [(f"the check `{one.name}`", path) for one in dataset.checks for path in one.columns]
    for what, path in named:
        if columns.find(schema, path) is not None:
            continue
        near = columns.suggestion(schema, path)
        known = ", ".join(field["name"] for field in columns.fields(schema))
        yield ColumnNotFoundError(
            f"{what} of `{shown(dataset.name)}` names the column `{path}`, which does not exist",
            location=dataset.location,
            facts=[f"its columns: {known}"],
            remedies=[f"did you mean `{near}`?" if near else "use one of its columns"],
            params={"dataset": str(dataset.name), "argument": what, "column": path},
        )


def _named(kept: CoordinateColumns) -> list[tuple[str, str]]:
    named = [] if kept.timestamp is None else [(TIMESTAMP, kept.timestamp)]
    if kept.coordinates is not None:
        named += [(COORDINATES, path) for path in kept.coordinates.to_json().values()]
    return named
