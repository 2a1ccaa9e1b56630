"""What the flows and views of one update share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from headrace.model.declarations import AppendFlow, Flow
from headrace.model.events import Emitter
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.remedies import Remedies
from headrace.plan.stages import Plan
from headrace.run.stop import StopSignal
from headrace.sinks.delta.checkpointer import LogCheckpointer
from headrace.sources.kafka.cluster import Offsets
from headrace.sources.systems import Systems
from headrace.state.lease import Heart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Mode = Literal["triggered", "continuous"]


class Build(Protocol):
    """Evaluates a query against the real tables, in the session that it is given."""

    def __call__(self, session: SparkSession, declared: Flow, kafka_limit: int = ...) -> DataFrame: ...


class BuildBetween(Protocol):
    """Evaluates a flow's query as a batch over a range of its Kafka records."""

    def __call__(
        self, session: SparkSession, flow: AppendFlow, start: Offsets, until: Offsets
    ) -> DataFrame: ...


@dataclass(frozen=True, kw_only=True)
class UpdateContext:
    """One update: who it is, what it works with, and how to stop it.

    Args:
        session: Makes a session of its own for a flow or a view, with the settings given.
        replan: Plans the pipeline again.
        log_file: Where Spark's own log goes, for errors to name.
    """

    update: str
    mode: Mode
    settings: ProjectSettings
    spark: SparkSession
    session: Callable[[dict[str, str]], SparkSession]
    build: Build
    build_between: BuildBetween
    replan: Callable[[], tuple[Plan, Build, BuildBetween]]
    systems: Systems
    emit: Emitter
    heart: Heart
    stop: StopSignal
    checkpointer: LogCheckpointer
    declared_flows: dict[TableName, frozenset[str]]
    remedies: Remedies = field(default_factory=Remedies)
    log_file: Path | None = None

    def close(self) -> None:
        """End the threads that serve the update, and its connections.

        Spark may keep what it was given for its batches, and so this, until its own memory is collected.
        """
        self.checkpointer.stop()
        self.heart.stop()
        self.systems.kafka.close()
