"""Tables before their flows start: made where missing, known to the session, brought up to date."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.declarations import MaterializedView, StreamingTable
from headrace.plan.properties import COORDINATES, TIMESTAMP
from headrace.plan.stages import OpenTableStage, Plan, PlannedFlow
from headrace.run.context import UpdateContext
from headrace.run.opening import has_fed_another, refuse_lost_table
from headrace.sinks.delta.table import (
    TableState,
    alter_table,
    as_nullable,
    create_table,
    is_table,
    read_state,
    register_table,
)
from headrace.state.files import unwritable

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


def open_table(stage: OpenTableStage, flows: Sequence[PlannedFlow], context: UpdateContext) -> None:
    """Create a table if it is missing, else bring its properties and new columns up to date.

    Raises:
        TableLostError: It is missing, and a checkpoint has fed it.
        StorageUnwritableError: The storage cannot be written.
    """
    table = stage.table
    path = context.settings.storage.table(table.name)
    for planned in flows:
        refuse_lost_table(planned, context)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    declared = stage.schema if table.schema is not None else as_nullable(stage.schema)
    if not is_table(path):
        create_table(
            context.spark,
            table.name,
            path,
            declared,
            properties=stage.properties,
            partition_cols=table.partition_cols,
            cluster_by=table.cluster_by,
            comment=table.comment,
        )
        return
    register_table(context.spark, table.name, path)
    state = read_state(context.spark, path)
    if any(has_fed_another(planned, state.table_id, context) for planned in flows):
        # Its flows will refuse to feed it: nothing is changed in somebody else's table.
        return
    changed = {
        key: value
        for key, value in stage.properties.items()
        if state.properties.get(key) != value and _holds_for_all_rows(key, table, state)
    }
    removed = tuple(key for key in PLACES if key in state.properties and key not in stage.properties)
    there = {field["name"].lower() for field in state.schema["fields"]}
    added = [field for field in declared["fields"] if field["name"].lower() not in there]
    if changed or removed or added:
        columns = {"type": "struct", "fields": added} if added else None
        alter_table(context.spark, path, properties=changed, removed=removed, new_columns=columns)


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
