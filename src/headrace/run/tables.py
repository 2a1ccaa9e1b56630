"""Creates, registers and alters tables before their flows start."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from headrace import errors
from headrace.errors import HeadraceError
from headrace.model.declarations import MaterializedView, StreamingTable
from headrace.model.names import END, SEQUENCE, START
from headrace.model.texts import counted
from headrace.plan import columns
from headrace.plan.changes import (
    COORDINATE_PROPERTIES,
    WIDENING,
    TableAlterations,
    column_names,
    find_alterations,
    find_widened,
    layout_schema,
)
from headrace.plan.evaluate import shortened
from headrace.plan.properties import KEYS, keeps_history, keys_of
from headrace.plan.stages import OpenTableStage, Plan, PlannedFlow
from headrace.plan.stored import load_stored_at
from headrace.run.failpoints import reach
from headrace.run.survey import table_lost
from headrace.run.targets import side_tables, sink_sender, sink_store
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.reader import DeltaReader, ReadTable
from headrace.sinks.delta.table import (
    CLEARING,
    COMMENT_PROPERTY,
    REFRESHING_PROPERTY,
    TableState,
    alter_table,
    check_name,
    create_table,
    publish_table,
    read_state,
    register_table,
)
from headrace.sinks.target import SinkStore, format_of, keeps_state
from headrace.state.checkpoint import generations, load_identity, load_state
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_log import is_table
from headrace.syntax.locations import argument_location


def register_tables(plan: Plan, spark: SparkSession) -> None:
    """Register the tables that the storage holds and the plan reads in the session's catalog."""
    storage = plan.project.storage
    views = [refresh.flow.target for refresh in plan.refreshes]
    declared = {one.name: one.location for one in plan.datasets}
    for name in dict.fromkeys([*plan.tables_read, *views]):
        try:
            if is_table(storage.table(name)):
                register_table(spark, name, storage.table(name))
                publish_table(spark, name, storage.table(name))
            else:
                check_name(spark, name, storage.table(name))
        except errors.TableNameTakenError as error:
            raise error.with_location(declared.get(name)) from None


@dataclass(frozen=True, kw_only=True)
class TableOpening:
    """What a run does to a table before its flows start. `creates`: whether the table is created.
    `alterations`: what changes in an existing table."""

    creates: bool = False
    alterations: TableAlterations = field(default_factory=TableAlterations)


def check_table(
    stage: OpenTableStage,
    flows: Sequence[PlannedFlow],
    storage: Storage,
    read_table: ReadTable,
    *,
    emptied: bool = False,
) -> TableOpening:
    """What a run does to a table before its flows start; writes nothing. `emptied`: whether it is emptied
    next, so that its columns may have other types."""
    table = stage.table
    path = storage.table(table.name)
    if (store := _store(flows)) is not None:
        try:
            store.check()
        except errors.UsageError as error:
            raise error.with_location(table.location) from error
        is_missing = store.state() is None
        for planned in flows if is_missing else ():
            _refuse_lost(planned, storage)
        return TableOpening(creates=is_missing)
    for planned in flows:
        sink_sender(planned)  # raises the errors of its options
    if not is_table(path):
        for planned in flows:
            _refuse_lost(planned, storage)
        _refuse_other_files(table, path)
        return TableOpening(creates=True)
    state = read_table(path)
    if any(_has_fed_another(planned, state.table_id, storage) for planned in flows):
        # Opening its flows is refused: nothing is changed in a table that is not theirs.
        return TableOpening()
    if not emptied:
        _refuse_taken_names(stage, state)
        _refuse_other_history(stage, state)
        _refuse_other_types(stage, state)
        _refuse_other_keys(stage, state, flows)
    alterations = find_alterations(
        table,
        stage.schema,
        stage.properties,
        state,
        has_rows=bool(state.transactions),
        new_clustering=new_clustering(table, path),
    )
    return TableOpening(alterations=alterations)


