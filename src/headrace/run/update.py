"""One update of a pipeline: its stages, executed once through or for as long as nobody stops it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.errors import HeadraceError, SetupError
from headrace.model.events import (
    Emitter,
    FlowFinished,
    UpdateFinished,
    UpdateStarted,
    ViewUpToDate,
)
from headrace.model.names import TableName
from headrace.plan.stages import OpenTableStage, Plan, RefreshViewStage, RunFlowStage, Stage
from headrace.run.context import UpdateContext
from headrace.run.flow import FlowRunner
from headrace.run.gate import gates
from headrace.run.supervise import FlowResult, supervise
from headrace.run.tables import open_table, register_tables
from headrace.run.upstream import find_blocked
from headrace.run.views import ViewResult, ViewRunner, inputs_of

_POLL_S = 0.2
_FIRST_VIEWS_S = 5.0
"""Seconds from the start of the flows to the first look at the views."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What became of an update.

    Args:
        outcome: ``completed``, ``stopped`` by whoever asked for it, or ``failed`` where a flow or a
            view has.
        flows: Each flow's result.
        views: Each materialized view's.
        log_file: Its log; ``None`` where it found nothing to do.
    """

    update: str
    outcome: Literal["completed", "failed", "stopped"]
    flows: tuple[FlowResult, ...]
    views: tuple[ViewResult, ...]
    duration_s: float
    log_file: Path | None = None

    def __repr__(self) -> str:
        parts = [f"{one.flow} {one.outcome} (+{one.rows:,} rows)" for one in self.flows]
        parts += [f"{one.dataset} {one.outcome}" for one in self.views]
        return f"<RunResult {self.outcome} in {self.duration_s:.1f} s: {', '.join(parts)}>"

    @property
    def errors(self) -> tuple[HeadraceError, ...]:
        results: list[FlowResult | ViewResult] = [*self.flows, *self.views]
        return tuple(one.error for one in results if one.error is not None)


def execute(plan: Plan, context: UpdateContext) -> RunResult:
    """Execute a plan's stages.

    Raises:
        SetupError: The storage cannot be written; what a flow or view meets is in the result.
    """
    started = time.monotonic()
    stages = plan.stages
    flows = [stage.planned for stage in stages if isinstance(stage, RunFlowStage)]
    views = [stage.planned for stage in stages if isinstance(stage, RefreshViewStage)]
    context.emit(
        UpdateStarted(
            update=context.update,
            pipeline=context.settings.name,
            mode=context.mode,
            flows=tuple(planned.flow.name for planned in flows),
            views=tuple(planned.flow.target for planned in views),
        )
    )
    register_tables(plan, context.spark)
    blocked = _open_tables(plan, context)
    if context.mode == "triggered":
        flow_results, view_results = _run_once(plan, context, blocked)
    else:
        flow_results, view_results = _run_continuously(plan, context, blocked)
    results: list[FlowResult | ViewResult] = [*flow_results, *view_results]
    failed = any(one.outcome == "failed" for one in results)
    outcome: Literal["completed", "failed", "stopped"] = "failed" if failed else "completed"
    if context.stop.requested and not failed:
        outcome = "stopped"
    duration_s = time.monotonic() - started
    context.emit(UpdateFinished(update=context.update, outcome=outcome, duration_s=duration_s))
    return RunResult(
        update=context.update,
        outcome=outcome,
        flows=tuple(flow_results),
        views=tuple(view_results),
        duration_s=duration_s,
    )


def report_up_to_date(
    flows: Sequence[tuple[str, TableName]],
    views: Sequence[TableName],
    *,
    pipeline: str,
    update: str,
    emit: Emitter,
    started: float,
) -> RunResult:
    """The events and the result of a run that finds nothing to do.

    Args:
        started: When the run began, by the monotonic clock.
    """
    emit(
        UpdateStarted(
            update=update,
            pipeline=pipeline,
            mode="triggered",
            flows=tuple(flow for flow, _ in flows),
            views=tuple(views),
        )
    )
    for flow, dataset in flows:
        emit(FlowFinished(update=update, flow=flow, dataset=dataset, outcome="up to date", rows=0, batches=0))
    for view in views:
        emit(ViewUpToDate(update=update, dataset=view))
    duration_s = time.monotonic() - started
    emit(UpdateFinished(update=update, outcome="completed", duration_s=duration_s))
    return RunResult(
        update=update,
        outcome="completed",
        flows=tuple(FlowResult(flow=f, outcome="up to date", rows=0, batches=0) for f, _ in flows),
        views=tuple(ViewResult(dataset=view, outcome="up to date") for view in views),
        duration_s=duration_s,
    )


def _open_tables(plan: Plan, context: UpdateContext) -> dict[str, Exception]:
    """Open the tables.

    Returns:
        Why some flows and views cannot be started, by name: those fail, and the others go on.
    """
    stages = plan.stages
    flows = [stage.planned for stage in stages if isinstance(stage, RunFlowStage)]
    refused: dict[TableName, Exception] = {}
    blocked = find_blocked(plan, refused)
    for stage in stages:
        if not isinstance(stage, OpenTableStage):
            continue
        name = stage.table.name
        feeding = [one for one in flows if one.flow.target == name]
        if feeding and all(one.flow.name in blocked for one in feeding):
            # Nobody will write it, and so nothing is changed in it.
            continue
        try:
            open_table(stage, feeding, context.settings.storage, context.spark)
        except SetupError:
            raise
        except Exception as error:
            refused[name] = error
            blocked = find_blocked(plan, refused)
    return blocked


def _run_once(
    plan: Plan, context: UpdateContext, blocked: Mapping[str, Exception]
) -> tuple[list[FlowResult], list[ViewResult]]:
    """Level by level: everything available now, in dependency order."""
    flow_results: list[FlowResult] = []
    view_results: list[ViewResult] = []
    for level in plan.levels:
        runners = _flow_runners(level, context)
        if runners:
            with _pool(len(runners), context) as pool:
                flow_results += pool.map(lambda runner: _supervise(runner, context, blocked), runners)
        for stage in level:
            if isinstance(stage, RefreshViewStage) and not context.stop.requested:
                view_results.append(_view_runner(stage, plan, context, blocked).refresh())
    return flow_results, view_results


def _run_continuously(
    plan: Plan, context: UpdateContext, blocked: Mapping[str, Exception]
) -> tuple[list[FlowResult], list[ViewResult]]:
    """All flows at once; views follow their inputs, at most once per interval."""
    stages = plan.stages
    runners = _flow_runners(stages, context)
    views = [_view_runner(s, plan, context, blocked) for s in stages if isinstance(s, RefreshViewStage)]
    able = [n for n, view in enumerate(views) if view.blocked_by is None]
    latest = {n: view.refresh() for n, view in enumerate(views) if n not in able}
    with _pool(max(len(runners), 1), context) as pool:
        futures = [pool.submit(_supervise, runner, context, blocked) for runner in runners]
        # The flows' first batches are not to wait for a view that has nothing to show yet.
        started = time.monotonic()
        due = {n: started + max(_FIRST_VIEWS_S, views[n].interval_s) for n in able}
        while not context.stop.wait(_POLL_S):
            if futures and all(future.done() for future in futures):
                break
            if late := [number for number, at in due.items() if time.monotonic() >= at]:
                _refresh_moved(late, views, latest, context)
                due |= {number: time.monotonic() + views[number].interval_s for number in late}
        results = [future.result() for future in futures]
    # Flows that end by themselves have written since the last look.
    _refresh_moved(able, views, latest, context)
    return results, list(latest.values())


@contextmanager
def _pool(threads: int, context: UpdateContext) -> Iterator[ThreadPoolExecutor]:
    """Threads for flows. Whatever breaks off the caller, such as Ctrl-C, asks the flows to stop, since
    the pool waits for them."""
    with ThreadPoolExecutor(threads, thread_name_prefix="headrace-flow") as pool:
        try:
            yield pool
        except BaseException:
            context.stop.request()
            raise


def _flow_runners(stages: Iterable[Stage], context: UpdateContext) -> list[FlowRunner]:
    """Runners for flows that are started together."""
    flows = [stage.planned for stage in stages if isinstance(stage, RunFlowStage)]
    by_table = gates((planned.flow.target, planned.flow.name) for planned in flows)
    return [FlowRunner(planned, context, by_table[planned.flow.target]) for planned in flows]


def _supervise(runner: FlowRunner, context: UpdateContext, blocked: Mapping[str, Exception]) -> FlowResult:
    flow = runner.planned.flow
    try:
        return supervise(runner, context, blocked.get(flow.name))
    finally:
        runner.gate.leave(flow.name)


def _refresh_moved(
    numbers: Iterable[int],
    views: Sequence[ViewRunner],
    latest: dict[int, ViewResult],
    context: UpdateContext,
) -> None:
    for number in numbers:
        if context.stop.requested:
            return
        view = views[number]
        failed = number in latest and latest[number].outcome == "failed"
        if view.ready() and (failed or view.moved()):
            latest[number] = view.refresh()


def _view_runner(
    stage: RefreshViewStage, plan: Plan, context: UpdateContext, blocked: Mapping[str, Exception]
) -> ViewRunner:
    inputs = inputs_of(stage.planned, plan)
    blocked_by = blocked.get(stage.planned.flow.name)
    return ViewRunner(stage, inputs, context, blocked_by)
