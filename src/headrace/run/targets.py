"""The target that a flow writes to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, TypeVar, assert_never

import psutil

from headrace.contracts.changes import table_schema
from headrace.contracts.rejected import COLUMNS
from headrace.errors import UsageError
from headrace.model.declarations import AppendFlow, AutoCdcFlow, Groups, Sink
from headrace.model.names import ChosenColumns, TableName
from headrace.model.project import ProjectSettings
from headrace.plan.stages import Plan, PlannedFlow, RefreshViewStage
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.append import AppendTarget, FlowTable, SinkTarget
from headrace.sinks.delta.folding import SharedTables
from headrace.sinks.delta.history import HistoryTarget
from headrace.sinks.delta.keyed import GroupsTarget
from headrace.sinks.delta.merge import MergeTarget
from headrace.sinks.delta.quarantine import QuarantineTable
from headrace.sinks.delta.reader import DeltaReader, ReadTable
from headrace.sinks.delta.replace import ReplaceTarget
from headrace.sinks.delta.tombstones import HiddenEvents, Tombstones
from headrace.sinks.target import (
    BatchStamp,
    FlowTarget,
    SinkSender,
    SinkSpec,
    SinkStore,
    TargetReader,
    format_of,
)
from headrace.storage.layout import Storage

if TYPE_CHECKING:
    from headrace.run.context import UpdateContext

Opened = TypeVar("Opened")


def flow_target(planned: PlannedFlow, context: UpdateContext, spark: SparkSession) -> FlowTarget:
    settings, maintenance = context.settings, context.maintenance
    flow, sink, storage = planned.flow, planned.sink, settings.storage
    if (store := sink_store(planned)) is not None:
        return store
    path, tombstones = storage.table(flow.target), storage.tombstones(flow.target)
    table = FlowTable(spark=spark, path=path, maintenance=maintenance)
    match flow:
        case AppendFlow(groups=Groups(keys=keys, only_new=only_new)):
            return GroupsTarget(
                **vars(table),
                keys=keys,
                only_new=only_new,
                tombstones=Tombstones(path=tombstones, keys=keys),
                shared=_shared_tables().of(path),
            )
        case AppendFlow():
            if sink is None:
                return AppendTarget(**vars(table), reads_target=planned.reads_target)
            kind, connection, sender = format_of(sink), planned.connection(), sink_sender(planned)

            def send(rows: DataFrame, stamp: BatchStamp) -> None:
                within = (
                    nullcontext() if sink.function is None else context.queries.sending(rows.sparkSession)
                )
                with within:
                    kind.send(rows, stamp, sink, connection)

            return SinkTarget(
                **vars(table),
                reads_target=planned.reads_target,
                send=send if sender is None else sender.send,
                refuses_rows=sender is not None,
            )
        case AutoCdcFlow(keys=keys, history=ChosenColumns() as tracked):
            return HistoryTarget(
                **vars(table),
                keys=keys,
                tracked=tracked,
                tombstones=HiddenEvents(path=tombstones, keys=keys),
                shared=_shared_tables().of(path),
                index_memory=_index_memory(settings),
            )
        case AutoCdcFlow(keys=keys, truncates=truncates, kept_if_null=kept):
            return MergeTarget(
                **vars(table),
                keys=keys,
                truncates=truncates,
                is_partial=kept is not None,
                duplicate_keys=settings.duplicate_keys,
                tombstones=Tombstones(path=tombstones, keys=keys),
                shared=_shared_tables().of(path),
                index_memory=_index_memory(settings),
            )
        case _:
            assert_never(flow)


def target_reader(planned: PlannedFlow, storage: Storage, read_table: ReadTable) -> TargetReader:
    return sink_store(planned) or DeltaReader(storage.table(planned.flow.target), read_table)


def sink_store(planned: PlannedFlow) -> SinkStore | None:
    """The sink that a flow writes to, if the sink keeps the state of its flows itself."""
    return None if planned.sink is None else _opened(planned, planned.sink, format_of(planned.sink).open)


def sink_sender(planned: PlannedFlow) -> SinkSender | None:
    """What sends the rows of a flow to another system, for a format that checks its options itself."""
    return None if planned.sink is None else _opened(planned, planned.sink, format_of(planned.sink).sender)


def _opened(planned: PlannedFlow, sink: Sink, opens: Callable[[SinkSpec], Opened] | None) -> Opened | None:
    if opens is None:
        return None
    flow = planned.flow
    keys: tuple[str, ...] = ()
    schema = planned.schema
    if isinstance(flow, AutoCdcFlow) and schema:
        keys, schema = flow.keys, table_schema(schema)
    try:
        return opens(
            SinkSpec(
                name=flow.target,
                options=sink.options,
                schema=schema,
                keys=keys,
                reads_changes=any(source.reads_feed for source in planned.sources),
                limits_changes=any(source.limits_feed for source in planned.sources),
                sources=len(planned.sources),
                follows=planned.follows,
                connection=planned.connection(),
            )
        )
    except UsageError as error:
        raise error.with_location(flow.location) from error


@cache
def _shared_tables() -> SharedTables:
    """What all flows of this process share that change rows of tables."""
    return SharedTables()


def refresh_target(stage: RefreshViewStage, plan: Plan) -> ReplaceTarget:
    storage = plan.project.storage
    view = stage.view
    return ReplaceTarget(
        path=storage.table(view.name),
        quarantine=storage.quarantine(view.name),
        partition_cols=view.partition_cols,
        cluster_by=view.cluster_by,
        is_streamed=plan.streams(view.name),
    )


def _index_memory(settings: ProjectSettings) -> int:
    """How many bytes the indexes of the keys of all tables may need together; 0 for no index."""
    given = settings.index_memory
    return int(psutil.virtual_memory().total) // 4 if given is None else given


def quarantine_of(dataset: TableName, storage: Storage) -> QuarantineTable:
    return QuarantineTable(path=storage.quarantine(dataset), columns=COLUMNS, widens=True)


def side_tables(dataset: TableName, storage: Storage) -> tuple[QuarantineTable, QuarantineTable]:
    """The tables whose rows belong to the batches of a dataset: its quarantine, and its deleted keys."""
    return quarantine_of(dataset, storage), QuarantineTable(path=storage.tombstones(dataset), columns="")