def open_table(
    stage: OpenTableStage,
    flows: Sequence[PlannedFlow],
    storage: Storage,
    spark: SparkSession,
    *,
    emptied: bool = False,
) -> None:
    """Create a table if it is missing, else bring its properties and columns up to date. `emptied`: whether
    it is emptied next, so that its columns may have other types."""
    path = storage.table(stage.table.name)
    store = _store(flows) or DeltaReader(path, partial(read_state, spark))
    state = None if emptied else store.state()
    if state is not None and state.refreshing == CLEARING:
        finish_refresh(stage, flows, storage, spark)

    def check() -> TableOpening:
        return check_table(stage, flows, storage, lambda table: read_state(spark, table), emptied=emptied)

    opening = check()
    if not isinstance(store, DeltaReader):
        store.create()
        return
    path.make_folder()
    if opening.creates:
        # Those of a table that was removed would hide rows of the new one.
        quarantine, tombstones = side_tables(stage.table.name, storage)
        tombstones.drop(spark)
        quarantine.forget_missing(spark)
        if _create(stage, path, spark):
            publish_table(spark, stage.table.name, path)
            return
        # Another driver was faster. Which of the two may feed the table is decided by the lease.
        opening = check()
    register_table(spark, stage.table.name, path)
    alter(spark, path, opening.alterations, stage.table)
    publish_table(spark, stage.table.name, path)


def _store(flows: Sequence[PlannedFlow]) -> SinkStore | None:
    """The sink that flows write to, if it keeps their state itself."""
    return sink_store(flows[0]) if flows else None


def alter(
    spark: SparkSession,
    path: Location,
    alterations: TableAlterations,
    table: StreamingTable | MaterializedView,
) -> None:
    from pyspark.errors import PySparkException

    if alterations.is_empty:
        return
    comment = {COMMENT_PROPERTY: alterations.comment} if alterations.comment else {}
    try:
        alter_table(
            spark,
            path,
            properties={**alterations.properties, **comment},
            removed=alterations.removed,
            renamed=alterations.renamed,
            dropped=alterations.dropped,
            widened=alterations.widened,
            new_columns=alterations.new_columns,
            cluster_by=alterations.cluster_by,
            committed=lambda: reach("column-changed", table.name.name, 0),
        )
    except PySparkException as error:
        changed = [*(old for old, _ in alterations.renamed), *alterations.dropped]
        changed += [name for name, _ in alterations.widened]
        if not changed:
            raise
        raise errors.ColumnInvalidError(
            f"Delta cannot change the columns of {table.name.short}: {shortened(str(error)).splitlines()[0]}",
            location=table.location,
            facts=[f"columns to change: {', '.join(changed)}", "no row was read or written"],
            remedies=[
                "remove the column from renamed_columns or dropped_columns",
                f"or read all records again:   headrace full-refresh {table.name.short}",
            ],
            params={"dataset": str(table.name), "columns": changed},
        ) from error


def _create(stage: OpenTableStage, path: Location, spark: SparkSession) -> bool:
    """Create a missing table; false if another process has created it in the meantime."""
    table = stage.table
    try:
        create_table(
            spark,
            table.name,
            path,
            layout_schema(table, stage.schema),
            properties=stage.properties,
            partition_cols=table.partition_cols,
            cluster_by=table.cluster_by,
            comment=table.comment,
        )
    except Exception:
        if not is_table(path):
            raise
        return False
    return True


def new_clustering(table: StreamingTable | MaterializedView, path: Location) -> tuple[str, ...]:
    """The declared clustering columns that differ from those of the table."""
    stored = load_stored_at(path) if table.cluster_by else None
    return () if stored is None else stored.new_clustering(table.cluster_by)


