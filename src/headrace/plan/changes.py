"""What a run would change in the storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from headrace.model.declarations import MaterializedView, StreamingTable
from headrace.model.names import TableName
from headrace.plan import columns
from headrace.plan.names import shown
from headrace.plan.previous import load_fingerprints
from headrace.plan.stages import Change, OpenTableStage, Plan, PlannedView, RefreshViewStage
from headrace.plan.stored import StoredTable, load_stored, stored_names
from headrace.sinks.delta.refresh import last_refresh
from headrace.state.table_log import commit_mark, versions

_KINDS = {"streaming_table": "a streaming table", "materialized_view": "a materialized view"}


def find_changes(plan: Plan) -> Plan:
    """The plan with what a run would change; reads the tables' logs and no data."""
    changes: list[Change] = []
    for stage in (stage for level in plan.levels for stage in level):
        if isinstance(stage, OpenTableStage):
            changes.extend(_table_changes(stage, plan))
        elif isinstance(stage, RefreshViewStage):
            changes.extend(_view_changes(stage, plan))
    changes.extend(_kept(plan))
    return replace(plan, changes=tuple(changes))


def _table_changes(stage: OpenTableStage, plan: Plan) -> Iterator[Change]:
    name = stage.table.name
    stored = load_stored(plan.project.storage, name)
    if stored is None:
        yield Change(kind="create", dataset=name, text=f"new streaming table: {columns_text(stage.schema)}")
        return
    yield from _alterations(stage.table, stage.schema, stage.properties, stored)
    yield from _query_changes(stage, plan)
    for flow in stored.flows:
        if flow not in stage.flows:
            yield Change(
                kind="keep",
                dataset=name,
                text=f"the flow {flow} fed it and is declared no more; its checkpoint is kept",
            )


def _query_changes(stage: OpenTableStage, plan: Plan) -> Iterator[Change]:
    before = load_fingerprints(plan.project.storage)
    for planned in plan.flows:
        known = before.get(planned.flow.name)
        if planned.flow.name in stage.flows and known not in (None, planned.fingerprint):
            yield Change(
                kind="alter",
                dataset=stage.table.name,
                text=f"the query of flow {planned.flow.name} has changed: new records are read with it, "
                f"and `headrace full-refresh {shown(stage.table.name)}` reads the old ones again",
            )


def _view_changes(stage: RefreshViewStage, plan: Plan) -> Iterator[Change]:
    planned = stage.planned
    assert isinstance(planned.view, MaterializedView)
    name = planned.view.name
    stored = load_stored(plan.project.storage, name)
    if stored is None:
        text = f"new materialized view: {columns_text(planned.schema)}"
        yield Change(kind="create", dataset=name, text=text)
        return
    yield from _alterations(planned.view, planned.schema, stage.properties, stored)
    reason = _stale(planned, plan)
    if reason is not None:
        yield Change(kind="recompute", dataset=name, text=reason)


def _stale(planned: PlannedView, plan: Plan) -> str | None:
    """Why a view's next refresh computes it anew; ``None`` where it is up to date."""
    last = last_refresh(plan.project.storage.table(planned.view.name))
    if last is None:
        return "it has never been refreshed"
    if last.get("definition") != planned.fingerprint:
        return "its query has changed"
    seen: Mapping[str, Any] = last.get("inputs") or {}
    moved = [
        name
        for name in dict.fromkeys(read.table for read in planned.reads)
        if _newest(plan, name) != _version_and_mark(seen.get(str(name)))
    ]
    return f"{', '.join(shown(name) for name in moved)} has new versions" if moved else None


def _newest(plan: Plan, name: TableName) -> tuple[int | None, str | None]:
    path = plan.project.storage.table(name)
    known = versions(path)
    return (known[-1], commit_mark(path, known[-1])) if known else (None, None)


def _version_and_mark(said: Mapping[str, Any] | None) -> tuple[int | None, str | None]:
    return (None, None) if said is None else (said.get("version"), said.get("commit"))


def _alterations(
    dataset: StreamingTable | MaterializedView,
    schema: columns.Schema,
    properties: Mapping[str, str],
    stored: StoredTable,
) -> Iterator[Change]:
    name = dataset.name
    replaced = isinstance(dataset, MaterializedView)
    wanted = properties["headrace.kind"]
    if stored.kind != wanted:
        was = _KINDS.get(stored.kind or "", "a table that Headrace did not make")
        yield Change(kind="alter", dataset=name, text=f"is {_KINDS[wanted]} now, and {was} in the storage")
    for text in _column_changes(schema, stored.schema, replaced=replaced, name=name):
        yield Change(kind="alter", dataset=name, text=text)
    for key, value in properties.items():
        before = stored.properties.get(key)
        if before != value and key != "headrace.kind":
            text = f"sets {key} = {value}" + (f" (was {before})" if before is not None else "")
            yield Change(kind="alter", dataset=name, text=text)
    if tuple(stored.partition_cols) != dataset.partition_cols and not replaced:
        before = ", ".join(stored.partition_cols) or "nothing"
        now = ", ".join(dataset.partition_cols) or "nothing"
        yield Change(
            kind="alter",
            dataset=name,
            text=f"is partitioned by {before}, and declared by {now}; an existing table keeps its layout",
        )


def _column_changes(
    schema: columns.Schema, stored: columns.Schema, *, replaced: bool, name: TableName
) -> Iterator[str]:
    added = set(columns.missing(schema, stored))
    for field in columns.fields(schema):
        if field["name"] in added:
            yield f"adds the column {field['name']} {columns.type_text(field['type'])}"
    for column, now, before in columns.conflicts(schema, stored):
        how = "" if replaced else f": only `headrace full-refresh {shown(name)}` changes it"
        yield f"the column {column} is {before} in the table and {now} in the query{how}"
    for column in columns.missing(stored, schema):
        yield (
            f"drops the column {column}"
            if replaced
            else f"keeps the column {column}, which the query gives no more: null in new rows"
        )


def _kept(plan: Plan) -> Iterator[Change]:
    declared = {str(dataset.name).casefold() for dataset in plan.datasets}
    for name in stored_names(plan.project.storage):
        if str(name).casefold() in declared:
            continue
        stored = load_stored(plan.project.storage, name)
        if stored is not None and stored.pipeline == plan.project.name:
            yield Change(kind="keep", dataset=name, text="no file declares it any more; the table is kept")


def columns_text(schema: columns.Schema) -> str:
    """The columns in one line."""
    return ", ".join(
        f"{field['name']} {columns.type_text(field['type'])}" for field in columns.fields(schema)
    )
