"""What an update works with: sessions for its flows, queries over the real tables, and who is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.declare.registry import ActivePipeline, FolderHook, activate
from headrace.model.declarations import Flow, MaterializedView
from headrace.model.events import Emitter, Event, FlowFailed, FlowRetrying, ViewFailed
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.remedies import Remedies
from headrace.model.secrets import Redactor
from headrace.sources.limits import KAFKA_MAX_OFFSETS_PER_TRIGGER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.plan.intercept import SourceHook
    from headrace.plan.resolver import FindTable
    from headrace.plan.stages import Plan
    from headrace.run.context import Build, UpdateContext
    from headrace.run.stop import StopSignal
    from headrace.runtime.session import RunningSpark


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """How a pipeline runs on rows in place of its sources.

    Args:
        running: A session with a catalog of its own, into which the pipeline registers its tables.
        sources: Gives what is read in place of a source.
        folders: Gives the folder that is read in place of one of files.
        find_table: Told of each table that no file declares, before it is looked up in the storage.
    """

    running: RunningSpark
    sources: SourceHook
    folders: FolderHook
    find_table: FindTable


def build_context(
    running: RunningSpark,
    settings: ProjectSettings,
    plan: Plan,
    update: str,
    emit: Emitter,
    stop: StopSignal | None,
    remedies: Remedies,
    *,
    continuous: bool,
    rehearsal: Rehearsal | None,
) -> UpdateContext:
    from headrace.run.context import UpdateContext
    from headrace.run.publish import OffsetPublisher
    from headrace.run.stop import StopSignal
    from headrace.sinks.delta.checkpointer import LogCheckpointer
    from headrace.sources.cluster import KafkaCluster
    from headrace.state.lease import Heart

    cluster = KafkaCluster(settings.kafka)
    flows: dict[TableName, set[str]] = {}
    for planned in plan.flows:
        flows.setdefault(planned.flow.target, set()).add(planned.flow.name)
    return UpdateContext(
        update=update,
        mode="continuous" if continuous else "triggered",
        settings=settings,
        spark=running.spark,
        session=_sessions(running, settings),
        build=_builder(settings, plan, rehearsal),
        cluster=cluster,
        emit=emit,
        heart=Heart(),
        stop=stop or StopSignal(),
        publisher=OffsetPublisher(cluster if settings.consumer_groups else None),
        checkpointer=LogCheckpointer(running.spark),
        declared_flows={name: frozenset(names) for name, names in flows.items()},
        remedies=remedies,
        log_file=running.log_file,
    )


def restore(spark: SparkSession, before: Mapping[str, str | None]) -> None:
    """Leave a session of somebody else's as it was."""
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


def _sessions(running: RunningSpark, settings: ProjectSettings) -> Callable[[dict[str, str]], SparkSession]:
    """Makes clones of the session for flows and views, with its functions and temporary views.

    The session that was given stays as it is.
    """
    from pyspark.sql import SparkSession as ClassicSession

    def make(conf: dict[str, str]) -> SparkSession:
        spark = running.spark
        session = ClassicSession(spark.sparkContext, spark._jsparkSession.cloneSession())
        if not running.owned:
            from headrace.runtime.defaults import WRITER_CHECKS, build_session_settings

            chosen = build_session_settings(running.spark.sparkContext.master) | WRITER_CHECKS
            for key, value in chosen.items():
                session.conf.set(key, value)
            for key, value in settings.configuration.items():
                if key.startswith("spark.sql."):
                    session.conf.set(key, value)
        for key, value in conf.items():
            session.conf.set(key, value)
        session.catalog.setCurrentDatabase(settings.database)
        return session

    return make


def _builder(settings: ProjectSettings, plan: Plan, rehearsal: Rehearsal | None) -> Build:
    """Evaluates queries against the real tables."""
    from headrace.plan.intercept import AS_WRITTEN, Replacements
    from headrace.plan.resolve import evaluate

    replacements = AS_WRITTEN if rehearsal is None else Replacements(sources=rehearsal.sources)
    folders = None if rehearsal is None else rehearsal.folders

    def build(
        session: SparkSession,
        declared: Flow | MaterializedView,
        kafka_limit: int = KAFKA_MAX_OFFSETS_PER_TRIGGER,
    ) -> DataFrame:
        with activate(ActivePipeline(settings, lambda: session, folders=folders)):
            return evaluate(session, declared, plan, kafka_limit, replacements)

    return build


def fan_out(emitters: Sequence[Emitter], redactor: Redactor) -> Emitter:
    """One emitter for several; what they are told holds no secrets."""

    def emit(event: Event) -> None:
        if isinstance(event, FlowRetrying | FlowFailed | ViewFailed):
            # Errors quote what others have said; the rest of an event is names and numbers.
            event = replace(event, error=redactor.data(event.error))
        for one in emitters:
            one(event)

    return emit