def _refuse_other_files(table: StreamingTable, path: Location) -> None:
    """Refuse to create a table in a folder with files that Headrace did not write."""
    held = [*path.list_files(), *path.list_folders()]
    first = next((name for name in held if name != "_delta_log"), None)
    if first is not None:
        raise errors.TableFolderTakenError(
            f"{table.name.short} cannot be created: its folder holds files, and is not a Delta table",
            location=table.location,
            facts=(f"{path} holds {first}", "nothing was read or written"),
            remedies=(
                f"move the folder away:   {path.move_command(table.name.name + '-files')}",
                "then run again:   headrace run",
            ),
            params={"dataset": str(table.name), "path": str(path)},
        )


def _refuse_other_history(stage: OpenTableStage, state: TableState) -> None:
    """Refuse to rename or drop a column of a table with histories: its hidden events have it, too."""
    table = stage.table
    if not keeps_history(state.properties) or column_names(table, state.schema) == state.schema:
        return
    changed = [*table.renamed_columns, *table.dropped_columns]
    raise errors.SchemaMismatchError(
        f"{table.name.short} keeps the history of each key: its columns cannot be renamed or dropped",
        location=table.location,
        facts=(
            f"columns to change: {', '.join(changed)}",
            "late records need events that no row shows, and these have the old columns",
            "nothing was read or written",
        ),
        remedies=(
            "keep the column, and give it the other name in a view over the table",
            f"or read everything again:   headrace full-refresh {table.name.short}",
        ),
        params={"dataset": str(table.name), "columns": changed},
    )


def _refuse_taken_names(stage: OpenTableStage, state: TableState) -> None:
    table = stage.table
    held = columns.altered(state.schema, {}, table.dropped_columns)
    for old, new in table.renamed_columns.items():
        to = columns.sibling(old, new)
        if columns.find(held, old) is not None and columns.find(held, to) is not None:
            raise errors.SchemaMismatchError(
                f"{table.name.short}: {old} cannot be renamed to {new}: the table has both columns",
                location=table.location,
                facts=("nothing was read or written",),
                remedies=(
                    f"drop the old column with its values:   dropped_columns={[old]}",
                    f"or read all records again:   headrace full-refresh {table.name.short}",
                ),
                params={"dataset": str(table.name), "columns": [old, to]},
            )


def _refuse_other_types(stage: OpenTableStage, state: TableState) -> None:
    name = stage.table.name
    held = column_names(stage.table, state.schema)
    allowed = find_widened(stage.schema, stage.properties, held, state)
    # Sequences with further fields could not be compared with those of the tombstones.
    fixed = (SEQUENCE, START, END) if keys_of(stage.properties) else ()
    if conflicts := columns.refused_changes(stage.schema, held, allowed, fixed):
        found = [f"{column} is {was} in the table and {now} in the query" for column, now, was in conflicts]
        is_inferred = bool(keys_of(stage.properties)) and stage.table.schema is None
        raise errors.SchemaMismatchError(
            f"{name.short} has columns whose types differ from those of its queries",
            location=stage.table.location,
            facts=(*found, "nothing was read or written"),
            remedies=(
                "cast the columns in the query",
                *(
                    [f"or let Delta widen them, with the table property {WIDENING} = true"]
                    if conflicts == columns.widened(stage.schema, held, keys_of(state.properties))
                    else []
                ),
                *(
                    ["or, if they are inferred from snapshots, declare them with schema=.."]
                    if is_inferred
                    else []
                ),
                f"or read everything again:   headrace full-refresh {name.short}",
            ),
            params={"dataset": str(name), "columns": [column for column, _, _ in conflicts]},
        )


def _refuse_other_keys(stage: OpenTableStage, state: TableState, flows: Sequence[PlannedFlow]) -> None:
    """Refuse a table with rows whose changes were applied in another way, or which rows were appended to."""
    name = stage.table.name
    held, wanted = keys_of(state.properties), keys_of(stage.properties)
    was, now = _how(state.properties), _how(stage.properties)
    if was == now or not state.transactions:
        return
    # The keys are an argument of the flow, and not of the table.
    location = flows[0].flow.location if flows else stage.table.location
    was_written = f"KEYS ({', '.join(held)})" if location.is_sql else f"keys={json.dumps(held)}"
    raise errors.KeysChangedError(
        f"the table {name.short} was built with {was}; the file now declares {now}",
        location=argument_location(location, "keys"),
        facts=("nothing was read or written",),
        remedies=(
            f"write {was_written} again" if held and wanted else "change the declaration back",
            f"or read everything again:   headrace full-refresh {name.short}",
        ),
        params={"dataset": str(name), "before": list(held), "keys": list(wanted)},
    )


