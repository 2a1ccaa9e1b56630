"""Materialized views: refreshed when their inputs or their query have changed, never otherwise."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import HeadraceError, ViewInputMissingError
from headrace.model.declarations import RefreshFlow
from headrace.model.events import ViewFailed, ViewRefreshed, ViewRefreshing, ViewUpToDate
from headrace.model.names import TableName
from headrace.plan.alterations import find_alterations
from headrace.plan.stages import Plan, PlannedRefresh, RefreshViewStage
from headrace.run.context import UpdateContext
from headrace.run.failures import as_error
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
    """What became of a view."""

    dataset: TableName
    outcome: Literal["refreshed", "up to date", "failed"]
    rows: int = 0
    error: HeadraceError | None = None


class ViewRunner:
    """Keeps one materialized view equal to its query.

    Args:
        stage: The view and its refresh flow.
        inputs: The tables that its query reads, also through temporary views.
        context: The update.
        blocked_by: Why it cannot be refreshed, if it cannot.
    """

    def __init__(
        self,
        stage: RefreshViewStage,
        inputs: tuple[TableName, ...],
        context: UpdateContext,
        blocked_by: Exception | None = None,
    ) -> None:
        self.view = stage.view
        self.blocked_by = blocked_by
        self._flow = stage.planned.flow
        self._planned = stage.planned
        self._inputs = inputs
        self._properties = stage.properties
        self._context = context
        self._seen: dict[TableName, int] = {}

    @property
    def interval_s(self) -> float:
        """Least seconds between two refreshes of a continuous update."""
        trigger = self._flow.trigger
        return self._context.settings.view_interval_s if trigger is None else trigger.interval_s

    def moved(self) -> bool:
        """Whether an input has a version that the last look had not; reads nothing but file names."""
        now = {name: self._last_version(name) for name in self._inputs}
        return now != self._seen

    def ready(self) -> bool:
        """Whether every input has been made."""
        return all(self._last_version(name) >= 0 for name in self._inputs)

    def refresh(self) -> ViewResult:
        """Refresh the view if it is not what its query would give; raises nothing."""
        context = self._context
        try:
            if self.blocked_by is not None:
                raise self.blocked_by
            with_lease = Lease.acquire(
                context.settings.storage.lease(self.view.name, "view"), str(self.view.name)
            )
            context.heart.add(with_lease)
            try:
                return self._refresh()
            finally:
                context.heart.release(with_lease)
        except Exception as failure:
            error = as_error(failure, None, self._flow, context.log_file, context.settings.kafka)
            _LOG.info("view %s failed", self.view.name, exc_info=error)
            context.emit(ViewFailed(update=context.update, dataset=self.view.name, error=error.to_dict()))
            return ViewResult(dataset=self.view.name, outcome="failed", error=error)

    def _refresh(self) -> ViewResult:
        context, view = self._context, self.view
        path = context.settings.storage.table(view.name)
        # The versions are taken before the query sees the tables: what commits in between makes
        # one refresh too many, never one too few.
        self._seen = {name: self._last_version(name) for name in self._inputs}
        inputs = {str(name): self._identity(name) for name in self._inputs}
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
    """The refusal of a view over a table that does not exist."""
    return ViewInputMissingError(
        f"{flow.name} reads {name}, which does not exist yet",
        location=flow.location,
        remedies=(f"headrace run {name}",),
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
