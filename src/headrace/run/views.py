"""Materialized views: refreshed when their inputs or their query have changed, never otherwise."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import HeadraceError, ViewInputMissingError
from headrace.model.declarations import RefreshFlow
from headrace.model.events import ViewFailed, ViewRefreshed, ViewRefreshing, ViewSkipped, ViewUpToDate
from headrace.model.names import TableName
from headrace.plan.alterations import find_alterations
from headrace.plan.stages import Plan, PlannedRefresh, RefreshViewStage
from headrace.run.context import UpdateContext
from headrace.run.failures import as_error
from headrace.run.readiness import FeedState
from headrace.run.split import split_rows
from headrace.run.tables import alter, new_clustering
from headrace.sinks.delta.replace import ReplaceTarget
from headrace.sinks.delta.table import is_table, read_state, register_table
from headrace.sinks.target import RefreshStamp
from headrace.state.lease import Lease
from headrace.state.ledger import record_view
from headrace.state.table_log import commit_mark, versions

if TYPE_CHECKING:
    from pathlib import Path

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ViewResult:
    """How a refresh ended.

    Args:
        outcome: ``skipped`` where a table that the view reads was never written.
        reason: Why the view was skipped.
    """

    dataset: TableName
    outcome: Literal["refreshed", "up to date", "failed", "skipped"]
    rows: int = 0
    error: HeadraceError | None = None
    reason: str | None = None


class ViewRunner:
    """Keeps one materialized view equal to its query.

    Args:
        stage: The view and its refresh flow.
        inputs: The tables that its query reads, also through temporary views.
        context: The update.

    Attributes:
        result: The last result in this update, if there is one.
    """

    def __init__(
        self,
        stage: RefreshViewStage,
        inputs: tuple[TableName, ...],
        context: UpdateContext,
    ) -> None:
        self.view = stage.view
        self.inputs = inputs
        self.result: ViewResult | None = None
        self._flow = stage.planned.flow
        self._planned = stage.planned
        self._properties = stage.properties
        self._context = context
        self._seen: dict[TableName, int] = {}

    @property
    def interval_s(self) -> float:
        """Least seconds between two refreshes of a continuous update."""
        trigger = self._flow.trigger
        return self._context.settings.view_interval_s if trigger is None else trigger.interval_s

    def has_moved(self) -> bool:
        """Whether an input has a new version, or the last refresh failed; reads nothing but file names."""
        now = {name: self._last_version(name) for name in self.inputs}
        failed = self.result is not None and self.result.outcome == "failed"
        return all(version >= 0 for version in now.values()) and (failed or now != self._seen)

    @property
    def state(self) -> FeedState:
        """How far the view is, for what reads it."""
        if self.result is None:
            return "pending"
        match self.result.outcome:
            case "failed" | "skipped":
                return self.result.outcome
            case _:
                return "working"

    def refresh(self) -> None:
        """Refresh the view if it is not what its query would give; raises nothing."""
        context = self._context
        try:
            lease = Lease.acquire(context.settings.storage.lease(self.view.name, "view"), str(self.view.name))
            context.heart.add(lease)
            try:
                self.result = self._refresh()
            finally:
                context.heart.release(lease)
        except Exception as failure:
            self.fail(failure)

    def fail(self, failure: Exception) -> None:
        """Report why the view cannot be refreshed."""
        context, name = self._context, self.view.name
        error = as_error(failure, None, self._flow, context.log_file, context.settings.kafka)
        _LOG.info("view %s failed", name, exc_info=error)
        context.emit(ViewFailed(update=context.update, dataset=name, error=error.to_dict()))
        self.result = ViewResult(dataset=name, outcome="failed", error=error)

    def skip(self, reason: str) -> None:
        """Report why the view is not refreshed."""
        result = ViewResult(dataset=self.view.name, outcome="skipped", reason=reason)
        if result != self.result:
            context = self._context
            context.emit(ViewSkipped(update=context.update, dataset=self.view.name, reason=reason))
        self.result = result

    def _refresh(self) -> ViewResult:
        context, view = self._context, self.view
        path = context.settings.storage.table(view.name)
        # The versions are taken before the query sees the tables: what commits in between makes
        # one refresh too many, never one too few.
        self._seen = {name: self._last_version(name) for name in self.inputs}
        inputs = {str(name): self._identity(name) for name in self.inputs}
        target = ReplaceTarget(path=path, partition_cols=view.partition_cols, cluster_by=view.cluster_by)
        stamp = RefreshStamp(
            pipeline=context.settings.name,
            view=str(view.name),
            update=context.update,
            definition=self._planned.fingerprint,
            inputs=inputs,
        )
        writer = target.begin(context.spark, stamp)
        if writer is None:
            self._register(path)
            context.emit(ViewUpToDate(update=context.update, dataset=view.name))
            return ViewResult(dataset=view.name, outcome="up to date")
        context.emit(ViewRefreshing(update=context.update, dataset=view.name))
        started = time.monotonic()
        session = context.session(dict(self._flow.spark_conf))
        session.sparkContext.setLocalProperty("spark.scheduler.pool", str(view.name))
        df = context.build(session, self._flow)
        with writer:
            writer.write(split_rows(df))
            committed = writer.commit()
        self._register(path)
        context.emit(
            ViewRefreshed(
                update=context.update,
                dataset=view.name,
                version=committed.version,
                rows=committed.counts.accepted,
                duration_s=time.monotonic() - started,
            )
        )
        return ViewResult(dataset=view.name, outcome="refreshed", rows=committed.counts.accepted)

    def _register(self, path: Path) -> None:
        spark = self._context.spark
        state = read_state(spark, path)
        alterations = find_alterations(
            self.view,
            self._planned.schema,
            self._properties,
            state,
            has_rows=True,
            new_clustering=new_clustering(self.view, path),
        )
        alter(spark, path, alterations)
        register_table(spark, self.view.name, path)
        settings, name = self._context.settings, self.view.name
        record_view(settings.storage.ledger(name, "view"), settings.name, name, state.table_id)

    def _identity(self, name: TableName) -> dict[str, Any]:
        path = self._context.settings.storage.table(name)
        if not is_table(path):
            raise input_missing(self._flow, name)
        state = read_state(self._context.spark, path)
        version = self._seen[name]
        return {"table_id": state.table_id, "version": version, "commit": commit_mark(path, version)}

    def _last_version(self, name: TableName) -> int:
        known = versions(self._context.settings.storage.table(name))
        return known[-1] if known else -1


def input_missing(flow: RefreshFlow, name: TableName) -> ViewInputMissingError:
    """The error for a view over a table that does not exist."""
    return ViewInputMissingError(
        f"{flow.name} reads {name}, which does not exist yet",
        location=flow.location,
        remedies=(f"create that table first:   headrace run {name}",),
        params={"view": flow.name, "input": str(name)},
    )


def inputs_of(planned: PlannedRefresh, plan: Plan) -> tuple[TableName, ...]:
    """The tables behind a view's query, also through temporary views."""
    views = {one.view.name: one for one in plan.views}
    found: list[TableName] = []
    waiting = [read.table for read in planned.reads]
    while waiting:
        name = waiting.pop(0)
        if name in views:
            waiting.extend(read.table for read in views[name].reads)
        elif name not in found:
            found.append(name)
    return tuple(found)