def _how(properties: Mapping[str, str]) -> str:
    if KEYS in properties and not keys_of(properties):
        return "one row for all records"
    keys = ", ".join(keys_of(properties))
    kept = f"the history of the key {keys}" if keeps_history(properties) else f"the key {keys}"
    return kept if keys else "appended rows, without a key"


def finish_refresh(
    stage: OpenTableStage, flows: Sequence[PlannedFlow], storage: Storage, spark: SparkSession
) -> None:
    """Clear what a full refresh has left beside an emptied table whose flows are all opened anew."""
    name, path = stage.table.name, storage.table(stage.table.name)
    # No batch has begun: its tombstones would hide rows, and its snapshots would be applied again.
    quarantine, tombstones = side_tables(name, storage)
    quarantine.clear(spark)
    tombstones.drop(spark)
    reach("tombstones-dropped", name.name, 0)
    storage.snapshots(name).delete_folder()
    if (store := _store(flows)) is not None:
        store.finish_refresh()
        return
    # The query may have changed, and with it the columns that hold the coordinates.
    wanted = {key: stage.properties[key] for key in COORDINATE_PROPERTIES if key in stage.properties}
    held = read_state(spark, path).properties
    changed = wanted if any(held.get(key) != value for key, value in wanted.items()) else {}
    alter_table(spark, path, properties=changed, removed=(REFRESHING_PROPERTY,))


def _refuse_lost(planned: PlannedFlow, storage: Storage) -> None:
    """Refuse to create a table again that the flow has already written with its checkpoint."""
    flow = planned.flow
    for path in generations(storage.flow_checkpoints(flow.target, flow.name)):
        batches = load_state(path).last_planned + 1
        if batches > 0:
            _refuse_other_sink(planned, load_identity(path).sink)
            folder, held = storage.table(flow.target), counted(batches, "batch")
            raise table_lost(planned, f"{folder} is missing; its checkpoint {path} has {held}")


def _refuse_other_sink(planned: PlannedFlow, before: str | None) -> None:
    """Refuse a sink whose batches were recorded elsewhere. `before`: the format that kept the state of the
    flow; ``None`` if a Delta table did."""
    sink, flow = planned.sink, planned.flow
    now = sink.format if sink is not None and keeps_state(sink) else None
    if before == now:
        return
    was, wanted = ("the storage" if one is None else f"the {one} sink itself" for one in (before, now))
    weaker = sink is not None and now is not None and format_of(sink).weaker
    raise errors.TableLostError(
        f"flow {flow.name}: its batches were recorded by {was} until now, and would be by {wanted}",
        location=flow.location,
        facts=(f"{flow.target.short} is sent without duplicates only from a new start on",) if weaker else (),
        remedies=(
            *(['go on as before:   options={"guarantee": "at_least_once"}'] if weaker and not before else []),
            f"or send everything again:   headrace full-refresh {flow.target.short}",
        ),
        params={"flow": flow.name, "dataset": str(flow.target)},
    )


def _has_fed_another(planned: PlannedFlow, table_id: str, storage: Storage) -> bool:
    """Whether the flow's checkpoint was made for another table than the one that exists now."""
    flow = planned.flow
    known = generations(storage.flow_checkpoints(flow.target, flow.name))
    try:
        return bool(known) and load_identity(known[-1]).table_id != table_id
    except HeadraceError:
        # Opening the flow reports what is wrong with the checkpoint.
        return False
