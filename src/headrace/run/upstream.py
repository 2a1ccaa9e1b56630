"""Tables that a query reads and that are not what it was planned with: what reads them is not started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.errors import HeadraceError, SourceLocation, UpstreamUnfitError, text_of
from headrace.model.declarations import MaterializedView, StreamingTable
from headrace.model.names import TableName
from headrace.plan import columns
from headrace.plan.stages import OpenTableStage, Plan, PlannedFlow, RefreshViewStage, RunFlowStage
from headrace.plan.stored import load_stored
from headrace.run.views import inputs_of


@dataclass(frozen=True, kw_only=True)
class _Unfit:
    """A table that no query should read as it is.

    Args:
        why: In words that follow its name.
        facts: What is known beyond that.
        remedy: What makes it fit.
    """

    why: str
    facts: tuple[str, ...]
    remedy: str


def find_hindered(plan: Plan, refused: Mapping[TableName, Exception]) -> dict[str, Exception]:
    """Why some flows and views cannot be started, by the name of the flow or of the view.

    Args:
        plan: What is to be run.
        refused: Why tables of this plan could not be opened.
    """
    unfit = _find_unfit(plan, refused)
    found: dict[str, Exception] = {}
    for stage in (stage for level in plan.levels for stage in level):
        error: Exception | None = None
        match stage:
            case RunFlowStage(planned=planned):
                name, where = planned.flow.name, planned.flow.location
                error = refused.get(planned.flow.target)
                error = error or _error(f"flow {name}", where, _reads_of(planned), unfit)
            case RefreshViewStage(planned=view):
                name = str(view.view.name)
                error = _error(name, view.view.location, inputs_of(view, plan), unfit)
        if error is not None:
            found[name] = error
    return found


def _find_unfit(plan: Plan, refused: Mapping[TableName, Exception]) -> dict[TableName, _Unfit]:
    """The tables of the pipeline that differ from what the queries of this plan were resolved against."""
    unfit = {name: _refused(name, error) for name, error in refused.items()}
    stages = [stage for level in plan.levels for stage in level]
    opened = {stage.table.name for stage in stages if isinstance(stage, OpenTableStage)}
    opened |= {stage.planned.view.name for stage in stages if isinstance(stage, RefreshViewStage)}
    for dataset in plan.datasets:
        if not isinstance(dataset, StreamingTable | MaterializedView) or dataset.name in opened:
            continue
        stored, declared = load_stored(plan.project.storage, dataset.name), plan.schemas.get(dataset.name)
        if stored is not None and declared is not None:
            found = _outdated(dataset, declared, stored.schema)
            unfit |= {} if found is None else {dataset.name: found}
    return unfit


def _reads_of(planned: PlannedFlow) -> tuple[TableName, ...]:
    streamed = (source.table for source in planned.sources if source.table is not None)
    return tuple(dict.fromkeys([*streamed, *(read.table for read in planned.reads)]))


def _error(
    label: str, location: SourceLocation, reads: Iterable[TableName], unfit: Mapping[TableName, _Unfit]
) -> UpstreamUnfitError | None:
    name = next((name for name in reads if name in unfit), None)
    if name is None:
        return None
    found = unfit[name]
    return UpstreamUnfitError(
        f"{label} reads {name}, which {found.why}",
        location=location,
        facts=(*found.facts, "nothing was read or written"),
        remedies=(found.remedy,),
        params={"table": str(name)},
    )


def _refused(name: TableName, error: Exception) -> _Unfit:
    text = f"{type(error).__name__}: {text_of(error)}"
    if isinstance(error, HeadraceError):
        text = f"[{error.code}] {error.summary}"
    return _Unfit(
        why="this run could not open",
        facts=(text.splitlines()[0],),
        remedy=f"do what the error of {name} says, and run again:   headrace run",
    )


def _outdated(
    dataset: StreamingTable | MaterializedView, declared: columns.Schema, stored: columns.Schema
) -> _Unfit | None:
    name = dataset.name
    changed = [one for one in columns.conflicts(declared, stored) if one[1:] not in columns.WIDENED]
    added = columns.missing(declared, stored)
    if not changed and not added:
        return None
    facts = [f"{column} is {was} in the table, and declared as {now}" for column, now, was in changed]
    facts += [f"{column} is declared, and the table has no such column" for column in added]
    rebuilt = changed and isinstance(dataset, StreamingTable)
    return _Unfit(
        why="is not what its declaration says now, and was left out of this run",
        facts=tuple(facts),
        remedy=f"bring it up to date:   headrace {'full-refresh' if rebuilt else 'run'} {name}",
    )
