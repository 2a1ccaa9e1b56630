"""Runs one update of a pipeline, triggered or continuous."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headrace.errors import HeadraceError
from headrace.model.event_forms import Emitter
from headrace.model.events import FlowFinished, UpdateFinished, UpdateStarted, ViewUpToDate
from headrace.model.names import TableName
from headrace.model.texts import duration_text, error_texts, html_table
from headrace.plan.stages import Plan, RefreshViewStage
from headrace.run.context import UpdateContext
from headrace.run.flows import UpdateFlows
from headrace.run.reporting import FlowResult
from headrace.run.runners import make_view
from headrace.run.schedule import Schedule
from headrace.run.tables import register_tables
from headrace.run.views import ViewResult


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of an update. `outcome`: ``completed``, ``stopped``, or ``failed`` if a flow or a view has
    failed."""

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

    def _repr_html_(self) -> str:
        rows: list[tuple[Any, ...]] = [
            (one.flow, one.outcome, one.rows, one.batches, duration_text(one.duration_s))
            for one in self.flows
        ]
        rows += [(one.dataset.short, one.outcome, one.rows, None, None) for one in self.views]
        title = f"{self.outcome} in {duration_text(self.duration_s)}"
        return html_table(
            title, ("flow", "outcome", "rows", "batches", "time"), rows, error_texts(self.errors)
        )

    @property
    def errors(self) -> tuple[HeadraceError, ...]:
        results: list[FlowResult | ViewResult] = [*self.flows, *self.views]
        return tuple(one.error for one in results if one.error is not None)


def execute(plan: Plan, context: UpdateContext) -> RunResult:
    started = time.monotonic()
    views = [make_view(stage, plan, context) for stage in plan.stages if isinstance(stage, RefreshViewStage)]
    with UpdateFlows(plan, context) as flows, Schedule(flows, views, context) as schedule:
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
        update=context.update, outcome=outcome, flows=flow_results, views=view_results, duration_s=duration_s
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
