"""The objects from which the runners of an update are created."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from headrace.model.declarations import DatasetCheck, Flow
from headrace.model.event_forms import Emitter
from headrace.model.project import ProjectSettings
from headrace.model.ranges import SourceRange
from headrace.model.remedies import Remedies
from headrace.plan.snapshots import SnapshotReader
from headrace.plan.sources import Treat
from headrace.plan.stages import Plan, PlannedFlow
from headrace.run.checks import DatasetChecks
from headrace.run.failures import Failures
from headrace.run.queue import BatchQueue
from headrace.run.stop import StopSignal
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.compaction import Maintenance
from headrace.sources.requests import Systems
from headrace.sources.source import Source
from headrace.state.lease import Heart
from headrace.storage.location import Location

if TYPE_CHECKING:
    from headrace.project.queries import Queries

Mode = Literal["triggered", "continuous"]
MakeSession = Callable[[dict[str, str]], "SparkSession"]
"""Creates a session for a flow or a view, with the given settings."""


class Build(Protocol):
    """Evaluates a query against the real tables, in a given session."""

    def __call__(
        self, session: SparkSession, declared: Flow, record_limit: int | None = ..., whole_commits: bool = ...
    ) -> DataFrame: ...


class BuildRanges(Protocol):
    """Evaluates a flow's query as a batch over ranges of its sources; see `plan.bounded`."""

    def __call__(
        self,
        session: SparkSession,
        planned: PlannedFlow,
        ranges: Sequence[SourceRange],
        checkpoint: Location,
        treat: Treat | None = None,
    ) -> DataFrame: ...


ReadSnapshots = Callable[[PlannedFlow], AbstractContextManager[SnapshotReader]]
"""Gives the reader of a flow's snapshots, with the pipeline active."""


@dataclass(frozen=True, kw_only=True)
class UpdateContext:
    """What one update has. `run/runners.py` gives each runner the parts that it uses."""

    update: str
    mode: Mode
    settings: ProjectSettings
    spark: SparkSession
    session: MakeSession
    queries: Queries
    replan: Callable[[], tuple[Plan, Queries]]
    systems: Systems
    emit: Emitter
    heart: Heart
    stop: StopSignal
    maintenance: Maintenance
    queue: BatchQueue | None = None
    remedies: Remedies = field(default_factory=Remedies)
    log_file: Path | None = None

    def failures(self, sources: Sequence[Source] = ()) -> Failures:
        """What gives failures of a query with these sources their codes."""
        return Failures(settings=self.settings, sources=sources, log_file=self.log_file)

    def checks(self, flow: Flow, checks: Sequence[DatasetCheck]) -> DatasetChecks:
        return DatasetChecks(
            dataset=flow.target,
            flow=flow.name,
            checks=checks,
            storage=self.settings.storage,
            update=self.update,
            emit=self.emit,
        )

    def close(self) -> None:
        """End the update's threads, and close its connections."""
        self.maintenance.stop()
        self.heart.stop()
        self.systems.close()
