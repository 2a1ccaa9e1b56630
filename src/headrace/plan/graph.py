"""The order of a pipeline's stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.model.names import TableName
from headrace.plan.stages import (
    OpenTableStage,
    PlannedFlow,
    RefreshViewStage,
    RunFlowStage,
    Stage,
    TableRead,
)


def build_levels(
    tables: Iterable[OpenTableStage],
    flows: Iterable[PlannedFlow],
    views: Iterable[RefreshViewStage],
) -> tuple[tuple[Stage, ...], ...]:
    """Stages in dependency order: first all tables, then each flow and view after the tables that it reads.

    The stages of one level do not depend on each other. A dataset is ready when all flows that write it
    have run.
    """
    opens, runs, refreshes = tuple(tables), tuple(flows), tuple(views)
    reads: dict[TableName, set[TableName]] = {}
    for planned in runs:
        reads.setdefault(planned.flow.target, set()).update(_tables(planned.reads))
    for stage in refreshes:
        reads.setdefault(stage.view.name, set()).update(_tables(stage.planned.reads))
    depths = _depths(reads)
    levels: list[list[Stage]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
    for planned in runs:
        levels[depths[planned.flow.target]].append(RunFlowStage(planned=planned))
    for stage in refreshes:
        levels[depths[stage.view.name]].append(stage)
    first: list[Stage] = [*opens]
    return tuple(tuple(level) for level in (first, *levels) if level)


def _tables(reads: Iterable[TableRead]) -> set[TableName]:
    return {read.table for read in reads if read.declared}


def _depths(reads: Mapping[TableName, set[TableName]]) -> dict[TableName, int]:
    """The length of the longest chain of datasets that each dataset reads, without reads of itself."""
    depths: dict[TableName, int] = {}

    def depth(name: TableName) -> int:
        if name not in depths:
            before = [depth(other) + 1 for other in reads.get(name, ()) if other != name and other in reads]
            depths[name] = max(before, default=0)
        return depths[name]

    for name in reads:
        depth(name)
    return depths
