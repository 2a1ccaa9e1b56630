"""Materialized views: refreshed when their inputs or their query have changed, never otherwise."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, Literal

from headrace.contracts.expectations import with_declared_columns
from headrace.errors import HeadraceError, ViewInputMissingError
from headrace.model.declarations import RefreshFlow
from headrace.model.event_forms import Emitter
from headrace.model.events import ViewFailed, ViewRefreshed, ViewRefreshing, ViewSkipped, ViewUpToDate
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.plan.changes import find_alterations
from headrace.plan.stages import RefreshViewStage
from headrace.run.checks import DatasetChecks
from headrace.run.context import Build, MakeSession
from headrace.run.failures import Failures
from headrace.run.readiness import FeedState
from headrace.run.split import RefreshSplit, ViewCountingRefreshSplit
from headrace.run.stop import StopSignal, cancelled_at
from headrace.run.tables import alter, new_clustering
from headrace.run.task_metrics import refresh_jobs
from headrace.runtime.engine.record import pool_name
from headrace.runtime.gateway import release_unused
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.maintenance import Maintenance
from headrace.sinks.delta.metastore import publish_table
from headrace.sinks.delta.table import read_state, register_table
from headrace.sinks.target import RefreshStamp, Target
from headrace.state.lease import VIEW, Heart, Lease
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


class ViewRunner:
    """Keeps one materialized view equal to its query. `result`: the last result in this update, if there is
    one."""

    def __init__(
        self,
        stage: RefreshViewStage,
        inputs: tuple[TableName, ...],
        *,
        target: Target[RefreshStamp],
        settings: ProjectSettings,
        spark: SparkSession,
        session: MakeSession,
        build: Build,
        split: RefreshSplit | ViewCountingRefreshSplit,
        heart: Heart,
        maintenance: Maintenance,
        failures: Failures,
        update: str,
        emit: Emitter,
    ) -> None:
        self.view = stage.view
        self.inputs = inputs
        self.result: ViewResult | None = None
        self._flow = stage.planned.flow
        self._planned = stage.planned
        self._properties = stage.properties
        self._target = target
        self._settings = settings
        self._spark = spark
        self._session = session
        self._build = build
        self._split = split
        self._heart = heart
        self._maintenance = maintenance
        self._failures = failures
        self._update = update
        self._emit = emit
        self._seen: dict[TableName, int] = {}
        self._lease: Lease | None = None

    @property
    def interval_s(self) -> float:
        """Minimum seconds between two refreshes of a continuous update."""
        trigger = self._flow.trigger
        return self._settings.view_interval_s if trigger is None else trigger.interval_s

    def inputs_changed(self) -> bool:
        """Whether the view was not refreshed yet, an input has a new version, or the last refresh failed.

        Reads nothing but file names.
        """
        now = {name: newest_version(self._settings.storage.table(name)) for name in self.inputs}
        is_due = self.result is None or self.result.outcome == "failed" or now != self._seen
        return is_due and all(version >= 0 for version in now.values())

    @property
    def state(self) -> FeedState:
        """The state of the view, for its readers."""
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
            if self._lease is None:
                self._lease = self._heart.acquire(self._settings.storage.lease(name, VIEW), str(name))
            with cancelled_at(stop, self._spark):
                self.result = self._refresh()
        except Exception as failure:
            if stop.requested:
                _LOG.info("the refresh of %s was stopped", name, exc_info=failure)
                self.skip("the run was stopped before its refresh had ended")
            else:
                self.fail(failure)
        finally:
            self.release()
        release_unused()

    def release(self) -> None:
        """Release the view's lease; one that cannot be released stays, and is released later."""
        if self._lease is not None and self._heart.release(self._lease):
            self._lease = None

    def fail(self, failure: Exception) -> None:
        """Report why the view cannot be refreshed."""
        name = self.view.name
        error = self._failures.as_error(failure, self._flow, expectations=self.view.expectations)
        _LOG.info("view %s failed", name, exc_info=error)
        self._emit(ViewFailed(update=self._update, dataset=name, error=error.to_dict()))
        self.result = ViewResult(dataset=name, outcome="failed", error=error)

    def skip(self, reason: str) -> None:
        """Report why the view is not refreshed."""
        result = ViewResult(dataset=self.view.name, outcome="skipped", reason=reason)
        if result != self.result:
            self._emit(ViewSkipped(update=self._update, dataset=self.view.name, reason=reason))
        self.result = result

    def _refresh(self) -> ViewResult:
        view = self.view
        # The versions are taken before the query sees the tables: what commits in between makes
        # one refresh too many, never one too few.
        self._seen = {name: newest_version(self._settings.storage.table(name)) for name in self.inputs}
        inputs = {str(name): self._identity(name) for name in self.inputs}
        stamp = RefreshStamp(
            pipeline=self._settings.name,
            view=str(view.name),
            update=self._update,
            definition=self._planned.fingerprint,
            inputs=inputs,
            varies=bool(self._planned.varies),
        )
        writer = self._target.begin(self._spark, stamp)
        if writer is None:
            self._register()
            self._emit(ViewUpToDate(update=self._update, dataset=view.name))
            self._check(self._spark)
            return ViewResult(dataset=view.name, outcome="up to date")
        self._emit(ViewRefreshing(update=self._update, dataset=view.name))
        started = time.monotonic()
        session = self._session(dict(self._flow.spark_conf))
        session.sparkContext.setLocalProperty("spark.scheduler.pool", pool_name(str(view.name)))
        df = with_declared_columns(self._build(session, self._flow), self._planned.schema)
        with (
            self._maintenance.turn(self._settings.storage.table(view.name)),
            writer,
            refresh_jobs(session, str(view.name)),
            self._split.begin(df, stamp) as rows,
        ):
            writer.write(rows)
            rows.settle()
            committed = writer.commit()
        self._register()
        # A compaction during the next refresh would make the refresh fail.
        self._maintenance.offer(self._settings.storage.table(view.name), committed.version, beside=False)
        self._emit(
            ViewRefreshed(
                update=self._update,
                dataset=view.name,
                version=committed.version,
                rows=committed.counts.accepted,
                duration_s=time.monotonic() - started,
                quarantined=committed.counts.quarantined,
                dropped=committed.counts.dropped,
                expectations=tuple(one.to_json() for one in committed.counts.expectations),
            )
        )
        self._check(session)
        return ViewResult(dataset=view.name, outcome="refreshed", rows=committed.counts.accepted)

    def _check(self, session: SparkSession) -> None:
        """Run the checks of the whole view, also if it is up to date: one that failed fails again."""
        DatasetChecks(
            dataset=self.view.name,
            flow=self._flow.name,
            checks=self.view.checks,
            storage=self._settings.storage,
            update=self._update,
            emit=self._emit,
        ).run(session)

    def _register(self) -> None:
        spark, path = self._spark, self._settings.storage.table(self.view.name)
        state = read_state(spark, path)
        alterations = find_alterations(
            self.view,
            self._planned.schema,
            self._properties,
            state,
            has_rows=True,
            new_clustering=new_clustering(self.view, path),
        )
        alter(spark, path, alterations, self.view)
        register_table(spark, self.view.name, path)
        publish_table(spark, self.view.name, path)
        settings, name = self._settings, self.view.name
        record_view(settings.storage.ledger(name, "view"), settings.name, name, state.table_id)

    def _identity(self, name: TableName) -> dict[str, Any]:
        path = self._settings.storage.table(name)
        if not is_table(path):
            raise input_missing(self._flow, name)
        state = read_state(self._spark, path)
        version = self._seen[name]
        return {"table_id": state.table_id, "version": version, "commit": commit_mark(path, version)}


def input_missing(flow: RefreshFlow, name: TableName) -> ViewInputMissingError:
    """The error for a view over a table that does not exist."""
    return ViewInputMissingError(
        f"{flow.target.short} reads {name.short}, which does not exist yet",
        location=flow.location,
        remedies=(f"create that table first:   headrace run {name.short}",),
        params={"view": flow.name, "input": str(name)},
    )
