"""Creates the runners of an update, with everything that they use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.model.declarations import snapshots_of
from headrace.model.events import BatchTimed
from headrace.model.ranges import Position, SourceRange
from headrace.model.table_events import ForeignCommitSeen
from headrace.plan.properties import kept_plain_for
from headrace.plan.sources import marker_of
from headrace.plan.stages import Plan, PlannedFlow, RefreshViewStage
from headrace.run.bad_records import BadRecordSearch, DriftCheck, HeaderCheck, ReaderCounts
from headrace.run.batch import BatchFunction, BatchRanges, QueryState, RecordFeed
from headrace.run.checks import DatasetChecks
from headrace.run.context import UpdateContext
from headrace.run.failures import Failures
from headrace.run.flow import FlowRunner, OpeningGate
from headrace.run.increments import ViewIncrements
from headrace.run.limits import BatchLimits, Execution, most_tasks
from headrace.run.narrowing import RecordSearch
from headrace.run.new_columns import ColumnTrial
from headrace.run.opening import FlowOpener, OpenedFlow
from headrace.run.readiness import inputs_of
from headrace.run.reporting import BatchReporter, BatchSteps, FlowReports, JvmWork, LagGauge, Progress
from headrace.run.snapshots import OnceFeed, SnapshotFeed
from headrace.run.split import BatchSplit, RefreshSplit
from headrace.run.stop import StopSignal
from headrace.run.survey import FlowSurveyor
from headrace.run.targets import flow_target, quarantine_of, refresh_target, target_reader
from headrace.run.views import ViewRunner
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.table import read_state
from headrace.sinks.target import keeps_state
from headrace.sources.kind import FlowRun
from headrace.sources.registry import kind_of, load_next_positions
from headrace.state.checkpoint import is_seeded
from headrace.state.lease import Lease


@dataclass(frozen=True, kw_only=True)
class BatchSetup:
    """Makes the batch function of each query of a flow."""

    surveyor: FlowSurveyor
    context: UpdateContext
    failures: Failures
    reports: FlowReports
    progress: Progress  # the flow's counts so far
    checks: DatasetChecks
    snapshots: RecordFeed | None = None  # the rows in place of the markers, if the flow reads markers

    def make(
        self,
        opened: OpenedFlow,
        session: SparkSession,
        lease: Lease,
        stop: StopSignal,
        limits: BatchLimits,
        state: QueryState,
    ) -> BatchFunction:
        planned, settings, feed = self.surveyor.planned, self.surveyor.settings, self.snapshots
        queries = self.context.queries
        run = FlowRun(
            flow=planned.flow,
            checkpoint=opened.path,
            checkpoint_id=opened.identity.checkpoint,
            facts=opened.sources,
            planned=planned.sources,
            systems=self.surveyor.systems,
            ledger=self.surveyor.ledger,
            on_data_loss=settings.on_data_loss,
            session=session,
        )
        ranges = BatchRanges(run, pipeline=settings.name, target=self.surveyor.target)
        ranges.open(_positions(opened, run))
        search = self._search(opened, stop)
        drift = DriftCheck(
            planned=planned,
            find=partial(queries.find_bad_records, planned=planned, checkpoint=opened.path),
            trial=ColumnTrial(
                planned=planned,
                build_ranges=queries.build_ranges,
                checkpoint=opened.path,
                replan=self.context.replan,
            ),
            reports=self.reports,
        )
        return BatchFunction(
            planned=planned,
            lease=lease,
            ranges=ranges,
            split=self._split(session, search, drift),
            search=search,
            headers=HeaderCheck(
                planned=planned,
                build_ranges=queries.build_ranges,
                checkpoint=opened.path,
                drift=drift,
                schemas=settings.storage.schemas,
            ),
            target=flow_target(planned, self.context, session),
            execution=Execution(planned, most_tasks(session)),
            reporter=self._reporter(opened, limits),
            committed=self.checks.committed,
            state=state,
            steps=BatchSteps(JvmWork(session).take, partial(self.reports.report, BatchTimed, planned)),
            accepted=opened.record_query,
            turn=self._turn(),
            snapshots=None if feed is None else partial(feed.records, checkpoint=opened.path),
            queue=self.context.queue,
        )

    def _turn(self) -> Callable[[], AbstractContextManager[None]]:
        planned, context = self.surveyor.planned, self.context
        if keeps_state(planned.sink):
            return nullcontext
        return partial(context.maintenance.turn, context.settings.storage.table(planned.flow.target))

    def _search(self, opened: OpenedFlow, stop: StopSignal) -> RecordSearch:
        planned, queries = self.surveyor.planned, self.context.queries
        return RecordSearch(
            planned=planned,
            build_ranges=queries.build_ranges,
            as_records=queries.as_records,
            failures=self.failures,
            stop=stop,
            checkpoint=opened.path,
        )

    def _reporter(self, opened: OpenedFlow, limits: BatchLimits) -> BatchReporter:
        return BatchReporter(
            planned=self.surveyor.planned,
            reports=self.reports,
            progress=self.progress,
            measure_lag=LagGauge(self.surveyor.systems, opened.path, limits.record_bytes).measure,
            after_batch={"the offsets": self._publish, "the limit": limits.follow},
        )

    def _split(self, session: SparkSession, search: RecordSearch, drift: DriftCheck) -> BatchSplit:
        planned = self.surveyor.planned
        return BatchSplit(
            planned=planned,
            quarantine=quarantine_of(planned.flow.target, self.surveyor.settings.storage),
            update=self.context.update,
            records=BadRecordSearch(
                planned=planned, count=ReaderCounts(session), find=drift.find, read=search.read, drift=drift
            ),
            target=self.surveyor.target,
            session=session,
        )

    def _publish(self, ranges: tuple[SourceRange, ...], duration_s: float) -> None:
        """Publish the flow's offsets for its consumer group."""
        group = f"headrace-{self.surveyor.settings.name}-{self.surveyor.planned.flow.name}"
        for one in ranges:
            kind_of(one.kind).publish(one, self.surveyor.systems, group)


