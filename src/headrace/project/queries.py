"""Evaluates the queries of a plan while the pipeline is active, for runs, replays and tests on given rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.declare.loader import activate
from headrace.declare.registry import ActivePipeline
from headrace.model.declarations import Flow, is_once, snapshots_of
from headrace.model.project import ProjectSettings
from headrace.model.ranges import SourceRange
from headrace.plan import evaluate
from headrace.plan.modes import REAL_SOURCES, AsRecords, Running, SourceOverrides
from headrace.plan.snapshots import SnapshotReader, make_reader, marker_stream
from headrace.plan.sources import Treat, evaluate_ranges, evaluate_records, once_stream
from headrace.plan.stages import Plan, PlannedFlow
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sources.bad_records import BadRecords
from headrace.state.snapshot_log import SnapshotLog
from headrace.storage.location import Location


@dataclass(frozen=True)
class Queries:
    settings: ProjectSettings
    plan: Plan
    session: Callable[[], SparkSession]
    overrides: SourceOverrides = REAL_SOURCES

    @property
    def as_records(self) -> AsRecords:
        return self.overrides.as_records

    def build(
        self,
        session: SparkSession,
        declared: Flow,
        record_limit: int | None = None,
        whole_commits: bool = False,
    ) -> DataFrame:
        """Evaluate a query against the real tables."""
        with self._active(session, quarantines=True):
            if snapshots_of(declared) is not None:
                log = SnapshotLog(self.settings.storage.snapshots(declared.target))
                return marker_stream(session, log.pattern, self._planned(declared).schema)
            if is_once(declared):
                return once_stream(session, self.settings.storage, self._planned(declared).schema)
            mode = Running(
                sources=self.overrides.sources, record_limit=record_limit, whole_commits=whole_commits
            )
            return evaluate.evaluate(session, declared, self.plan, mode)

    def once(self, session: SparkSession, declared: Flow) -> DataFrame:
        """Evaluate the batch query of a flow that is applied once."""
        with self._active(session):
            return evaluate.evaluate(session, declared, self.plan, Running(sources=self.overrides.sources))

    @contextmanager
    def sending(self, session: SparkSession) -> Iterator[None]:
        """Let the function of a sink use the pipeline's tables."""
        with self._active(session), evaluate.sending(session, self.plan):
            yield

    def build_ranges(
        self,
        session: SparkSession,
        planned: PlannedFlow,
        ranges: Sequence[SourceRange],
        checkpoint: Location,
        treat: Treat | None = None,
    ) -> DataFrame:
        with self._active(session, quarantines=True):
            return evaluate_ranges(
                session,
                planned,
                self.plan,
                ranges,
                checkpoint,
                leaves_others=self.overrides.sources is not None,
                treat=treat,
                stand_ins=self.overrides.ranges,
            )

    def find_bad_records(
        self, session: SparkSession, planned: PlannedFlow, ranges: Sequence[SourceRange], checkpoint: Location
    ) -> Sequence[BadRecords]:
        found: list[BadRecords] = []
        with self._active(session, quarantines=True, bad_records=found):
            stand_ins = self.overrides.ranges
            evaluate_ranges(
                session, planned, self.plan, ranges, checkpoint, leaves_others=True, stand_ins=stand_ins
            )
        return [one for one in found if not one.frame.isStreaming]

    def build_records(
        self,
        session: SparkSession,
        planned: PlannedFlow,
        records: DataFrame,
        found: list[BadRecords] | None = None,
    ) -> DataFrame:

        # No sources are replaced here: the records are the sources.
        active = ActivePipeline(
            self.settings, lambda: session, quarantines=found is not None, bad_records=found
        )
        with activate(active):
            return evaluate_records(session, planned, self.plan, records)

    @contextmanager
    def snapshots(self, planned: PlannedFlow) -> Iterator[SnapshotReader]:
        """Read the snapshots of a flow in the pipeline's session."""
        with activate(ActivePipeline(self.settings, self.session)):
            yield make_reader(planned.flow, self.plan.datasets, self.settings, self.session())

    @contextmanager
    def _active(
        self, session: SparkSession, *, quarantines: bool = False, bad_records: list[BadRecords] | None = None
    ) -> Iterator[None]:
        active = ActivePipeline(
            self.settings,
            lambda: session,
            folders=self.overrides.folders,
            quarantines=quarantines,
            bad_records=bad_records,
        )
        with activate(active):
            yield

    def _planned(self, declared: Flow) -> PlannedFlow:
        return next(one for one in self.plan.flows if one.flow.name == declared.name)
