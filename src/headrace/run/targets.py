"""The target that a flow writes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from headrace.contracts.rejected import COLUMNS
from headrace.model.declarations import AppendFlow
from headrace.model.names import TableName
from headrace.plan.stages import PlannedFlow, RefreshViewStage
from headrace.sinks.delta.append import AppendTarget
from headrace.sinks.delta.checkpointer import LogCheckpointer
from headrace.sinks.delta.quarantine import QuarantineTable
from headrace.sinks.delta.replace import ReplaceTarget
from headrace.sinks.target import FlowTarget, RefreshStamp, Target
from headrace.storage.layout import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def flow_target(
    planned: PlannedFlow, storage: Storage, spark: SparkSession, checkpointer: LogCheckpointer
) -> FlowTarget:
    """The target of a flow.

    Args:
        planned: The flow.
        storage: The pipeline's storage.
        spark: The session that reads and changes the target's metadata.
        checkpointer: Writes Delta's checkpoints of tables.
    """
    match planned.flow:
        case AppendFlow():
            return AppendTarget(
                spark=spark,
                path=storage.table(planned.flow.target),
                reads_target=planned.reads_target,
                checkpointer=checkpointer,
            )
        case _:
            assert_never(planned.flow)


def refresh_target(stage: RefreshViewStage, storage: Storage) -> Target[RefreshStamp]:
    """The target of a refresh flow.

    Args:
        stage: The view and its refresh flow.
        storage: The pipeline's storage.
    """
    view = stage.view
    return ReplaceTarget(
        path=storage.table(view.name),
        quarantine=storage.quarantine(view.name),
        partition_cols=view.partition_cols,
        cluster_by=view.cluster_by,
    )


def quarantine_of(dataset: TableName, storage: Storage) -> QuarantineTable:
    """The quarantine table of a dataset."""
    return QuarantineTable(path=storage.quarantine(dataset), columns=COLUMNS)