def _positions(opened: OpenedFlow, run: FlowRun) -> dict[int, Position]:
    """The position of each source after the last batch in the table."""
    if opened.checkpoint is not None:
        return dict(opened.checkpoint.positions)
    return load_next_positions(opened.path, 1, run.sources) if is_seeded(opened.path) else {}


def make_opener(planned: PlannedFlow, plan: Plan, context: UpdateContext) -> FlowOpener:
    """Create the object that opens the checkpoint of a flow."""
    target = planned.flow.target

    def report(commit: Mapping[str, Any]) -> None:
        context.emit(
            ForeignCommitSeen(
                update=context.update,
                dataset=target,
                version=commit["version"],
                operation=commit["operation"],
                engine=commit["engine"],
                undone=commit.get("undone", ()),
            )
        )

    surveyor = FlowSurveyor(
        planned=planned,
        settings=context.settings,
        systems=context.systems,
        target=target_reader(planned, context.settings.storage, partial(read_state, context.spark)),
        declared_flows=plan.flows_of(target),
    )
    return FlowOpener(
        surveyor=surveyor,
        spark=context.spark,
        target=flow_target(planned, context, context.spark),
        check_lease=lambda: context.heart.check(
            context.settings.storage.lease(target, planned.flow.name), planned.flow.name
        ),
        report=report,
    )


def make_flow(
    planned: PlannedFlow,
    plan: Plan,
    context: UpdateContext,
    gate: OpeningGate,
    progress: Progress | None = None,
) -> FlowRunner:
    """Make the runner of a flow. `progress`: the counts of its runner before; ``None`` if it has none."""
    opener = make_opener(planned, plan, context)
    if not keeps_state(planned.sink):
        context.maintenance.watch(context.settings.storage.table(planned.flow.target))
    progress = progress or Progress()
    failures = context.failures(planned.sources)
    reports = FlowReports(context.update, context.emit)
    snapshots: RecordFeed | None = None
    if planned.flow.once:
        snapshots = OnceFeed(
            planned=planned,
            marker=marker_of(context.settings.storage),
            build=lambda session: context.queries.once(session, planned.flow),
        )
    elif snapshots_of(planned.flow) is not None:
        snapshots = SnapshotFeed(
            planned=planned,
            table=context.settings.storage.table(planned.flow.target),
            reading=context.queries.snapshots,
            report=partial(reports.snapshot_skipped, planned),
        )
    checks = context.checks(planned.flow, planned.checks)
    return FlowRunner(
        planned=planned,
        gate=gate,
        progress=progress,
        opener=opener,
        make_batches=BatchSetup(
            surveyor=opener.surveyor,
            context=context,
            failures=failures,
            reports=reports,
            progress=progress,
            checks=checks,
            snapshots=snapshots,
        ).make,
        checks=checks,
        session=context.session,
        build=context.queries.build,
        failures=failures,
        reports=reports,
        snapshots=snapshots,
        triggered=context.mode == "triggered",
        remedies=context.remedies,
    )


def make_view(stage: RefreshViewStage, plan: Plan, context: UpdateContext) -> ViewRunner:
    split = RefreshSplit(
        stage=stage,
        quarantine=quarantine_of(stage.view.name, context.settings.storage),
        max_rejected=stage.view.max_rejected or context.settings.max_rejected,
        limit_place=None if stage.view.max_rejected else context.settings.places.get("max_rejected"),
    )
    return ViewRunner(
        stage=stage,
        inputs=inputs_of(stage.planned, plan),
        target=refresh_target(stage, plan),
        increments=ViewIncrements(
            view=stage.view,
            storage=context.settings.storage,
            maintenance=context.maintenance,
            is_streamed=plan.streams_rows(stage.view.name),
            split=split,
            kept_plain_for=kept_plain_for(stage.view, plan.project),
        ),
        split=split,
        context=context,
    )
