"""Runs one update of a pipeline, triggered or continuous."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

from headrace.errors import HeadraceError
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
from headrace.run.flow_reports import FlowResult
from headrace.run.flows import UpdateFlows
from headrace.run.readiness import Feed, Skip, Verdict, is_written, judge_inputs
from headrace.run.runners import make_view
from headrace.run.stop import StopSignal
from headrace.run.tables import register_tables
from headrace.run.upstream import reads_of
from headrace.run.views import ViewResult, ViewRunner
from headrace.storage.layout import Storage

_POLL_S = 0.2
_FIRST_VIEWS_S = 5.0
"""Seconds from the start of the flows to the first refresh of the views."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of an update.

    Args:
        outcome: ``completed``, ``stopped``, or ``failed`` if a flow or a view has failed.
    """

    update: str
    outcome: Literal["completed", "failed", "stopped"]
    flows: tuple[FlowResult, ...]
    views: tuple[ViewResult, ...]
    duration_s: float
    log_file: Path | None = None  # its log; ``None`` if it had nothing to do

    def __repr__(self) -> str:
        parts = [f"{one.flow} {one.outcome} (+{one.rows:,} rows)" for one in self.flows]
        parts += [f"{one.dataset.short} {one.outcome}" for one in self.views]
        return f"<RunResult {self.outcome} in {self.duration_s:.1f} s: {', '.join(parts)}>"

    @property
    def errors(self) -> tuple[HeadraceError, ...]:
        results: list[FlowResult | ViewResult] = [*self.flows, *self.views]
        return tuple(one.error for one in results if one.error is not None)


def execute(plan: Plan, context: UpdateContext) -> RunResult:
    """Execute a plan's stages.

    Raises:
        SetupError: The storage cannot be written. The errors of flows and views are in the result.
    """
    started = time.monotonic()
    with UpdateFlows(plan, context) as flows:
        views = [make_view(stage, plan, context) for stage in _by_kind(plan.stages)[1]]
        context.emit(
            UpdateStarted(
                update=context.update,
                pipeline=context.settings.name,
                mode=context.mode,
                flows=tuple(flows.planned),
                views=tuple(view.view.name for view in views),
            )
        )
        register_tables(plan, context.spark)
        schedule = _Schedule(flows, views, context.stop, context.settings.storage)
        schedule.block_views(flows.open())
        if context.mode == "triggered":
            schedule.run_once(plan)
        else:
            schedule.run_continuously()
    if context.mode == "triggered" and not context.stop.requested:
        context.maintenance.finish()
    flow_results = flows.results
    view_results = tuple(view.result for view in views if view.result is not None)
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
        flows=flow_results,
        views=view_results,
        duration_s=duration_s,
    )


def _by_kind(stages: Iterable[Stage]) -> tuple[list[RunFlowStage], list[RefreshViewStage]]:
    """The stages that start flows, and those that refresh views."""
    flows: list[RunFlowStage] = []
    views: list[RefreshViewStage] = []
    for stage in stages:
        match stage:
            case RunFlowStage():
                flows.append(stage)
            case RefreshViewStage():
                views.append(stage)
            case OpenTableStage():
                # Tables are opened before anything is started.
                pass
            case _:
                assert_never(stage)
    return flows, views


class _Schedule:
    """Decides when flows are started and views are refreshed."""

    def __init__(
        self, flows: UpdateFlows, views: Sequence[ViewRunner], stop: StopSignal, storage: Storage
    ) -> None:
        self._flows = flows
        self._views = {view.view.name: view for view in views}
        self._stop = stop
        self._storage = storage
        # The names of the failed flows and views because of which another one was skipped.
        self._causes: dict[str, tuple[str, ...]] = {}
        self._due: dict[TableName, float] = {}

    def block_views(self, blocked: Mapping[str, Exception]) -> None:
        """Report the views that cannot be refreshed as failed."""
        for name, view in self._views.items():
            if (error := blocked.get(str(name))) is not None:
                view.fail(error)

    def run_once(self, plan: Plan) -> None:
        """Process what the sources hold now, level by level."""
        for level in plan.levels:
            flows, views = _by_kind(level)
            self._flows.end_unstarted(self._start_ready(stage.planned.flow.name for stage in flows))
            self._flows.wait()
            for stage in views:
                if self._stop.requested:
                    break
                # A view that cannot be refreshed has its result already.
                if (view := self._views[stage.view.name]).result is None:
                    self._refresh(view)

    def run_continuously(self) -> None:
        """Run all flows until they end or are stopped; refresh views when their inputs have changed."""
        # The flows' first batches must not wait for views that have nothing to show yet.
        now = time.monotonic()
        self._due = {
            n: now + max(_FIRST_VIEWS_S, v.interval_s) for n, v in self._views.items() if not v.result
        }
        waiting = self._start_ready(self._flows.planned)
        while not self._stop.wait(_POLL_S):
            waiting = self._start_ready(waiting)
            self._refresh_moved(name for name, at in self._due.items() if time.monotonic() >= at)
            if self._flows.planned and not self._flows.is_running:
                # Flows that end by themselves have written since the last look.
                self._refresh_moved(self._due)
                waiting = self._start_ready(waiting)
                if not self._flows.is_running:
                    break
        self._flows.end_unstarted(waiting)
        self._flows.wait()

    def _start_ready(self, names: Iterable[str]) -> list[str]:
        """Start the flows whose inputs are ready, skip those whose inputs failed, and return the others."""
        ready: list[str] = []
        waiting: list[str] = []
        for name in [name for name in names if self._flows.result(name) is None]:
            planned = self._flows.planned[name]
            tables = [table for table in reads_of(planned) if table != planned.flow.target]
            verdict: Verdict = "wait" if self._stop.requested else self._judge(tables)
            if isinstance(verdict, Skip):
                self._causes[name] = verdict.failed
                self._flows.skip(name, verdict.reason)
            else:
                (ready if verdict == "ready" else waiting).append(name)
        self._flows.start(*ready)
        return waiting

    def _refresh_moved(self, names: Iterable[TableName]) -> None:
        """Refresh the views whose inputs have changed since their last refresh."""
        for name in list(names):
            view = self._views[name]
            # A view that waits for its inputs stays due until they are written.
            if not self._stop.requested and self._refresh(view, always=False):
                self._due[name] = time.monotonic() + view.interval_s

    def _refresh(self, view: ViewRunner, *, always: bool = True) -> bool:
        """Refresh or skip a view; false if it must wait for its inputs."""
        verdict = self._judge(view.inputs)
        if isinstance(verdict, Skip):
            self._causes[str(view.view.name)] = verdict.failed
            view.skip(verdict.reason)
        elif verdict == "ready" and (always or view.has_moved()):
            view.refresh()
        return verdict != "wait"

    def _judge(self, tables: Iterable[TableName]) -> Verdict:
        return judge_inputs(tables, self._feeds, lambda table: is_written(self._storage.table(table)))

    def _feeds(self, table: TableName) -> list[Feed]:
        """The flows and the view of this update that write a table."""
        if (view := self._views.get(table)) is not None:
            return [Feed(f"view {table}", view.state, self._causes.get(str(table), ()))]
        names = self._flows.feeding.get(table, ())
        return [Feed(f"flow {one}", self._flows.state(one), self._causes.get(one, ())) for one in names]


def report_up_to_date(
    flows: Sequence[tuple[str, TableName]],
    views: Sequence[TableName],
    *,
    pipeline: str,
    update: str,
    emit: Emitter,
    started: float,
) -> RunResult:
    """The events and the result of a run that finds nothing to do."""
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
