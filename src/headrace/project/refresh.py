"""Full refresh: streaming tables are emptied, and read again from the beginning of their sources."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence

from headrace.errors import DownstreamStreamsError
from headrace.model.declarations import MaterializedView
from headrace.model.names import TableName
from headrace.plan.stages import OpenTableStage, Plan, RunFlowStage
from headrace.project.selection import find_datasets
from headrace.run.context import UpdateContext
from headrace.run.opening import start_over
from headrace.run.tables import layout_schema, name_places, open_table, register_tables
from headrace.sinks.delta.commit import TableLayout
from headrace.sinks.delta.table import is_table
from headrace.state.lease import Lease


def downstream_streams(names: Sequence[TableName], plan: Plan) -> tuple[TableName, ...]:
    """The streaming tables, near and far, that read these as streams and are not among them."""
    found: list[TableName] = []
    waiting = list(names)
    while waiting:
        name = waiting.pop(0)
        for planned in plan.flows:
            reads = any(source.table == name for source in planned.sources)
            if reads and planned.flow.target not in (*names, *found):
                found.append(planned.flow.target)
                waiting.append(planned.flow.target)
    return tuple(found)


def check_datasets(datasets: Sequence[str], plan: Plan) -> tuple[TableName, ...]:
    """The datasets that a user names, once it is sure that they can be rebuilt.

    Raises:
        DatasetUnknownError: The pipeline declares no such table.
        DownstreamStreamsError: A stream reads one of them, and is not among them.
    """
    names = find_datasets(datasets, plan)
    left_out = downstream_streams(names, plan)
    if left_out:
        listed = " ".join([*map(str, names), *map(str, left_out)])
        raise DownstreamStreamsError(
            f"{', '.join(map(str, left_out))} would read the rebuilt rows a second time",
            facts=("a stream reads what a table gains; nothing was changed",),
            remedies=(f"rebuild them together:   headrace full-refresh {listed}",),
            params={"datasets": [str(n) for n in names], "downstream": [str(n) for n in left_out]},
        )
    return names


def clear_datasets(datasets: Sequence[str], plan: Plan, context: UpdateContext) -> None:
    """Empty streaming tables, and open new checkpoints at the beginning of their sources.

    Each table is emptied by one commit, which also fences its old checkpoint. A materialized view
    is recomputed by the run that follows, and needs nothing here.

    Raises:
        DatasetUnknownError: The pipeline declares no such table.
        DownstreamStreamsError: A stream reads one of them, and is not among them.
        SecondDriverError: A flow of one of them runs.
    """
    names = check_datasets(datasets, plan)
    register_tables(plan, context)
    views = {d.name for d in plan.datasets if isinstance(d, MaterializedView)}
    for name in sorted(set(names) - views, key=_depths(plan).__getitem__, reverse=True):
        _clear(name, plan, context)


def _depths(plan: Plan) -> dict[TableName, int]:
    """How deep each streaming table lies in the plan. What reads a table is emptied before the table is:
    a crash in between then leaves streams that start at what is still there."""
    found: dict[TableName, int] = {}
    for depth, level in enumerate(plan.levels):
        for stage in level:
            if isinstance(stage, RunFlowStage):
                target = stage.planned.flow.target
                found[target] = max(depth, found.get(target, 0))
            elif isinstance(stage, OpenTableStage):
                found.setdefault(stage.table.name, 0)
    return found


def _clear(name: TableName, plan: Plan, context: UpdateContext) -> None:
    storage = context.settings.storage
    stages = [stage for level in plan.levels for stage in level]
    flows = [s.planned for s in stages if isinstance(s, RunFlowStage) and s.planned.flow.target == name]
    opening = next(s for s in stages if isinstance(s, OpenTableStage) and s.table.name == name)
    with contextlib.ExitStack() as held:
        for one in flows:
            lease = Lease.acquire(storage.lease(name, one.flow.name), one.flow.name)
            context.heart.add(lease)
            held.callback(context.heart.release, lease)
        if not is_table(storage.table(name)):
            # Nothing to empty: without its table a checkpoint is worth nothing.
            shutil.rmtree(storage.root / "checkpoints" / str(name), ignore_errors=True)
            return
        open_table(opening, flows, context, emptied=True)
        layout = TableLayout(schema=layout_schema(opening), partition_cols=opening.table.partition_cols)
        for number, planned in enumerate(flows):
            start_over(planned, context, layout=layout, first=number == 0, last=number == len(flows) - 1)
        name_places(opening, context)
