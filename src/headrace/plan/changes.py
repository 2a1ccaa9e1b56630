"""The changes that a run makes in the storage: `plan` reports them, and `run` executes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Literal, Protocol, assert_never

from headrace.model.declarations import MaterializedView, StreamingTable
from headrace.model.maintenance import POLICY_PROPERTY
from headrace.model.names import TableName
from headrace.plan import columns
from headrace.plan.properties import COORDINATES, KEYS, KIND, REPLAYABLE, TIMESTAMP, cannot_read, keys_of
from headrace.plan.stages import (
    Change,
    ChangedPart,
    OpenTableStage,
    Plan,
    PlannedRefresh,
    RefreshViewStage,
    Stage,
)
from headrace.plan.stored import StoredTable, load_stored
from headrace.sinks.delta.replace import find_stale
from headrace.sinks.delta.table import as_nullable, read_checksum
from headrace.sinks.target import keeps_state
from headrace.state.checkpoint import generations, load_query
from headrace.storage.location import Location
from headrace.storage.table_log import mark_newest

_KINDS = {"streaming_table": "a streaming table", "materialized_view": "a materialized view"}


def find_changes(plan: Plan) -> Plan:
    def look(stage: Stage) -> list[Change]:
        if isinstance(stage, OpenTableStage):
            return list(_table_changes(stage, plan))
        return list(_view_changes(stage, plan)) if isinstance(stage, RefreshViewStage) else []

    changes = list(chain.from_iterable(plan.project.storage.root.files.gather(look, plan.stages)))
    creates = any(change.kind == "create" for change in changes)
    return replace(plan, changes=(*changes, *_kept(plan, new=creates)))


def _table_changes(stage: OpenTableStage, plan: Plan) -> Iterator[Change]:
    name = stage.table.name
    stored = load_stored(plan.project.storage, name)
    if stored is None:
        sinks = [one.flow.name for one in plan.feeding(name) if keeps_state(one.sink)]
        if not any(generations(plan.project.storage.flow_checkpoints(name, flow)) for flow in sinks):
            what = f"new streaming table: {columns_text(stage.schema)}"
            yield Change(kind="create", dataset=name, text=what)
        return
    path = plan.project.storage.table(name)
    yield from _alterations(stage.table, stage.schema, stage.properties, stored, path)
    yield from _query_changes(stage, plan)
    new = next((flow for flow in stage.flows if flow not in stored.flows), None)
    for flow in stored.flows:
        if flow not in stage.flows:
            text = f"flow {flow}, which wrote this table, is no longer declared; its checkpoint is kept"
            if new is not None:
                text += f". If it was renamed: `headrace run --rename-flow {flow}={new}`"
            yield Change(kind="keep", dataset=name, part="flow", name=flow, text=text)


def _query_changes(stage: OpenTableStage, plan: Plan) -> Iterator[Change]:
    for planned in plan.feeding(stage.table.name):
        flow = planned.flow
        checkpoints = generations(plan.project.storage.flow_checkpoints(flow.target, flow.name))
        record = load_query(checkpoints[-1]) if checkpoints else None
        if record is not None and record.fingerprint != planned.fingerprint:
            yield Change(
                kind="alter",
                dataset=stage.table.name,
                part="query",
                name=flow.name,
                text=f"the query of flow {flow.name} has changed; it applies to new records only"
                f"{', and continues with the state of the old query if that fits' * planned.stateful}, "
                f"`headrace full-refresh {stage.table.name.short}` applies it to all records",
            )


def _view_changes(stage: RefreshViewStage, plan: Plan) -> Iterator[Change]:
    planned, name = stage.planned, stage.view.name
    stored = load_stored(plan.project.storage, name)
    if stored is None:
        text = f"new materialized view: {columns_text(planned.schema)}"
        yield Change(kind="create", dataset=name, text=text)
        return
    path = plan.project.storage.table(name)
    yield from _alterations(stage.view, planned.schema, stage.properties, stored, path)
    if (stale := _stale(planned, plan)) is not None:
        part, reason = stale
        yield Change(kind="recompute", dataset=name, part=part, text=reason)


def _stale(planned: PlannedRefresh, plan: Plan) -> tuple[ChangedPart, str] | None:
    """Why a view's next refresh computes it again; ``None`` if it is up to date."""
    storage = plan.project.storage
    names = {str(read.table): read.table for read in planned.reads}
    inputs = {name: found for name, table in names.items() if (found := mark_newest(storage.table(table)))}
    view = planned.flow.target
    stale = find_stale(storage.table(view), storage.quarantine(view), planned.fingerprint, inputs)
    if stale is None:
        if planned.varies:
            return "always", f"its query {' and '.join(planned.varies)}, so each run recomputes it"
        return None if planned.reads else ("always", "its query reads no table, so each run recomputes it")
    match stale.part:
        case "table":
            return "table", "it has never been refreshed, or another writer has changed its rows"
        case "quarantine":
            return "table", "its quarantine table is missing"
        case "query":
            return "query", "its query has changed"
        case "inputs":
            listed = ", ".join(TableName.parse(name, plan.project.database).short for name in stale.inputs)
            return "inputs", f"{listed} has new versions"
        case _:
            assert_never(stale.part)


