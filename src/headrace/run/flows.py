"""The flows of an update: leased and opened together, then started and stopped one by one."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from headrace.errors import NOT_COMMITTED, FlowFailedError, HeadraceError, SetupError, SinkUnavailableError
from headrace.model.names import TableName
from headrace.model.remedies import Remedies
from headrace.plan.stages import OpenTableStage, Plan, PlannedFlow, RunFlowStage
from headrace.run.attempts import TRIGGERED_ATTEMPTS, Looks, run_attempts
from headrace.run.context import UpdateContext
from headrace.run.flow import FlowRunner, OpeningGate
from headrace.run.readiness import Blocked, FeedState, Skip, find_blocked
from headrace.run.reporting import FlowReports, FlowResult
from headrace.run.runners import make_flow
from headrace.run.stop import StopSignal
from headrace.run.supervise import Supervisor
from headrace.run.tables import open_table
from headrace.state.lease import Lease

_LOG = logging.getLogger(__name__)
_RunFlow = Callable[[StopSignal], FlowResult]


class UpdateFlows:
    def __init__(self, plan: Plan, context: UpdateContext) -> None:
        self.planned, self._openings = _stages_by_name(plan)
        self.feeding: dict[TableName, list[str]] = {}
        for name, planned in self.planned.items():
            self.feeding.setdefault(planned.flow.target, []).append(name)
        self._plan = plan
        self._context = context
        self._failures = context.failures()
        self._reports = FlowReports(context.update, context.emit)
        self._supervisor: Supervisor[FlowResult] = Supervisor("flow", self._prepare, context.stop)
        self._gates: dict[TableName, OpeningGate] = defaultdict(OpeningGate)
        self._runners: dict[str, FlowRunner] = {}
        self._leases: dict[str, Lease] = {}
        limit = TRIGGERED_ATTEMPTS if context.mode == "triggered" else None
        self._looks = Looks(context.update, context.emit, limit=limit)
        self._not_started: dict[str, FlowResult] = {}
        self._planning = threading.Lock()
        self._changes = 0
        """The number of times that a table got other columns than its flow's plan has."""
        self._changed: dict[TableName, int] = {}
        """The number of the last such change of each table."""
        self._away: dict[TableName, OpenTableStage] = {}
        """The sinks that are not opened yet, since their systems have not answered."""
        self._planned_at: dict[str, int] = {}
        """The number of changes when a flow was planned."""

    def __enter__(self) -> UpdateFlows:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._supervisor.__exit__(kind, error, trace)
        for name in list(self._leases):
            self._release(name)

    def open(self) -> Mapping[str, Blocked]:
        """Take the leases, then create and alter the tables. Report flows that cannot be started. Returns why
        flows and views cannot be started, by name."""
        blocked = self._open_tables(self._take_leases())
        for name, planned in self.planned.items():
            match blocked.get(name):
                case Skip(reason=reason):
                    self.skip(name, reason)
                case Exception() as error:
                    self.fail(name, self._failures.as_error(error, planned.flow))
        return blocked

    def start(self, *names: str) -> None:
        """Start flows together, also flows that have ended; running flows are not changed."""
        for name in names:
            self._not_started.pop(name, None)
        self._supervisor.start(*names)

    def stop(self, name: str) -> None:
        """Ask a flow to stop after its batch; returns at once."""
        self._supervisor.stop(name)

    def skip(self, name: str, reason: str) -> None:
        self._release(name)
        self._not_started[name] = self._reports.skipped(self.planned[name], reason)

    def fail(self, name: str, error: HeadraceError) -> None:
        self._release(name)
        self._not_started[name] = self._reports.failed(self.planned[name], error)

    def end_unstarted(self, names: Iterable[str]) -> None:
        """Report flows that were never started as stopped."""
        for name in names:
            self._release(name)
            self._not_started[name] = self._reports.finished(self.planned[name], "stopped")

    @property
    def is_running(self) -> bool:
        return bool(self._supervisor.running)

    def wait(self) -> None:
        self._supervisor.wait()

    def result(self, name: str) -> FlowResult | None:
        """The last result of a flow; ``None`` while it is running, and before its first start."""
        return self._not_started.get(name) or self._supervisor.result(name)

    @property
    def results(self) -> tuple[FlowResult, ...]:
        return tuple(result for name in self.planned if (result := self.result(name)) is not None)

    def state(self, name: str) -> FeedState:
        result = self.result(name)
        if result is None:
            return self._runners[name].state if name in self._runners else "pending"
        match result.outcome:
            case "failed" | "skipped":
                return result.outcome
            case "stopped":
                return "pending"
            case _:
                return "working"

    def _take_leases(self) -> dict[str, Exception]:
        """Take the leases of all flows, before tables are created; either all leases of a table or none.
        Returns the errors of flows without a lease, by name."""
        refused: dict[str, Exception] = {}
        for names in self.feeding.values():
            try:
                for name in names:
                    self._looks.repeat(
                        f"the lease of flow {name}",
                        partial(self._acquire, name),
                        partial(self._failures.as_error, declared=self.planned[name].flow),
                        self._context.stop,
                    )
            except Exception as error:
                for name in names:
                    self._release(name)
                refused |= dict.fromkeys(names, error)
        return refused

    def _open_tables(self, refused: Mapping[str, Exception]) -> Mapping[str, Blocked]:
        storage = self._context.settings.storage
        unopened: dict[TableName, Exception] = {}
        blocked = find_blocked(self._plan, unopened, refused)
        for table, stage in self._openings.items():
            names = self.feeding.get(table, [])
            if names and all(name in blocked for name in names):
                # No flow will write the table, so it stays as it is.
                continue
            try:
                open_table(stage, [self.planned[name] for name in names], storage, self._context.spark)
            except SetupError:
                raise
            except SinkUnavailableError as error:
                # Its flows open it as soon as its system answers; the others need not wait.
                _LOG.warning("%s", error.headline)
                self._away[table] = stage
            except Exception as error:
                unopened[table] = error
                blocked = find_blocked(self._plan, unopened, refused)
        return blocked

    def _acquire(self, name: str) -> Lease:
        flow, context = self.planned[name].flow, self._context
        if name not in self._leases:
            lease = context.settings.storage.lease(flow.target, flow.name)
            self._leases[name] = context.heart.acquire(lease, name, flow.location)
        return self._leases[name]

    def _begin(self, name: str) -> Lease:
        """The lease of a flow, for an attempt to run it; opens its sink if that was not possible before."""
        lease, table = self._acquire(name), self.planned[name].flow.target
        if (stage := self._away.get(table)) is not None:
            flows = [self.planned[one] for one in self.feeding[table]]
            open_table(stage, flows, self._context.settings.storage, self._context.spark)
            self._away.pop(table, None)
        return lease

    def _release(self, name: str) -> None:
        """Release a flow's lease, if it is held; the heart releases later what cannot be released now."""
        if (lease := self._leases.pop(name, None)) is not None:
            self._context.heart.release(lease)

    def _prepare(self, name: str) -> _RunFlow:
        planned = self.planned[name]
        gate = self._gates[planned.flow.target]
        gate.expect(name)
        if name not in self._runners:
            self._add(name, make_flow(planned, self._plan, self._context, gate))
        self._runners[name].state = "pending"
        return lambda stop: self._run_with_plans(name, stop)

    def _run_with_plans(self, name: str, stop: StopSignal) -> FlowResult:
        """Run a flow; if it needs a new plan, it continues with one."""
        result = self._run(self._runners[name], stop)
        plans = SamePlans()
        while result.outcome == "plan again":
            runner = self._runners[name]
            if plans.are_too_many(runner.planned, runner.progress.batches):
                return self._reports.failed(runner.planned, _never_ends(runner.planned), runner.progress)
            result = self._plan_again(name)(stop)
        return result

    def _run(self, runner: FlowRunner, stop: StopSignal) -> FlowResult:
        planned = runner.planned
        name, limit = planned.flow.name, TRIGGERED_ATTEMPTS if runner.triggered else None
        try:
            if self._is_outdated(name):
                return self._plan_again(name)(stop)
            return run_attempts(runner, partial(self._begin, name), stop, self._reports, limit)
        except Exception as error:
            return self._reports.failed(planned, self._failures.as_error(error, planned.flow))
        finally:
            runner.gate.leave(name)
            self._release(name)

    def _plan_again(self, name: str) -> _RunFlow:
        """The runner of a flow with a new plan, after its table has the new columns."""
        before, context = self._runners[name], self._context
        try:
            # Tables that change while a plan is made must not count as known to it.
            with self._planning:
                plan, queries = context.replan()
                flows, openings = _stages_by_name(plan)
                planned = flows[name]
                table = planned.flow.target
                self._planned_at[name] = self._changes
                if planned.schema != before.planned.schema:
                    # Before the table has them, since its readers may fail as soon as it does.
                    self._changes += 1
                    self._changed[table] = self._changes
            open_table(openings[table], plan.feeding(table), context.settings.storage, context.spark)
        except Exception as caught:
            error = self._failures.as_error(caught, before.planned.flow)
            return lambda stop: self._reports.failed(before.planned, error, before.progress)
        # What the user asked for at the start of the run is done by now.
        own = replace(context, queries=queries, remedies=Remedies())
        runner = make_flow(planned, plan, own, before.gate, before.progress)
        self.planned[name] = planned
        self._add(name, runner)
        return lambda stop: self._run(runner, stop)

    def _add(self, name: str, runner: FlowRunner) -> None:
        self._runners[name] = runner
        runner.is_outdated = lambda: self._is_outdated(name)

    def _is_outdated(self, name: str) -> bool:
        """Whether a table that a flow reads as a stream has got other columns since the flow was planned."""
        planned_at = self._planned_at.get(name, 0)
        return any(
            self._changed.get(source.table, 0) > planned_at
            for source in self.planned[name].sources
            if source.table is not None
        )


