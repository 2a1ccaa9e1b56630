"""Checks of declarations and of resolved queries, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.contracts.schema_types import columns_ddl
from headrace.errors import (
    BatchQueryForStreamingTableError,
    ColumnInvalidError,
    ColumnNotFoundError,
    FlowKindsDifferError,
    FlowSchemasDifferError,
    HeadraceError,
    PlanFailedError,
    PropertyForbiddenError,
    RowsMissingError,
    SchemaMismatchError,
    SinkInvalidError,
    SourceLocation,
    StreamingQueryForViewError,
    StreamingUnsupportedError,
    StreamOverMergedTableError,
    TableWithoutFlowError,
    TargetInvalidError,
    ViewReadMismatchError,
    did_you_mean,
)
from headrace.model.declarations import (
    AutoCdcFlow,
    Dataset,
    Declarations,
    MaterializedView,
    Sink,
    StreamingFlow,
    StreamingTable,
    TemporaryView,
    snapshots_of,
)
from headrace.model.names import TableName
from headrace.model.notes import Note
from headrace.plan import columns
from headrace.plan.evaluate import shortened
from headrace.plan.modes import TableAccess
from headrace.plan.properties import COORDINATES, FORBIDDEN, TIMESTAMP, USER_SETTABLE, coordinates_of
from headrace.sinks.target import format_of, keeps_state
from headrace.syntax.locations import argument_location, pinpoint, return_location

if TYPE_CHECKING:
    from headrace.plan.resolver import Resolved

Stored = StreamingTable | MaterializedView


def check_declarations(declarations: Declarations) -> list[HeadraceError]:
    errors: list[HeadraceError] = []
    datasets = {str(dataset.name).casefold(): dataset for dataset in declarations.datasets}
    # A refresh flow is declared together with its view.
    flows = declarations.streaming_flows
    for flow in flows:
        errors.extend(_check_target(flow, datasets))
    fed = {str(flow.target).casefold() for flow in flows}
    for dataset in declarations.datasets:
        if isinstance(dataset, StreamingTable) and str(dataset.name).casefold() not in fed:
            errors.append(
                TableWithoutFlowError(
                    f"no flow writes the {'sink' if dataset.sink else 'streaming table'} "
                    f"`{dataset.name.short}`",
                    location=dataset.location,
                    remedies=_add_flow(dataset),
                    params={"dataset": str(dataset.name)},
                )
            )
        if isinstance(dataset, StreamingTable):
            feeding = [one for one in flows if str(one.target).casefold() == str(dataset.name).casefold()]
            errors.extend(_check_kinds(dataset, feeding))
        if isinstance(dataset, Stored):
            errors.extend(_check_properties(dataset))
    return errors


def _add_flow(table: StreamingTable) -> list[str]:
    name = table.name.short
    if table.location.is_sql:
        flow = f"CREATE FLOW add_rows AS INSERT INTO {name} BY NAME SELECT * FROM STREAM source_table;"
        return [f"write a flow below it:   {flow}", "or remove the table"]
    return [
        f'write a flow below it:   @hr.append_flow(target="{name}")',
        'and in the next line:   def add_rows(): return spark.readStream.table("TABLE")',
        f"or remove the {'sink' if table.sink else 'table'}",
    ]


def _check_target(flow: StreamingFlow, datasets: Mapping[str, Dataset]) -> Iterator[HeadraceError]:
    target = datasets.get(str(flow.target).casefold())
    if isinstance(target, StreamingTable):
        return
    if target is None:
        tables = [d.name.short for d in datasets.values() if isinstance(d, StreamingTable)]
        problem = "which no file declares"
        remedies = did_you_mean(flow.target.short, tables, "declare it with create_streaming_table")
    else:
        kind = "materialized view" if isinstance(target, MaterializedView) else "temporary view"
        problem = f"which is a {kind} ({target.location})"
        table = f"{flow.target.name}_rows"
        in_sql = flow.location.is_sql
        declares = f"CREATE STREAMING TABLE {table};" if in_sql else f'hr.create_streaming_table("{table}")'
        remedies = (
            f"declare a streaming table, such as:   {declares}",
            "and write to it:   " + (f"INSERT INTO {table}" if in_sql else f'target="{table}"'),
        )
    yield TargetInvalidError(
        f"the target of the flow `{flow.name}` is `{flow.target.short}`, {problem}",
        location=argument_location(flow.location, "target", str(flow.target), flow.target.name),
        remedies=remedies,
        params={"flow": flow.name, "target": str(flow.target)},
    )


def _check_kinds(table: StreamingTable, flows: Sequence[StreamingFlow]) -> Iterator[HeadraceError]:
    """All flows of a table write it in the same way."""
    for key, value in table.table_properties.items():
        changes = any(isinstance(one, AutoCdcFlow) for one in flows)
        if changes and key.lower() == "delta.appendonly" and value.lower() == "true":
            reason = "change records update and delete rows, which an append-only table does not allow"
            yield _forbidden(table, key, reason)
    if table.sink is not None:
        yield from _check_applies(table, table.sink, flows)
    if len(flows) > 1 and any(snapshots_of(one) for one in flows):
        first = next(one for one in flows if snapshots_of(one))
        yield FlowKindsDifferError(
            f"the flow `{first.name}` applies snapshots to `{table.name.short}`; other flows write it too",
            location=first.location,
            facts=[f"`{one.name}` is declared at {one.location}" for one in flows if one is not first],
            remedies=["give each flow a table of its own: a snapshot has all rows of its table"],
            params={"dataset": str(table.name), "flows": [one.name for one in flows]},
        )
        return
    ways = {one.name: _way_of(one) for one in flows}
    for one in flows[1:]:
        if ways[one.name] == ways[flows[0].name]:
            continue
        yield FlowKindsDifferError(
            f"the flow `{one.name}` {ways[one.name]}, and the flow `{flows[0].name}` {ways[flows[0].name]}; "
            f"both write `{table.name.short}`",
            location=one.location,
            facts=[f"`{flows[0].name}` is declared at {flows[0].location}"],
            remedies=["give one of them a table of its own"],
            params={"dataset": str(table.name), "flows": [flows[0].name, one.name]},
        )


def _way_of(flow: StreamingFlow) -> str:
    if not isinstance(flow, AutoCdcFlow):
        return "appends"
    keys = ", ".join(flow.keys)
    if flow.history is None:
        kept = flow.kept_if_null
        return f"merges by {keys}" + ("" if kept is None else f", ignores NULLs{kept.text('in')}")
    return f"keeps the history of {keys}{flow.history.text('tracks')}"


def _check_properties(dataset: Stored) -> Iterator[HeadraceError]:
    forbidden = {key.lower(): reason for key, reason in FORBIDDEN.items()}
    for key in dataset.table_properties:
        reason = forbidden.get(key.lower())
        if reason is None and key.lower().startswith("headrace.") and key not in USER_SETTABLE:
            reason = "the prefix headrace. is reserved"
        if reason is None and key.lower() == "delta.appendonly" and isinstance(dataset, MaterializedView):
            reason = "each refresh replaces the rows of the view, which an append-only table does not allow"
        if reason is not None:
            yield _forbidden(dataset, key, reason)
    try:
        coordinates_of(dataset.table_properties)
    except HeadraceError as error:
        keys = (TIMESTAMP, COORDINATES)
        yield error.with_(location=argument_location(dataset.location, "table_properties", *keys))


def _forbidden(dataset: Stored, key: str, reason: str) -> PropertyForbiddenError:
    return PropertyForbiddenError(
        f"`{dataset.name.short}` sets the table property {key}, which is not allowed",
        location=argument_location(dataset.location, "table_properties", key),
        facts=[reason],
        remedies=["remove the property"],
        params={"dataset": str(dataset.name), "property": key},
    )


def check_query_kind(resolved: Resolved, dataset: Stored, location: SourceLocation) -> None:
    """The query of a streaming table must be a stream, that of a materialized view a batch query."""
    wants_stream = isinstance(dataset, StreamingTable)
    if resolved.plan.streaming == wants_stream:
        return
    kind: type[BatchQueryForStreamingTableError | StreamingQueryForViewError]
    name = dataset.name.short
    is_sql = location.is_sql
    if len(resolved.reads) == 1 and not (resolved.views or is_sql):
        # The query itself reads the one table.
        location = resolved.reads[0].location
    if wants_stream:
        kind = BatchQueryForStreamingTableError
        summary = f"the query of the streaming table `{name}` reads no stream"
        verb = "FROM STREAM name" if is_sql else "spark.readStream"
        declares = "CREATE MATERIALIZED VIEW" if is_sql else "@hr.materialized_view"
        remedies = [
            f"read with {verb}, to read each record once",
            f"or declare it with {declares}, to recompute it",
        ]
    else:
        kind = StreamingQueryForViewError
        summary = f"the query of the materialized view `{name}` is a stream"
        verb = "FROM name, without STREAM" if is_sql else "spark.read"
        declares = "CREATE STREAMING TABLE" if is_sql else "@hr.table"
        remedies = [f"read with {verb}, to recompute the view as a whole"]
        remedies.append(f"or declare it with {declares}, to read each record once")
    raise kind(summary, location=location, remedies=remedies, params={"dataset": str(dataset.name)})


def check_appends(error: Exception, name: str, location: SourceLocation) -> HeadraceError:
    """The error for a query that Spark would refuse to run as a stream."""
    reason = shortened(str(error)).splitlines()[0]
    summary = f"Spark cannot run the query of `{name}` as a stream: {reason}"
    sort, view = ".orderBy(..) or .sort(..)", "@hr.materialized_view, and read with spark.read.table(..)"
    if location.is_sql:
        sort, view = "ORDER BY", "CREATE MATERIALIZED VIEW, and read with FROM name, without STREAM"
    remedies = [f"declare it with {view}"]
    if reason.startswith("Sorting is not supported"):
        summary = f"`{name}` sorts a stream, which has no end"
        remedies = [f"remove {sort}", f"or {remedies[0]}"]
    return StreamingUnsupportedError(
        summary,
        location=return_location(location),
        remedies=remedies,
        params={"name": name, "condition": getattr(error, "getCondition", lambda: None)()},
    )


def check_columns(schema: columns.Schema, dataset: Stored, location: SourceLocation, root: Path) -> None:
    name, mapping = dataset.name, "delta.columnMapping.mode"
    takes_names = isinstance(dataset, StreamingTable) and keeps_state(dataset.sink)
    maps_names = takes_names or dataset.table_properties.get(mapping) in ("name", "id")
    found = columns.unstorable(schema, maps_names=maps_names)
    if found is None:
        return
    is_odd = not found.column.isidentifier()  # so that a text with the name is about the column
    raise ColumnInvalidError(
        f"the Delta table `{name.short}` cannot store the column `{found.column}`",
        location=pinpoint(location, found.column, root) if is_odd and not location.column else location,
        facts=[found.reason],
        remedies=found.remedies,
        params={"dataset": str(name), "column": found.column},
    )


def check_declared(
    declared: columns.Schema, schema: columns.Schema, dataset: Stored, location: SourceLocation
) -> None:
    extra = columns.missing(schema, declared)
    different = columns.conflicts(schema, declared)
    absent = [
        field["name"]
        for field in columns.fields(declared)
        if not field.get("nullable", True) and columns.find(schema, field["name"]) is None
    ]
    if not (extra or different or absent):
        return
    facts = [f"{name}: {given} in the query, {wanted} in the schema" for name, given, wanted in different]
    facts += [f"{name}: in the query, not in the schema" for name in extra]
    facts += [f"{name}: in the schema, not in the query" for name in absent]
    remedies = []
    if different or absent:
        remedies.append("correct these columns in the query, or in the schema")
    if extra:
        quoted, select = ("`", "SELECT {}") if location.is_sql else ('"', ".select({})")
        names = (f"{quoted}{field['name']}{quoted}" for field in columns.fields(declared))
        remedies.append(f"select only its columns in the query:   {select.format(', '.join(names))}")
        fields = [field for field in columns.fields(schema) if field["name"] in extra]
        remedies.append(f"or add to the schema: {columns_ddl({'fields': fields})}")
    place = argument_location(dataset.location, "schema")
    if location != dataset.location:
        facts.append(f"the schema is declared at {place}")
    raise SchemaMismatchError(
        f"the query's columns do not match the declared schema of `{dataset.name.short}`: "
        + ", ".join([*(name for name, _, _ in different), *extra, *absent]),
        location=location if location != dataset.location else place,
        facts=facts,
        remedies=remedies,
        params={
            "dataset": str(dataset.name),
            "different": [name for name, _, _ in different],
            "extra": extra,
            "missing": absent,
        },
    )


def check_changed_columns(table: StreamingTable, schema: columns.Schema) -> Iterator[HeadraceError]:
    """Errors for queries that lack new names of renamed columns, or return old names or dropped columns."""
    gone = [(old, "renamed_columns", f"renames it to `{new}`") for old, new in table.renamed_columns.items()]
    gone += [(path, "dropped_columns", "drops it") for path in table.dropped_columns]
    for path, argument, change in gone:
        if columns.find(schema, path) is not None:
            yield SchemaMismatchError(
                f"a query of `{table.name.short}` returns the column `{path}`, but {argument} {change}",
                location=argument_location(table.location, argument, path),
                remedies=["change the query", "or remove the entry, if an earlier run has applied it"],
                params={"dataset": str(table.name), "columns": [path]},
            )
    for old, new in table.renamed_columns.items():
        path = columns.sibling(old, new)
        if columns.find(schema, path) is None:
            yield ColumnNotFoundError(
                f"renamed_columns of `{table.name.short}` has the new name `{path}`, which no query returns",
                location=argument_location(table.location, "renamed_columns", new),
                remedies=did_you_mean(path, columns.paths(schema), "return the column under its new name"),
                params={"dataset": str(table.name), "argument": "renamed_columns", "column": path},
            )


def check_flows_agree(
    schemas: Iterable[tuple[StreamingFlow, columns.Schema]], table: StreamingTable
) -> HeadraceError | None:
    seen: list[tuple[StreamingFlow, columns.Schema]] = []
    for flow, schema in schemas:
        for earlier, other in seen:
            for name, mine, theirs in columns.conflicts(schema, other):
                return FlowSchemasDifferError(
                    f"the flows `{earlier.name}` and `{flow.name}` have different types for the column "
                    f"`{name}` of `{table.name.short}`",
                    location=flow.location,
                    facts=[f"{theirs} at {earlier.location}", f"{mine} at {flow.location}"],
                    remedies=["cast it in one of the two queries"],
                    params={"dataset": str(table.name), "column": name, "types": [theirs, mine]},
                )
        seen.append((flow, schema))
    return None


def check_layout_columns(dataset: Stored, schema: columns.Schema) -> Iterator[HeadraceError]:
    """Partition, clustering and coordinate columns must exist in the table."""
    # What names the columns, and the argument that it is written in.
    named = [("partition_cols", "partition_cols", path) for path in dataset.partition_cols]
    named += [("cluster_by", "cluster_by", path) for path in dataset.cluster_by]
    kept = coordinates_of(dataset.table_properties)
    if kept.timestamp is not None:
        named.append((TIMESTAMP, "table_properties", kept.timestamp))
    if kept.coordinates is not None:
        named += [(COORDINATES, "table_properties", path) for path in kept.coordinates.to_json().values()]
    named += [(f"the check `{one.name}`", "checks", path) for one in dataset.checks for path in one.columns]
    for what, argument, path in named:
        if columns.find(schema, path) is not None:
            continue
        known = ", ".join(field["name"] for field in columns.fields(schema))
        yield ColumnNotFoundError(
            f"{what} of `{dataset.name.short}` names the column `{path}`, which does not exist",
            location=argument_location(dataset.location, argument, path),
            facts=[f"its columns: {known}"],
            remedies=did_you_mean(path, columns.paths(schema), "use one of its columns"),
            params={"dataset": str(dataset.name), "argument": what, "column": path},
        )


def _check_applies(
    table: StreamingTable, sink: Sink, flows: Sequence[StreamingFlow]
) -> Iterator[TargetInvalidError]:
    """Check that the format of a sink can apply the rows of its flows."""
    can = format_of(sink).applies
    if format_of(sink).guarantee == "once for each key":
        for flow in flows[1:]:
            yield TargetInvalidError(
                f"two flows write to `{table.name.short}`, and the versions of their rows cannot be compared",
                location=flow.location,
                facts=[f"flow `{flows[0].name}` ({flows[0].location})"],
                remedies=["let both flows write one table, and send the changes of that table"],
                params={"flow": str(flow.name), "target": str(table.name), "missing": ["several flows"]},
            )
    for flow in flows:
        missing = [way for way in _ways(flow) if way not in can]
        if missing:
            yield TargetInvalidError(
                f"flow `{flow.name}` writes {' and '.join(missing)} to `{table.name.short}`, which a "
                f"{sink.format} sink does not support",
                location=flow.location,
                facts=[
                    f"`{table.name.short}` is declared at {table.location}",
                    f"a {sink.format} sink supports: {', '.join(sorted(can))}",
                ],
                remedies=["apply the changes to a table, and send its changes: hr.read_changes"],
                params={"flow": str(flow.name), "target": str(table.name), "missing": missing},
            )


def _ways(flow: StreamingFlow) -> Iterator[str]:
    """What a sink must be able to do with the rows of a flow, in the words of `sinks.target.Applies`."""
    if not isinstance(flow, AutoCdcFlow):
        yield "append"
        return
    yield "changes"
    if flow.kept_if_null is not None:
        yield "partial changes"
    if flow.truncates:
        yield "truncates"
    if flow.history is not None:
        yield "history"
    if flow.snapshots is not None:
        yield "snapshots"


def sink_read(
    table: StreamingTable, access: TableAccess, fed: Sequence[tuple[StreamingFlow, Sequence[TableName]]]
) -> SinkInvalidError:
    assert table.sink is not None
    return SinkInvalidError(
        f"a query reads `{table.name.short}`, which is a sink: no table of the pipeline has its rows",
        location=access.location,
        facts=[f"the sink {format_of(table.sink).describe(table.sink)} ({table.location})"],
        remedies=[
            f"read what its flow `{flow.name}` ({flow.location}) reads, perhaps with other columns than the "
            "sink:   " + ", ".join(access.read_text(one.short, streaming=access.streaming) for one in tables)
            for flow, tables in fed
        ],
        params={"sink": str(table.name), "column": None},
    )


def stream_over_view(access: TableAccess, *, is_ours: bool = True) -> Note:
    stops = (
        "it continues while refreshes only add rows, and stops when a refresh changes or removes rows"
        if is_ours
        else "it stops when the pipeline of the view refreshes it"
    )
    return Note(
        level="note",
        text=f"a stream reads the materialized view `{access.name.short}`: {stops}",
        location=access.location,
    )


def stream_over_merged_table(access: TableAccess, flow: StreamingFlow) -> StreamOverMergedTableError:
    name, in_sql = access.name.short, access.location.is_sql
    declares = "CREATE MATERIALIZED VIEW" if in_sql else "@hr.materialized_view"
    return StreamOverMergedTableError(
        f"a stream reads `{name}`, whose rows flow `{flow.name}` updates ({flow.location})",
        location=access.location,
        remedies=[
            "read its changes, each with _change_type:   "
            + access.read_text(name, streaming=True, readChangeFeed="true"),
            f"or declare the reader with {declares}, which reads the whole table in each refresh:   "
            + access.read_text(name, streaming=False),
            "or skip all commits that change rows, and also the new rows in them:   "
            + access.read_text(name, streaming=True, skipChangeCommits="true"),
        ],
        params={"table": str(access.name)},
    )


def view_mismatch(access: TableAccess, view: TemporaryView) -> ViewReadMismatchError:
    """The error for a temporary view that is read as a stream and is a batch, or the reverse."""
    name, in_sql = view.name.short, access.location.is_sql
    if access.streaming:
        problem = "a batch query, but is read as a stream"
        declares = "CREATE MATERIALIZED VIEW" if in_sql else "@hr.materialized_view"
        change = "add STREAM" if view.location.is_sql else "change spark.read to spark.readStream"
    else:
        problem = "a streaming query, but is read as a batch"
        declares = "CREATE STREAMING TABLE" if in_sql else "@hr.table"
        change = "remove STREAM" if view.location.is_sql else "change spark.readStream to spark.read"
    return ViewReadMismatchError(
        f"the temporary view `{name}` is {problem}",
        location=access.location,
        remedies=[
            f"{change} in `{name}` ({view.location})",
            f"or declare the reader with {declares}, and read "
            + access.read_text(name, streaming=not access.streaming),
        ],
        params={"view": str(view.name), "streaming": not access.streaming},
    )


def raise_all(
    errors: Iterable[HeadraceError], downstream: Mapping[TableName, TableName] | None = None
) -> None:
    """Raise all errors as one, if there are any. `downstream`: the datasets that were not checked, each with
    the one that it reads."""
    unique = {(error.headline, error.location): error for error in errors}
    if unique:
        # Datasets that read each other in a cycle are named by its error.
        named = {name for error in unique.values() for name in error.params.get("cycle", ())}
        unchecked = {name: read for name, read in (downstream or {}).items() if str(name) not in named}
        raise _one_error(list(unique.values()), unchecked)


def _one_error(errors: list[HeadraceError], downstream: Mapping[TableName, TableName]) -> HeadraceError:
    """One error for all; with the datasets that were not checked because of them."""
    error = errors[0]
    if len(errors) > 1:
        located = [(one.location, one) for one in errors if one.location is not None]
        located.sort(key=lambda pair: (pair[0].path, pair[0].line))
        error = PlanFailedError([*(one for _, one in located), *(one for one in errors if not one.location)])
    if not downstream or isinstance(error, RowsMissingError):
        return error
    listed = ", ".join(f"{name.short} (reads {read.short})" for name, read in sorted(downstream.items()))
    names = {"not_checked": sorted(map(str, downstream))}
    fact = f"not checked, because they read a dataset with an error: {listed}"
    return error.with_(facts=(*error.facts, fact), params={**error.params, **names})
