"""The target that a flow writes to."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, assert_never

import psutil

from headrace.contracts.rejected import COLUMNS
from headrace.model.changes import ChosenColumns
from headrace.model.declarations import AppendFlow, AutoCdcFlow, Groups
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.plan.stages import Plan, PlannedFlow, RefreshViewStage
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.append import AppendTarget
from headrace.sinks.delta.maintenance import Maintenance
from headrace.sinks.delta.quarantine import QuarantineTable
from headrace.sinks.delta.replace import ReplaceTarget
from headrace.sinks.delta.tombstones import HiddenEvents, Tombstones
from headrace.sinks.outside import SinkTarget
from headrace.sinks.target import FlowTarget, RefreshStamp, Target
from headrace.sources.registry import kind_for
from headrace.storage.layout import Storage

if TYPE_CHECKING:
    from headrace.sinks.delta.keyed import SharedTable, SharedTables
    from headrace.storage.location import Location


def flow_target(
    planned: PlannedFlow, settings: ProjectSettings, spark: SparkSession, maintenance: Maintenance
) -> FlowTarget:
    """The target of a flow."""
    match planned.flow:
        case AppendFlow(groups=Groups(keys=keys, only_new=only_new), target=target):
            from headrace.sinks.delta.groups import GroupsTarget

            return GroupsTarget(
                spark=spark,
                path=settings.storage.table(target),
                keys=keys,
                only_new=only_new,
                tombstones=Tombstones(path=settings.storage.tombstones(target), keys=keys),
                maintenance=maintenance,
                shared=_shared(settings.storage.table(target)),
            )
        case AppendFlow():
            table = AppendTarget(
                spark=spark,
                path=settings.storage.table(planned.flow.target),
                reads_target=planned.reads_target,
                maintenance=maintenance,
            )
            if planned.sink is None:
                return table
            connection = kind_for(planned.sink.writer).sink_options(settings)
            return SinkTarget(table=table, sink=planned.sink, connection=connection)
        case AutoCdcFlow(keys=keys, target=table, history=ChosenColumns() as tracked):
            from headrace.sinks.delta.history import HistoryTarget

            return HistoryTarget(
                spark=spark,
                path=settings.storage.table(table),
                keys=keys,
                tracked=tracked,
                tombstones=HiddenEvents(path=settings.storage.tombstones(table), keys=keys),
                maintenance=maintenance,
                shared=_shared(settings.storage.table(table)),
                index_memory=index_memory(settings),
            )
        case AutoCdcFlow(keys=keys, target=table, truncates=truncates, kept_if_null=kept):
            from headrace.sinks.delta.merge import MergeTarget

            return MergeTarget(
                spark=spark,
                path=settings.storage.table(table),
                keys=keys,
                truncates=truncates,
                is_partial=kept is not None,
                duplicate_keys=settings.duplicate_keys,
                tombstones=Tombstones(path=settings.storage.tombstones(table), keys=keys),
                maintenance=maintenance,
                shared=_shared(settings.storage.table(table)),
                index_memory=index_memory(settings),
            )
        case _:
            assert_never(planned.flow)


def _shared(path: Location) -> SharedTable:
    """The state that all flows of this process share that change rows of the table."""
    return _shared_tables().of(path)


@cache
def _shared_tables() -> SharedTables:
    from headrace.sinks.delta.keyed import SharedTables

    return SharedTables()


def refresh_target(stage: RefreshViewStage, plan: Plan) -> Target[RefreshStamp]:
    """The target of a refresh flow."""
    storage = plan.project.storage
    view = stage.view
    return ReplaceTarget(
        path=storage.table(view.name),
        quarantine=storage.quarantine(view.name),
        partition_cols=view.partition_cols,
        cluster_by=view.cluster_by,
        is_streamed=plan.streams(view.name),
    )


def index_memory(settings: ProjectSettings) -> int:
    """How many bytes the indexes of the keys of all tables may need together; 0 for no index."""
    given = settings.index_memory
    return int(psutil.virtual_memory().total) // 4 if given is None else given


def quarantine_of(dataset: TableName, storage: Storage) -> QuarantineTable:
    """The quarantine table of a dataset."""
    return QuarantineTable(path=storage.quarantine(dataset), columns=COLUMNS)


def side_tables(dataset: TableName, storage: Storage) -> tuple[QuarantineTable, QuarantineTable]:
    """The tables whose rows belong to the batches of a dataset: its quarantine, and its deleted keys."""
    return quarantine_of(dataset, storage), QuarantineTable(path=storage.tombstones(dataset), columns="")