def _alterations(
    dataset: StreamingTable | MaterializedView,
    schema: columns.Schema,
    properties: Mapping[str, str],
    stored: StoredTable,
    path: Location,
) -> Iterator[Change]:
    name = dataset.name
    alter = partial(_altered, name)
    replaced = isinstance(dataset, MaterializedView)
    if stored.kind != properties[KIND]:
        was = _KINDS.get(stored.kind or "", "a table that Headrace did not create")
        yield alter("kind", f"is declared as {_KINDS[properties[KIND]]}, but is {was} in the storage")
    checksum = read_checksum(path)
    wanted = find_alterations(
        dataset,
        schema,
        properties,
        stored,
        has_rows=bool(stored.flows) if checksum is None else bool(checksum.transactions),
        new_clustering=stored.new_clustering(dataset.cluster_by) if dataset.cluster_by else (),
    )
    for old, new in wanted.renamed:
        yield alter("column", f"renames the column {old} to {new}; no file is rewritten", old)
    for column in wanted.dropped:
        yield alter("column", f"drops the column {column}; its values can no longer be read", column)
    held = column_names(dataset, stored.schema)
    could = columns.widened(schema, held, keys_of(stored.properties))
    changed = [one for one in could if one[:2] in wanted.widened]
    yield from _column_changes(schema, held, replaced=replaced, widened=changed, wider=could, name=name)
    if wanted.comment:
        yield alter("comment", "sets its comment")
    for key, value in wanted.properties.items():
        before = stored.properties.get(key)
        if key != KIND:
            text = f"sets {key} = {value}" + (f" (was {before})" if before is not None else "")
            if readers := cannot_read(key, value) if key in (MAPPING, WIDENING) else ():
                text += f"; {' and '.join(readers)} cannot read a table with this property"
            yield alter("property", text, key)
    for key in wanted.removed:
        yield alter("property", f"unsets {key}: the query's rows have no such column", key)
    if tuple(stored.partition_cols) != dataset.partition_cols and not replaced:
        before = ", ".join(stored.partition_cols) or "none"
        now = ", ".join(dataset.partition_cols) or "none"
        yield Change(
            kind="keep",
            dataset=name,
            part="layout",
            text=f"declares partition columns {now}, but an existing table keeps its own: {before}",
        )
    if wanted.cluster_by:
        before = f" (was {', '.join(stored.cluster_by)})" if stored.cluster_by else ""
        yield alter("layout", f"clusters new files by {', '.join(wanted.cluster_by)}{before}")


def _altered(dataset: TableName, part: ChangedPart, text: str, name: str | None = None) -> Change:
    return Change(kind="alter", dataset=dataset, part=part, name=name, text=text)


