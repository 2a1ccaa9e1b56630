"""Materialized views: refreshed when their inputs or their query have changed, never otherwise."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.contracts.expectations import with_declared_columns
from headrace.errors import HeadraceError, ViewInputMissingError
from headrace.model.declarations import MaterializedView, RefreshFlow
from headrace.model.events import ViewFailed, ViewRefreshed, ViewRefreshing, ViewSkipped, ViewUpToDate
from headrace.model.names import TableName
from headrace.plan.changes import find_alterations
from headrace.plan.stages import RefreshViewStage
from headrace.run.attempts import TRIGGERED_ATTEMPTS, Looks
from headrace.run.context import UpdateContext
from headrace.run.failpoints import reach
from headrace.run.increments import Attempt, ViewIncrements
from headrace.run.readiness import FeedState
from headrace.run.split import RefreshSplit
from headrace.run.stop import StopSignal, cancelled_at
from headrace.run.tables import alter, new_clustering
from headrace.runtime.engine.record import pool_name
from headrace.runtime.gateway import release_unused
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.replace import Replacer, ReplaceTarget
from headrace.sinks.delta.table import publish_table, read_state, register_table
from headrace.sinks.target import Committed, RefreshStamp
from headrace.state.lease import VIEW, Lease
from headrace.state.ledger import record_view
from headrace.storage.table_log import commit_mark, is_table, newest_version

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ViewResult:
    """How a refresh ended. `outcome`: ``skipped`` if a table that the view reads was never written, or the
    run was stopped before the refresh had ended."""

    dataset: TableName
    outcome: Literal["refreshed", "up to date", "failed", "skipped"]
    rows: int = 0
    error: HeadraceError | None = None
    reason: str | None = None


@dataclass(kw_only=True)
class ViewRunner:
    """Keeps one materialized view equal to its query. `result`: the last result in this update, if there is
    one."""

    stage: RefreshViewStage
    inputs: tuple[TableName, ...]
    target: ReplaceTarget
    increments: ViewIncrements
    split: RefreshSplit
    context: UpdateContext
    result: ViewResult | None = field(default=None, init=False)
    _seen: dict[TableName, int] = field(default_factory=dict, init=False)
    _lease: Lease | None = field(default=None, init=False)

    @property
    def view(self) -> MaterializedView:
        return self.stage.view

    @property
    def interval_s(self) -> float:
        """Minimum seconds between two refreshes of a continuous update."""
        trigger = self.stage.planned.flow.trigger
        return self.context.settings.view_interval_s if trigger is None else trigger.interval_s

    def inputs_changed(self) -> bool:
        """Whether the view was not refreshed yet, an input has a new version, or the last refresh failed.

        Reads nothing but file names.
        """
        now = {name: newest_version(self.context.settings.storage.table(name)) for name in self.inputs}
        is_due = self.result is None or self.result.outcome == "failed" or now != self._seen
        return is_due and all(version >= 0 for version in now.values())

    @property
    def state(self) -> FeedState:
        if self.result is None:
            return "pending"
        match self.result.outcome:
            case "failed" | "skipped":
                return self.result.outcome
            case _:
                return "working"

    def refresh(self, stop: StopSignal) -> None:
        """Refresh the view if its query or an input has changed; errors become results."""
        name = self.view.name
        if stop.requested:
            return
        try:
            looks = Looks(self.context.update, self.context.emit, limit=TRIGGERED_ATTEMPTS)
            what = f"the refresh of {name.short}"
            self.result = looks.repeat(what, lambda: self._attempt(stop), self._error, stop)
        except Exception as failure:
            if stop.requested:
                _LOG.info("the refresh of %s was stopped", name, exc_info=failure)
                self.skip("the run was stopped before its refresh had ended")
            else:
                self.fail(failure)
        finally:
            self._release()
        release_unused()

    def _attempt(self, stop: StopSignal) -> ViewResult:
        """Take the view's lease if it is not held, and refresh the view."""
        name = self.view.name
        if self._lease is None:
            lease = self.context.settings.storage.lease(name, VIEW)
            self._lease = self.context.heart.acquire(lease, str(name), self.view.location)
        with cancelled_at(stop, self.context.spark):
            return self._refresh()

    def _release(self) -> None:
        """Release the view's lease, if it is held; the heart releases later what cannot be released now."""
        if self._lease is not None:
            self.context.heart.release(self._lease)
            self._lease = None

    def fail(self, failure: Exception) -> None:
        name = self.view.name
        error = self._error(failure)
        _LOG.info("view %s failed", name, exc_info=error)
        self.context.emit(ViewFailed(update=self.context.update, dataset=name, error=error.to_dict()))
        self.result = ViewResult(dataset=name, outcome="failed", error=error)

    def _error(self, failure: Exception) -> HeadraceError:
        flow, expectations = self.stage.planned.flow, self.view.expectations
        return self.context.failures().as_error(failure, flow, expectations=expectations)

    def skip(self, reason: str) -> None:
        result = ViewResult(dataset=self.view.name, outcome="skipped", reason=reason)
        if result != self.result:
            self.context.emit(ViewSkipped(update=self.context.update, dataset=self.view.name, reason=reason))
        self.result = result

    def _refresh(self) -> ViewResult:
        view = self.view
        # The versions are taken before the query sees the tables: what commits in between makes
        # one refresh too many, never one too few.
        self._seen = {name: newest_version(self.context.settings.storage.table(name)) for name in self.inputs}
        inputs = {str(name): self._identity(name) for name in self.inputs}
        stamp = RefreshStamp(
            pipeline=self.context.settings.name,
            view=str(view.name),
            update=self.context.update,
            definition=self.stage.planned.fingerprint,
            inputs=inputs,
            varies=bool(self.stage.planned.varies),
            began_ms=time.time_ns() // 1_000_000,
        )
        reach("batch-start", view.name.name, 0)
        writer = self.target.begin(self.context.spark, stamp)
        if writer is None:
            self._register()
            self.context.emit(ViewUpToDate(update=self.context.update, dataset=view.name))
            self._check(self.context.spark)
            return ViewResult(dataset=view.name, outcome="up to date")
        self.context.emit(ViewRefreshing(update=self.context.update, dataset=view.name))
        started = time.monotonic()
        session = self.context.session(dict(self.stage.planned.flow.spark_conf))
        session.sparkContext.setLocalProperty("spark.scheduler.pool", pool_name(str(view.name)))
        df = with_declared_columns(
            self.context.queries.build(session, self.stage.planned.flow), self.stage.planned.schema
        )
        with self.context.maintenance.turn(self.context.settings.storage.table(view.name)):
            attempt = self.increments.attempt(session, df, stamp)
            committed = attempt.committed or self._replace(writer, attempt)
        reach("after-commit", view.name.name, 0)
        self._register()
        # A compaction during the next refresh would make the refresh fail.
        self.context.maintenance.offer(
            self.context.settings.storage.table(view.name), committed.version, concurrently=False
        )
        self.context.emit(
            ViewRefreshed(
                update=self.context.update,
                dataset=view.name,
                version=committed.version,
                rows=committed.counts.accepted,
                duration_s=time.monotonic() - started,
                strategy=attempt.strategy,
                code=attempt.code,
                reason=attempt.reason,
                change=attempt.change,
                quarantined=committed.counts.quarantined,
                dropped=committed.counts.dropped,
                expectations=tuple(one.to_json() for one in committed.counts.expectations),
            )
        )
        self._check(session)
        return ViewResult(dataset=view.name, outcome="refreshed", rows=committed.counts.accepted)

    def _replace(self, writer: Replacer, attempt: Attempt) -> Committed:
        """Compute the whole view."""
        writer.stamp = attempt.stamp
        with writer, self.split.begin(attempt.frame(), attempt.stamp) as rows:
            writer.write(rows)
            rows.settle()
            # The versions that the rows come from can be older than those of another process by now.
            assert self._lease is not None, "a refresh holds the lease of its view"
            self._lease.check(self.view.name.short)
            return writer.commit()

    def _check(self, session: SparkSession) -> None:
        """Run the checks of the whole view, also if it is up to date: one that failed fails again."""
        self.context.checks(self.stage.planned.flow, self.view.checks).run(session)

    def _register(self) -> None:
        spark, path = self.context.spark, self.context.settings.storage.table(self.view.name)
        state = read_state(spark, path)
        alterations = find_alterations(
            self.view,
            self.stage.planned.schema,
            self.stage.properties,
            state,
            has_rows=True,
            new_clustering=new_clustering(self.view, path),
        )
        alter(spark, path, alterations, self.view)
        register_table(spark, self.view.name, path)
        publish_table(spark, self.view.name, path)
        settings, name = self.context.settings, self.view.name
        record_view(settings.storage.ledger(name, "view"), settings.name, name, state.table_id)

    def _identity(self, name: TableName) -> dict[str, Any]:
        path = self.context.settings.storage.table(name)
        if not is_table(path):
            raise input_missing(self.stage.planned.flow, name)
        state = read_state(self.context.spark, path)
        version = self._seen[name]
        return {"table_id": state.table_id, "version": version, "commit": commit_mark(path, version)}


def input_missing(flow: RefreshFlow, name: TableName) -> ViewInputMissingError:
    return ViewInputMissingError(
        f"{flow.target.short} reads {name.short}, which does not exist yet",
        location=flow.location,
        remedies=(f"run both:   headrace run {name.short} {flow.target.short}",),
        params={"view": flow.name, "input": str(name)},
    )
