"""Full refresh: empties streaming tables and reads their sources again from the beginning."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from headrace.errors import DownstreamStreamsError, HeadraceError
from headrace.model.names import TableName
from headrace.model.remedies import Remedies
from headrace.model.sizes import size_text
from headrace.observe.recent_commits import load_tail
from headrace.plan.alterations import layout_schema
from headrace.plan.stages import OpenTableStage, Plan, RefreshViewStage, RunFlowStage, target_of
from headrace.project.selection import find_datasets
from headrace.run.context import UpdateContext
from headrace.run.runners import make_opener
from headrace.run.survey import FlowSurveyor, ReadTable, Survey
from headrace.run.tables import open_table, register_tables, set_coordinates
from headrace.run.targets import quarantine_of
from headrace.run.views import inputs_of
from headrace.sinks.target import TableLayout
from headrace.sources.registry import kind_of
from headrace.sources.systems import Systems
from headrace.storage.location import Location
from headrace.storage.table_log import is_table


@dataclass(frozen=True, kw_only=True)
class UnrecoverableData:
    """Rows of a table that a full refresh cannot read again.

    Args:
        dataset: The table that holds them.
        text: What cannot be read again, as a sentence.
        count: The number of files, or the highest possible number of records; ``None`` if unknown.
    """

    dataset: TableName
    text: str
    count: int | None


@dataclass(frozen=True, kw_only=True)
class RefreshPlan:
    """What a full refresh would do.

    Args:
        plan: The plan of the whole pipeline.
        names: The datasets that would be rebuilt.
        sizes: The rows (``None`` if they cannot be counted) and bytes that each table holds now.
        gone: What cannot be read again.
    """

    plan: Plan
    names: tuple[TableName, ...]
    sizes: Mapping[TableName, tuple[int | None, int]]
    gone: tuple[UnrecoverableData, ...]

    def lines(self) -> Iterator[str]:
        """What a full refresh would do: one line for each fact."""
        for name in self.names:
            sources = [source for planned in self.plan.feeding(name) for source in planned.sources]
            if not sources:
                yield f"{name.short}  is recomputed"
                continue
            root = self.plan.project.root
            read = ", ".join(one.table.short if one.table else one.title(root) for one in sources)
            yield f"{name.short}  {self._removed(name)}, then {read} is read again from the beginning"
            yield from (f"{name.short}  {one.text}" for one in self.gone if one.dataset == name)
        for refresh in self.plan.refreshes:
            if refresh.flow.target not in self.names:
                changed = [table.short for table in inputs_of(refresh, self.plan) if table in self.names]
                if changed:
                    yield f"{refresh.flow.target.short}  is recomputed from {', '.join(changed)}"

    def _removed(self, name: TableName) -> str:
        if name not in self.sizes:
            return "the table does not exist yet"
        rows, size = self.sizes[name]
        count = "all rows" if rows is None else "its 1 row" if rows == 1 else f"all {rows:,} rows"
        quarantine = (
            ", its quarantine is emptied" if is_table(self.plan.project.storage.quarantine(name)) else ""
        )
        return f"one commit removes {count} ({size_text(size)}){quarantine}"


def plan_refresh(datasets: Sequence[str], plan: Plan, systems: Systems, read_table: ReadTable) -> RefreshPlan:
    """Find out what a full refresh would do; changes nothing.

    Args:
        datasets: What a user names.
        plan: The plan of the whole pipeline.
        systems: The systems of the sources, which report what they still hold.
        read_table: Reads a table's newest snapshot.

    Raises:
        DatasetUnknownError: The pipeline declares no such table.
        DownstreamStreamsError: A stream reads one of them, and is not among them.
    """
    names = check_datasets(datasets, plan)
    storage = plan.project.storage
    gone: list[UnrecoverableData] = []
    for planned in plan.flows:
        flow = planned.flow
        if flow.target not in names or not is_table(storage.table(flow.target)):
            continue
        try:
            surveyor = FlowSurveyor(
                planned=planned, settings=plan.project, systems=systems, read_table=read_table
            )
            # With this remedy, a checkpoint that cannot be read is skipped.
            survey = surveyor.survey(Remedies(new_checkpoint=frozenset([flow.name])))
            gone += _gone(flow.target, survey, storage.ledger(flow.target, flow.name))
        except HeadraceError as error:
            text = f"it is not known whether its sources still hold all records: {error.headline}"
            gone.append(UnrecoverableData(dataset=flow.target, text=text, count=None))
    for name in (name for name in names if is_table(storage.table(name))):
        declared = {planned.flow.name for planned in plan.flows if planned.flow.target == name}
        gone += [
            UnrecoverableData(
                dataset=name,
                text=f"the rows of flow {flow} cannot be read again: the flow is no longer declared",
                count=None,
            )
            for flow in sorted(set(read_table(storage.table(name)).checkpoints) - declared)
        ]
    sizes = {name: size for name in names if (size := _size(storage.table(name))) is not None}
    return RefreshPlan(plan=plan, names=names, sizes=sizes, gone=tuple(gone))


def _size(table: Location) -> tuple[int | None, int] | None:
    """Rows and bytes of a table; ``None`` if it does not exist or cannot be read."""
    if not is_table(table):
        return None
    try:
        recent = load_tail(table)
    except (OSError, ValueError):
        return None
    return recent.rows, recent.size_bytes


def _gone(dataset: TableName, survey: Survey, ledger: Location) -> Iterator[UnrecoverableData]:
    history = survey.facts.history
    names = [read.source.kind for reads in history.commits for read in reads]
    for name in dict.fromkeys(names):
        sources = [facts for facts in survey.sources if facts.source.kind == name]
        for one in kind_of(name).unrecoverable(history, sources, ledger):
            yield UnrecoverableData(dataset=dataset, text=one.text, count=one.count)


def downstream_streams(names: Sequence[TableName], plan: Plan) -> tuple[TableName, ...]:
    """The other streaming tables that read these as streams, directly or through other tables."""
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
    """The datasets that a user names, if they can be rebuilt.

    Raises:
        DatasetUnknownError: The pipeline declares no such table.
        DownstreamStreamsError: A streaming table that is not named reads one of them.
    """
    names = find_datasets(datasets, plan)
    left_out = downstream_streams(names, plan)
    if left_out:
        listed = " ".join(name.short for name in (*names, *left_out))
        raise DownstreamStreamsError(
            f"{', '.join(name.short for name in left_out)} would read the rebuilt rows a second time",
            facts=("a stream reads all rows that are added to its source table", "nothing was changed"),
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
    register_tables(plan, context.spark)
    tables: dict[TableName, OpenTableStage] = {}
    for stage in plan.stages:
        match stage:
            case OpenTableStage(table=table):
                tables[table.name] = stage
            case RunFlowStage() | RefreshViewStage():
                # A view is recomputed by the next run.
                pass
            case _:
                assert_never(stage)
    # What reads a table is emptied before it: after a crash in between, streams start at what is left.
    depths = {target_of(stage): depth for depth, level in enumerate(plan.levels) for stage in level}
    for name in sorted(set(names) & set(tables), key=depths.__getitem__, reverse=True):
        _clear(tables[name], plan, context)


def _clear(opening: OpenTableStage, plan: Plan, context: UpdateContext) -> None:
    storage, name = context.settings.storage, opening.table.name
    flows = plan.feeding(name)
    with contextlib.ExitStack() as held:
        for one in flows:
            lease = context.heart.acquire(storage.lease(name, one.flow.name), one.flow.name)
            held.callback(context.heart.release, lease)
        if not is_table(storage.table(name)):
            # Nothing to empty: without its table a checkpoint is worth nothing.
            storage.checkpoints(name).delete_folder()
            return
        open_table(opening, flows, storage, context.spark, emptied=True)
        layout = TableLayout(
            schema=layout_schema(opening.table, opening.schema),
            partition_cols=opening.table.partition_cols,
        )
        for number, planned in enumerate(flows):
            opener = make_opener(planned, plan, context)
            opener.start_over(layout=layout if number == 0 else None, last=number == len(flows) - 1)
        set_coordinates(opening, storage.table(name), context.spark)
        # After the table: if the process ends in between, rows of a fenced checkpoint are left, and ignored.
        quarantine_of(name, storage).clear(context.spark)