def _column_changes(
    schema: columns.Schema,
    stored: columns.Schema,
    *,
    replaced: bool,
    widened: Sequence[tuple[str, str, str]],
    wider: Sequence[tuple[str, str, str]],
    name: TableName,
) -> Iterator[Change]:
    """What happens to columns: ``widened`` get a wider type, ``wider`` could get one."""
    alter = partial(_altered, name)
    absent = columns.missing(stored, schema)
    for path, new in columns.new_fields(schema, stored):
        column = ".".join(path)
        yield alter("column", f"adds the column {column} {columns.type_text(new['type'])}", column)
    different = columns.conflicts(schema, stored)
    refused = [] if replaced else columns.refused_changes(schema, stored, widened)
    for column, now, before in different if replaced else refused:
        # A run refuses to append rows with other types.
        kind: Literal["alter", "keep"] = "alter" if replaced else "keep"
        how = "" if replaced else f"; `headrace full-refresh {name.short}` changes it"
        if not replaced and (column, now, before) in wider:
            how += f", or the table property {WIDENING} = true"
        text = f"the column {column} is {before} in the table and {now} in the query{how}"
        yield Change(kind=kind, dataset=name, part="column", name=column, text=text)
    for column, now, before in widened:
        yield alter(
            "column", f"widens the column {column} from {before} to {now}; no file is rewritten", column
        )
    for column in absent:
        if replaced:
            yield alter("column", f"drops the column {column}", column)
        else:
            text = f"keeps the column {column}, which the query no longer returns; it is NULL in new rows"
            text += (
                f'. To drop or rename it: dropped_columns=["{column}"] or renamed_columns={{"{column}": ..}}'
            )
            yield Change(kind="keep", dataset=name, part="column", name=column, text=text)


def _kept(plan: Plan, *, new: bool) -> Iterator[Change]:
    """The tables that no file declares any more. `new`: whether the plan creates tables: one of them may be
    such a table under another name."""
    declared = {str(dataset.name).casefold() for dataset in plan.datasets}
    for name in plan.project.storage.find_tables():
        if str(name).casefold() in declared:
            continue
        stored = load_stored(plan.project.storage, name)
        if stored is not None and stored.pipeline == plan.project.name:
            text = "no file declares it any more; the table is kept. "
            if new:
                text += f'If it was renamed, keep its rows: declare the table with name="{name.short}". '
            text += f"To remove it: `headrace run`, then `headrace tables {name.short} --remove`"
            yield Change(kind="keep", dataset=name, text=text)


def columns_text(schema: columns.Schema) -> str:
    return ", ".join(
        f"{field['name']} {columns.type_text(field['type'])}" for field in columns.fields(schema)
    )


MAPPING = "delta.columnMapping.mode"
"""With ``name``, data files have their own column names: a column is renamed without rewriting files."""
WIDENING = "delta.enableTypeWidening"

COORDINATE_PROPERTIES = (COORDINATES, TIMESTAMP, REPLAYABLE)
"""Properties with the columns of each record's coordinates, and whether each record gives one change."""


class TableMetadata(Protocol):
    """The metadata of an existing table."""

    @property
    def schema(self) -> Mapping[str, Any]: ...

    @property
    def properties(self) -> Mapping[str, str]: ...

    @property
    def comment(self) -> str | None: ...


@dataclass(frozen=True, kw_only=True)
class TableAlterations:
    properties: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    comment: str | None = None  # the comment to set; ``None`` leaves it
    renamed: tuple[tuple[str, str], ...] = ()  # the paths of columns and struct fields, and their new names
    dropped: tuple[str, ...] = ()  # the paths of columns and struct fields to drop
    widened: tuple[tuple[str, str], ...] = ()  # columns, and their new types as DDL
    # Columns and struct fields to add: the path of each, and its field of ``StructType.jsonValue()``.
    new_columns: tuple[tuple[tuple[str, ...], Mapping[str, Any]], ...] = ()
    cluster_by: tuple[str, ...] = ()  # the columns to cluster by from now on; empty leaves the clustering

    @property
    def is_empty(self) -> bool:
        return self == TableAlterations()


