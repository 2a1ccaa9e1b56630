"""Runs one update of a pipeline, and decides when its flows start and its views are refreshed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headrace.errors import HeadraceError
from headrace.model.event_forms import Emitter
from headrace.model.events import FlowFinished, UpdateFinished, UpdateStarted, ViewUpToDate
from headrace.model.names import TableName
from headrace.model.texts import duration_text, error_texts, html_table
from headrace.plan.stages import Plan, RefreshViewStage, RunFlowStage
from headrace.run.attempts import TRIGGERED_ATTEMPTS, Looks
from headrace.run.context import UpdateContext
from headrace.run.flows import UpdateFlows
from headrace.run.readiness import Blocked, Feed, Skip, Verdict, is_written, judge_inputs, reads_of
from headrace.run.reporting import FlowResult
from headrace.run.runners import make_view
from headrace.run.stop import StopSignal
from headrace.run.supervise import Supervisor
from headrace.run.tables import register_tables
from headrace.run.views import ViewResult, ViewRunner
from headrace.runtime.defaults import available_cores

_POLL_S = 0.2
_FIRST_VIEWS_S = 5.0
"""Seconds from the start of the flows to the first refresh of the views."""


class Schedule:
    """Starts the flows of an update, and refreshes its views. A view is refreshed after the views that it
    reads. Each flow and each view has its own thread."""

    def __init__(self, flows: UpdateFlows, views: Sequence[ViewRunner], context: UpdateContext) -> None:
        self._flows = flows
        self._views = {view.view.name: view for view in views}
        self._stop = stop = context.stop
        self._storage = context.settings.storage
        limit = TRIGGERED_ATTEMPTS if context.mode == "triggered" else None
        self._looks = Looks(context.update, context.emit, limit=limit)
        self._refreshes = Supervisor("view", self._prepare, stop)
        self._started = 0
        self._names = {str(name): name for name in self._views}
        # The names of the failed flows and views because of which another one was skipped.
        self._causes: dict[str, tuple[str, ...]] = {}
        self._due: dict[TableName, float] = {}
        # The views that have changed inputs, and wait for the refreshes of other views.
        self._waiting: set[TableName] = set()

    def __enter__(self) -> Schedule:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self._stop.request()
        self._refreshes.__exit__(kind, error, trace)

    def block_views(self, blocked: Mapping[str, Blocked]) -> None:
        self._causes |= {name: one.failed for name, one in blocked.items() if isinstance(one, Skip)}
        for name, view in self._views.items():
            match blocked.get(str(name)):
                case Skip(reason=reason):
                    view.skip(reason)
                case Exception() as error:
                    view.fail(error)

    def run_once(self, plan: Plan) -> None:
        """Process what the sources hold now, level by level."""
        for level in plan.levels:
            flows = [stage.planned.flow.name for stage in level if isinstance(stage, RunFlowStage)]
            views = [stage.view.name for stage in level if isinstance(stage, RefreshViewStage)]
            waiting = self._start_ready(flows)
            while any(self._looks.repeats(_inputs_of(name)) for name in waiting):
                if self._stop.wait(_POLL_S):
                    break
                waiting = self._start_ready(waiting)
            self._flows.end_unstarted(waiting)
            self._flows.wait()
            # A view that cannot be refreshed has its result already.
            self._refresh_all([name for name in views if self._views[name].result is None])
            if self._stop.requested:
                break

    def run_continuously(self) -> None:
        """Run all flows until they end or are stopped; refresh views when their inputs have changed."""
        # The flows' first batches must not wait for views that have nothing to show yet.
        now = time.monotonic()
        self._due = {
            n: now + max(_FIRST_VIEWS_S, v.interval_s) for n, v in self._views.items() if not v.result
        }
        waiting = self._start_ready(self._flows.planned)
        # Views whose last refresh may be older than the last commit of a flow that has ended by itself.
        last: set[TableName] | None = None
        while not self._stop.wait(_POLL_S):
            waiting = self._start_ready(waiting)
            if not self._flows.planned or self._flows.is_running:
                last = None
                self._refresh_outdated(n for n, at in self._due.items() if time.monotonic() >= at)
                continue
            last = set(self._due) if last is None else last
            if self._refresh_last(last):
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
            try:
                verdict: Verdict | None = "wait" if self._stop.requested else self._judge(name, tables)
            except HeadraceError as error:
                self._flows.fail(name, error)
                continue
            if isinstance(verdict, Skip):
                self._causes[name] = verdict.failed
                self._flows.skip(name, verdict.reason)
            else:
                (ready if verdict == "ready" else waiting).append(name)
        self._flows.start(*ready)
        return waiting

    def _refresh_all(self, names: list[TableName]) -> None:
        while names and not self._stop.requested:
            for name in list(names):
                if len(self._refreshes.running) >= most_refreshes():
                    break
                # A view whose inputs are not known yet is looked at again.
                if self._decide(self._views[name]) is not None or not self._looks.repeats(_inputs_of(name)):
                    names.remove(name)
            if len(self._refreshes.running) >= most_refreshes():
                self._refreshes.wait(most_refreshes() - 1, _POLL_S)
            elif names:
                self._stop.wait(_POLL_S)
        while self._refreshes.running and not self._stop.requested:
            self._refreshes.wait(seconds=_POLL_S)

    def _refresh_last(self, names: set[TableName]) -> bool:
        """Refresh views after the last batch of all flows, each once; return whether all are done."""
        is_idle, started = not self._refreshes.running, self._started
        names -= self._refresh_outdated(names)
        return is_idle and started == self._started and not self._waiting and not self._repeats_look(names)

    def _refresh_outdated(self, names: Iterable[TableName]) -> set[TableName]:
        """Start the refreshes of views whose inputs have changed since their last one. Returns the views that
        were started, or need no refresh."""
        before, self._waiting = self._waiting, set()
        running = {self._names[one] for one in self._refreshes.running}
        done: set[TableName] = set()
        # In the order of the plan: a view comes after the views that it reads.
        chosen = set(names)
        for name, view in self._views.items():
            if name not in chosen or name in running or self._stop.requested:
                continue
            decided = self._decide(view, outdated_only=True, start=False)
            is_blocked = any(one in running or one in self._waiting for one in view.inputs)
            if decided is None or (decided == "unchanged" and is_blocked):
                # A view that waits for its inputs stays due until they are written.
                continue
            if decided == "start":
                if any(name in self._views[one].inputs for one in before):
                    # Views that wait for its refresh before are refreshed first.
                    continue
                if is_blocked or len(running) >= most_refreshes():
                    self._waiting.add(name)
                    continue
                running.add(name)
                self._refreshes.start(str(name))
            done.add(name)
            self._due[name] = time.monotonic() + view.interval_s
        return done

    def _decide(self, view: ViewRunner, *, outdated_only: bool = False, start: bool = True) -> str | None:
        """Skip or start the refresh of a view. Returns ``start``, ``unchanged`` or ``skipped``; ``None`` if
        that is not known yet."""
        name = view.view.name
        try:
            verdict = self._judge(str(name), view.inputs)
            changed = True
            if verdict == "ready" and outdated_only:
                found = self._looks.ask(f"the versions that {name.short} reads", view.inputs_changed)
                if found is None:
                    return None
                changed = found
        except HeadraceError as error:
            view.fail(error)
            return "skipped"
        if verdict is None or verdict == "wait":
            return None
        if isinstance(verdict, Skip):
            self._causes[str(name)] = verdict.failed
            view.skip(verdict.reason)
            return "skipped"
        if not changed:
            return "unchanged"
        if start:
            self._refreshes.start(str(name))
        return "start"

    def _prepare(self, name: str) -> Callable[[StopSignal], None]:
        view = self._views[self._names[name]]
        self._started += 1

        def refresh(stop: StopSignal) -> None:
            view.refresh(stop)
            self._due[view.view.name] = time.monotonic() + view.interval_s

        return refresh

    def _judge(self, name: str, tables: Iterable[TableName]) -> Verdict | None:
        """Whether a flow or view may start; ``None`` if the storage does not answer."""

        def judge() -> Verdict:
            return judge_inputs(tables, self._feeds, lambda table: is_written(self._storage.table(table)))

        return self._looks.ask(_inputs_of(name), judge)

    def _repeats_look(self, names: Iterable[TableName]) -> bool:
        """Whether a look at the inputs of one of these views has failed, and is repeated."""
        looks = (what for n in names for what in (_inputs_of(n), f"the versions that {n.short} reads"))
        return any(self._looks.repeats(what) for what in looks)

    def _feeds(self, table: TableName) -> list[Feed]:
        """The flows and the view of this update that write a table."""
        if (view := self._views.get(table)) is not None:
            return [Feed(f"view {table}", view.state, self._causes.get(str(table), ()))]
        names = self._flows.feeding.get(table, ())
        return [Feed(f"flow {one}", self._flows.state(one), self._causes.get(one, ())) for one in names]


def most_refreshes() -> int:
    """The number of views that are refreshed at the same time; they share Spark's memory."""
    return max(2, min(4, available_cores() // 2))


def _inputs_of(name: str | TableName) -> str:
    """The name of a look at what a flow or view reads."""
    return f"the tables that {name} reads"


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
