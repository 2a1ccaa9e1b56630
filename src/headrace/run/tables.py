"""Tables before their flows start: made where missing, known to the session, brought up to date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.errors import SchemaMismatchError, TableFolderTakenError
from headrace.model.declarations import MaterializedView, StreamingTable
from headrace.plan import columns
from headrace.plan.properties import COORDINATES, TIMESTAMP
from headrace.plan.stages import OpenTableStage, Plan, PlannedFlow
from headrace.plan.stored import load_stored_at
from headrace.run.context import UpdateContext
from headrace.run.opening import has_fed_another, refuse_lost_table
from headrace.run.survey import ReadTable
from headrace.sinks.delta.table import (
    COMMENT_PROPERTY,
    TableState,
    alter_table,
    as_nullable,
    create_table,
    is_table,
    read_state,
    register_table,
)
from headrace.state.files import unwritable
from headrace.storage.layout import Storage

PLACES = (COORDINATES, TIMESTAMP)
"""Properties that say where in Kafka each row comes from."""


def register_tables(plan: Plan, context: UpdateContext) -> None:
    """Make every table that the storage holds known to the session, by its name."""
    storage = context.settings.storage
    reads = [read.table for flow in plan.flows for read in flow.reads]
    reads += [read.table for view in plan.views for read in view.reads]
    views = [one.view.name for one in plan.views if isinstance(one.view, MaterializedView)]
    for name in dict.fromkeys([*reads, *views]):
        if is_table(storage.table(name)):
            register_table(context.spark, name, storage.table(name))


def layout_schema(stage: OpenTableStage) -> Mapping[str, Any]:
    """The columns that a new table gets."""
    schema: Mapping[str, Any] = as_nullable(stage.schema)
    return stage.schema if stage.table.schema is not None else schema


def open_table(
    stage: OpenTableStage,
    flows: Sequence[PlannedFlow],
    context: UpdateContext,
    *,
    emptied: bool = False,
) -> None:
    """Create a table if it is missing, else bring its properties and new columns up to date.

    Args:
        stage: What the plan says of it.
        flows: The flows that feed it.
        context: The update.
        emptied: Whether it will be emptied next, so that no row binds its columns.

    Raises:
        SchemaMismatchError: Its rows have other types than the queries give.
        TableLostError: It is missing, and a checkpoint has fed it.
        StorageUnwritableError: The storage cannot be written.
    """
    table = stage.table
    path = context.settings.storage.table(table.name)
    for planned in flows:
        refuse_lost_table(planned, context.settings.storage)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    if not is_table(path) and _create(stage, path, context):
        return
    register_table(context.spark, table.name, path)
    state = read_state(context.spark, path)
    if any(has_fed_another(planned, state.table_id, context.settings.storage) for planned in flows):
        # Its flows will refuse to feed it: nothing is changed in somebody else's table.
        return
    if not emptied:
        _refuse_other_types(stage, state)
    _alter(stage, path, state, context)


def refuse_table(
    stage: OpenTableStage, flows: Sequence[PlannedFlow], storage: Storage, read_table: ReadTable
) -> None:
    """What `open_table` refuses, without making anything.

    Args:
        stage: What the plan says of the table.
        flows: The flows that feed it.
        storage: Where it lies.
        read_table: Reads its newest snapshot.

    Raises:
        SchemaMismatchError: Its rows have other types than the queries give.
        TableLostError: It is missing, and a checkpoint has fed it.
        TableFolderTakenError: It is missing, and its folder holds something else.
    """
    path = storage.table(stage.table.name)
    for planned in flows:
        refuse_lost_table(planned, storage)
    if not is_table(path):
        if path.is_dir():
            _refuse_other_files(stage.table, path)
        return
    state = read_table(path)
    if not any(has_fed_another(planned, state.table_id, storage) for planned in flows):
        _refuse_other_types(stage, state)


def _create(stage: OpenTableStage, path: Path, context: UpdateContext) -> bool:
    """Create a missing table; false where somebody else did meanwhile."""
    table = stage.table
    _refuse_other_files(table, path)
    try:
        create_table(
            context.spark,
            table.name,
            path,
            layout_schema(stage),
            properties=stage.properties,
            partition_cols=table.partition_cols,
            cluster_by=table.cluster_by,
            comment=table.comment,
        )
    except Exception:
        # Another driver may have been faster; whose flows may feed the table is the lease's affair.
        if not is_table(path):
            raise
        return False
    return True


def _alter(stage: OpenTableStage, path: Path, state: TableState, context: UpdateContext) -> None:
    changed = {
        key: value
        for key, value in stage.properties.items()
        if state.properties.get(key) != value and _holds_for_all_rows(key, stage.table, state)
    }
    if stage.table.comment and stage.table.comment != state.comment:
        changed[COMMENT_PROPERTY] = stage.table.comment
    removed = tuple(key for key in PLACES if key in state.properties and key not in stage.properties)
    there = {field["name"].lower() for field in state.schema["fields"]}
    added = [field for field in layout_schema(stage)["fields"] if field["name"].lower() not in there]
    clusters = new_clustering(stage.table, path)
    if changed or removed or added or clusters:
        new = {"type": "struct", "fields": added} if added else None
        alter_table(
            context.spark,
            path,
            properties=changed,
            removed=removed,
            new_columns=new,
            cluster_by=clusters,
        )


def new_clustering(table: StreamingTable | MaterializedView, path: Path) -> tuple[str, ...]:
    """The columns by which a table is to be clustered from now on; none where it is, or cannot be."""
    stored = load_stored_at(path) if table.cluster_by else None
    return () if stored is None else stored.new_clustering(table.cluster_by)


def _refuse_other_files(table: StreamingTable, path: Path) -> None:
    """A table is made in an empty folder only: what lies there may be somebody's."""
    first = next((one.name for one in path.iterdir() if one.name != "_delta_log"), None)
    if first is not None:
        raise TableFolderTakenError(
            f"{table.name} cannot be made: its folder holds files and is no Delta table",
            location=table.location,
            facts=(f"{path} holds {first}", "nothing was read or written"),
            remedies=("move the folder away, and run again",),
            params={"dataset": str(table.name), "path": str(path)},
        )


def _refuse_other_types(stage: OpenTableStage, state: TableState) -> None:
    name = stage.table.name
    conflicts = [
        (column, now, before)
        for column, now, before in columns.conflicts(stage.schema, state.schema)
        if (now, before) not in columns.WIDENED
    ]
    if conflicts:
        found = [f"{column} is {was} in the table and {now} in the query" for column, now, was in conflicts]
        raise SchemaMismatchError(
            f"{name} has columns of other types than its queries give now",
            location=stage.table.location,
            facts=(*found, "nothing was read or written"),
            remedies=(f"cast them in the query, or read everything again:   headrace full-refresh {name}",),
            params={"dataset": str(name), "columns": [column for column, _, _ in conflicts]},
        )


def name_places(stage: OpenTableStage, context: UpdateContext) -> None:
    """Set the places of a table that holds no row any more: what comes is its newest query's."""
    path = context.settings.storage.table(stage.table.name)
    there = read_state(context.spark, path).properties
    places = {key: stage.properties[key] for key in PLACES if key in stage.properties}
    if any(there.get(key) != value for key, value in places.items()):
        alter_table(context.spark, path, properties=places)


def _holds_for_all_rows(key: str, table: StreamingTable, state: TableState) -> bool:
    """Whether a property may be set on a table with rows.

    That rows keep one place each is the word of the query that wrote them; rows of an earlier query,
    which may have left records out, would be found missing.
    """
    return key not in PLACES or key in table.table_properties or not state.transactions
