"""Creates the runners of an update, with everything that they use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from headrace.model.declarations import snapshots_of
from headrace.model.events import ForeignCommitSeen
from headrace.plan.sources import marker_of
from headrace.plan.stages import Plan, PlannedFlow, RefreshViewStage
from headrace.run.batch import RecordFeed
from headrace.run.batch_setup import BatchSetup
from headrace.run.checks import DatasetChecks
from headrace.run.context import UpdateContext
from headrace.run.failures import Failures
from headrace.run.flow import FlowRunner, OpeningGate
from headrace.run.opening import FlowOpener
from headrace.run.readiness import inputs_of
from headrace.run.reporting import FlowReports, Progress
from headrace.run.snapshots import OnceFeed, SnapshotFeed
from headrace.run.split import RefreshSplit, ViewCountingRefreshSplit
from headrace.run.survey import FlowSurveyor
from headrace.run.targets import flow_target, quarantine_of, refresh_target
from headrace.run.views import ViewRunner
from headrace.sinks.delta.reader import DeltaReader
from headrace.sinks.delta.table import read_state


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
        target=DeltaReader(context.settings.storage.table(target), partial(read_state, context.spark)),
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
    """Make the runner of a flow.

    Args:
        progress: The counts of the flow's runner before; ``None`` if it has none.
    """
    opener = make_opener(planned, plan, context)
    context.maintenance.watch(context.settings.storage.table(planned.flow.target))
    progress = progress or Progress()
    others = filter(None, (source.connection for source in planned.sources))
    kafka = next(others, context.settings.kafka)
    failures = Failures(kafka=kafka, redactor=context.settings.redactor, log_file=context.log_file)
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
            queries=context.queries,
            failures=failures,
            maintenance=context.maintenance,
            update=context.update,
            emit=context.emit,
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
    limit = stage.view.max_rejected or context.settings.max_rejected
    split = RefreshSplit(stage, quarantine_of(stage.view.name, context.settings.storage), limit)
    views = stage.planned.checked_views
    return ViewRunner(
        stage,
        inputs_of(stage.planned, plan),
        target=refresh_target(stage, plan),
        settings=context.settings,
        spark=context.spark,
        session=context.session,
        build=context.queries.build,
        split=ViewCountingRefreshSplit(split, views) if views else split,
        heart=context.heart,
        maintenance=context.maintenance,
        failures=Failures(
            kafka=context.settings.kafka, redactor=context.settings.redactor, log_file=context.log_file
        ),
        update=context.update,
        emit=context.emit,
    )