def find_alterations(
    dataset: StreamingTable | MaterializedView,
    schema: columns.Schema,
    properties: Mapping[str, str],
    held: TableMetadata,
    *,
    has_rows: bool,
    new_clustering: tuple[str, ...],
) -> TableAlterations:
    """What a run changes in a table before it writes rows; a view gets its columns with its rows."""
    is_view = isinstance(dataset, MaterializedView)
    renamed, dropped = _pending(dataset, held.schema)
    if (renamed or dropped) and held.properties.get(MAPPING, "none") == "none":
        properties = {**properties, MAPPING: "name"}
    before = columns.altered(held.schema, dict(renamed), dropped)
    return TableAlterations(
        properties={
            key: value
            for key, value in properties.items()
            if held.properties.get(key) != value
            # An earlier query can have left out records: with new coordinates, `verify` would report them
            # as missing.
            and (
                is_view
                or (key not in COORDINATE_PROPERTIES or key in dataset.table_properties or not has_rows)
                or _follows(key, value, dataset, held)
            )
        },
        removed=()
        if is_view
        else tuple(
            key
            for key in (*COORDINATE_PROPERTIES, KEYS, POLICY_PROPERTY)
            if key in held.properties and key not in properties
        ),
        comment=dataset.comment if dataset.comment != held.comment and dataset.comment else None,
        renamed=renamed,
        dropped=dropped,
        widened=()
        if is_view
        else tuple((name, now) for name, now, _ in find_widened(schema, properties, before, held)),
        new_columns=() if is_view else tuple(columns.new_fields(layout_schema(dataset, schema), before)),
        cluster_by=new_clustering,
    )


def find_widened(
    schema: columns.Schema, properties: Mapping[str, str], before: columns.Schema, held: TableMetadata
) -> list[tuple[str, str, str]]:
    """The columns that get a wider type: name, new type and type in the table; none without type widening."""
    if not any(one.get(WIDENING, "").lower() == "true" for one in (properties, held.properties)):
        return []
    return columns.widened(schema, before, keys_of(held.properties))


def column_names(dataset: StreamingTable | MaterializedView, held: columns.Schema) -> columns.Schema:
    """The columns of a table after the renames and drops of its declaration."""
    renamed, dropped = _pending(dataset, held)
    return columns.altered(held, dict(renamed), dropped)


def _pending(
    dataset: StreamingTable | MaterializedView, held: columns.Schema
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """The declared renames and drops that a table does not have yet."""
    if isinstance(dataset, MaterializedView):
        return (), ()
    renamed = tuple(
        (old, new)
        for old, new in dataset.renamed_columns.items()
        if columns.find(held, old) is not None and columns.find(held, columns.sibling(old, new)) is None
    )
    return renamed, tuple(path for path in dataset.dropped_columns if columns.find(held, path) is not None)


def _follows(key: str, value: str, dataset: StreamingTable | MaterializedView, held: TableMetadata) -> bool:
    """Whether a property of record coordinates names the same columns as before, after renames."""
    before = held.properties.get(key)
    if key not in COORDINATE_PROPERTIES or before is None or isinstance(dataset, MaterializedView):
        return False
    names = {old: columns.sibling(old, new) for old, new in dataset.renamed_columns.items()}

    def now(path: str) -> str:
        return next(
            (to + path[len(old) :] for old, to in names.items() if f"{path}.".startswith(f"{old}.")), path
        )

    if key == COORDINATES:
        return bool({part: now(path) for part, path in json.loads(before).items()} == json.loads(value))
    return now(before) == value


def layout_schema(dataset: StreamingTable | MaterializedView, schema: columns.Schema) -> columns.Schema:
    """The columns that a new table gets: nullable, unless the declaration gives them itself."""
    nullable: columns.Schema = as_nullable(schema)
    return schema if dataset.schema is not None else nullable
