"""Creates the runners of an update, with everything that they use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from headrace.model.declarations import snapshots_of
from headrace.model.table_events import ForeignCommitSeen
from headrace.plan.sources import marker_of
from headrace.plan.stages import Plan, PlannedFlow, RefreshViewStage
from headrace.run.batch import RecordFeed
from headrace.run.batch_setup import BatchSetup
from headrace.run.checks import DatasetChecks
from headrace.run.context import UpdateContext
from headrace.run.flow import FlowRunner, OpeningGate
from headrace.run.opening import FlowOpener
from headrace.run.readiness import inputs_of
from headrace.run.reporting import FlowReports, Progress
from headrace.run.snapshots import OnceFeed, SnapshotFeed
from headrace.run.split import RefreshSplit
from headrace.run.survey import FlowSurveyor
from headrace.run.targets import flow_target, quarantine_of, refresh_target, target_reader
from headrace.run.views import ViewRunner
from headrace.sinks.delta.table import read_state
from headrace.sinks.registry import keeps_state


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
        target=flow_target(planned, context.settings, context.spark, context.maintenance),
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
    checks = DatasetChecks(
        dataset=planned.flow.target,
        flow=planned.flow.name,
        checks=planned.checks,
        storage=context.settings.storage,
        update=context.update,
        emit=context.emit,
    )
    return FlowRunner(
        planned=planned,
        gate=gate,
        progress=progress,
        opener=opener,
        batches=BatchSetup(
            surveyor=opener.surveyor,
            context=context,
            failures=failures,
            progress=progress,
            checks=checks,
            snapshots=snapshots,
        ),
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
    """Make the runner of a materialized view."""
    return ViewRunner(
        stage=stage,
        inputs=inputs_of(stage.planned, plan),
        target=refresh_target(stage, plan),
        split=RefreshSplit(
            stage=stage,
            quarantine=quarantine_of(stage.view.name, context.settings.storage),
            max_rejected=stage.view.max_rejected or context.settings.max_rejected,
        ),
        context=context,
    )