_MOST_PLANS = 10
"""The plans in a row that may change nothing, without a batch between them."""


@dataclass
class SamePlans:
    _last: object = None
    _count: int = 0

    def are_too_many(self, planned: PlannedFlow, batches: int) -> bool:
        """Whether too many plans in a row are equal. `batches`: how many the flow has run so far."""
        this = (planned.schema, [source.options for source in planned.sources], batches)
        self._count = self._count + 1 if this == self._last else 0
        self._last = this
        return self._count >= _MOST_PLANS


def _never_ends(planned: PlannedFlow) -> HeadraceError:
    flow = planned.flow
    return FlowFailedError(
        f"flow {flow.name} was planned again {_MOST_PLANS} times, and its plan is always the same",
        location=flow.location,
        facts=("new columns of its source, for example, do not reach its query", NOT_COMMITTED),
        remedies=(
            "let the function of the flow read its stream each time that it is called, without a cache, and "
            "start again:   headrace run",
        ),
        params={"flow": flow.name},
    )


def _stages_by_name(plan: Plan) -> tuple[dict[str, PlannedFlow], dict[TableName, OpenTableStage]]:
    """The flows to run, by name, and the tables to open, in the order of the plan."""
    flows = (stage.planned for stage in plan.stages if isinstance(stage, RunFlowStage))
    openings = (stage for stage in plan.stages if isinstance(stage, OpenTableStage))
    return {one.flow.name: one for one in flows}, {one.table.name: one for one in openings}
