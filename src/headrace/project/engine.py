"""Creates what a pipeline works with: its session, its Kafka connection, its plan, the context of an
update."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.declare.loader import activate, load_declarations
from headrace.declare.outside_names import OutsideName, entry_lines, find_outside
from headrace.declare.pipeline_files import find_files
from headrace.declare.registry import ActivePipeline
from headrace.errors import (
    HeadraceError,
    PathUnmappedError,
    PipelineFileFailedError,
    PlanFailedError,
    SchemaRegistryUnreachableError,
    TableNotFoundError,
)
from headrace.model.declarations import Declarations
from headrace.model.event_forms import Emitter
from headrace.model.kafka_settings import NO_ADDRESS, KafkaConnection
from headrace.model.names import is_own_catalog
from headrace.model.project import ENTRY_MISSING, ProjectSettings
from headrace.model.remedies import Remedies
from headrace.plan.modes import REAL_SOURCES, SourceOverrides
from headrace.project.plan_choices import select
from headrace.run.stop import StopSignal
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.storage.location import Location

if TYPE_CHECKING:
    from headrace.plan.stages import Plan
    from headrace.project.queries import Queries
    from headrace.run.context import UpdateContext
    from headrace.runtime.session import RunningSpark
    from headrace.runtime.storage_support import StorageSupport
    from headrace.sinks.delta.table import TableState
    from headrace.sources.requests import Systems

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoppedBroker(KafkaConnection):
    """The embedded broker while it is not running."""

    asked: list[bool] = field(default_factory=list, repr=False, compare=False)

    def for_spark(self) -> dict[str, str]:
        self.asked.append(True)
        return super().for_spark()


class Engine:
    """The session, connection and plans of one pipeline; Spark is started at its first use. `overrides`: how
    it runs on rows in place of its sources, if it does."""

    def __init__(self, settings: ProjectSettings, overrides: SourceOverrides = REAL_SOURCES) -> None:
        self.settings = settings
        self._is_shared = True
        self.spark_log: Path | None = None  # the file for the log of Spark, if Spark is started
        self._overrides = overrides
        self._running: RunningSpark | None = overrides.running
        self._replaced: dict[str, str | None] = {}
        self.other_clusters: tuple[KafkaConnection, ...] = ()
        """The Kafka clusters beside the profile's that the last plan reads, with their logins."""

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def close(self) -> None:
        """Stop the Spark that was started here; an existing session is not stopped."""
        if self._running is not None:
            if not self._running.owned:
                from headrace.plan.evaluate import restore_settings

                # This pipeline did not start the session.
                restore_settings(self._running.spark, self._replaced)
            self._running.stop()
            self._running = None

    def choose_jvm(self, *, shared: bool) -> None:
        """Choose whether the next use of Spark may be in an engine, the JVM that commands share."""
        self._is_shared = shared
        if not shared and self._running is not None and self._running.in_engine:
            self.close()

    def plan(
        self,
        settings: ProjectSettings,
        datasets: Sequence[str],
        *,
        offline: bool,
        record: bool = False,
        keep: bool = False,
    ) -> Plan:
        from headrace.plan.build import build_plan
        from headrace.plan.evaluate import loading
        from headrace.project.noop_check import record_plan
        from headrace.state.kept_schemas import keep_schema

        overrides = self._overrides
        active = ActivePipeline(settings, self.session, folders=overrides.folders, quarantines=True)
        with listing_entries(settings), loading(settings, self.session, overrides.sources) as session:
            declarations: Declarations = load_declarations(settings, session, active.schema_files)
        for declared in (*declarations.datasets, *declarations.flows):
            settings.redactor.add_settings(getattr(declared, "spark_conf", {}))
        with listing_entries(settings), activate(active):
            plan = build_plan(
                self.session(),
                settings,
                declarations,
                offline=offline,
                sources=overrides.sources,
                find_table=overrides.find_table,
            )
        overrides.check(plan)
        connections = (source.connection for planned in plan.flows for source in planned.sources)
        self.other_clusters = tuple(one for one in connections if isinstance(one, KafkaConnection))
        if keep:
            for key, schema in active.inferred:
                keep_schema(settings.storage.schemas, key, schema)
        if record:
            record_plan(plan, declarations, active.schema_files)
        return select(plan, datasets) if datasets else plan

    def session(self) -> SparkSession:
        return self.opened().spark

    def opened(self) -> RunningSpark:
        if self._running is None:
            from headrace.runtime.session import open_spark
            from headrace.runtime.submit import spark_settings

            settings = self.settings
            self._running = open_spark(
                settings.name,
                conf=spark_settings(settings),
                master=settings.master,
                memory=settings.memory,
                log_file=self.spark_log,
                redactor=settings.redactor,
                shared=self._is_shared,
                storage=find_session_support(settings),
            )
            spark = self._running.spark
            _LOG.info("Spark %s on %s", spark.version, spark.sparkContext.master)
            self._replaced = {key: spark.conf.get(key, None) for key in settings.own_values}
            for key, value in settings.own_values.items():
                spark.conf.set(key, value)
        return self._running

    def read_table(self, path: Location) -> TableState:
        """A table's newest snapshot; without Spark if its checksum file has all that is needed."""
        from headrace.sinks.delta.table import read_checksum, read_state

        return read_checksum(path) or read_state(self.session(), path)

    def systems(
        self, settings: ProjectSettings, *, publishes: bool = False, asks_once: bool = False
    ) -> Systems:
        """The systems of the pipeline's sources. `asks_once`: whether a system that did not answer is not
        asked again."""
        from headrace.sources.requests import Asking, Systems

        asking = Asking(settings=lambda: settings, publishes=publishes, asks_once=asks_once)
        return Systems(storage=settings.storage, read_table=self.read_table, asking=asking)

    def connection(self) -> KafkaConnection:
        from headrace.runtime.broker import resolve_embedded

        return resolve_embedded(self.settings.kafka) or self.settings.kafka

    def reachable(self, *, start: bool) -> ProjectSettings:
        """The settings with the embedded broker's real address."""
        kafka = self.settings.kafka
        if not kafka.is_embedded:
            return self.settings
        from headrace.runtime.broker import ensure_embedded, resolve_embedded

        found: KafkaConnection | None = ensure_embedded(kafka) if start else resolve_embedded(kafka)
        if found is None:
            found = StoppedBroker(
                {**kafka.settings, "bootstrap.servers": NO_ADDRESS},
                kafka.places,
                broker=kafka.broker,
                of_embedded=True,
            )
        return replace(self.settings, kafka=found)

    def reach(
        self, datasets: Sequence[str] = (), *, record: bool = False, keep: bool = False
    ) -> tuple[ProjectSettings, Plan]:
        """Plan with real sources; the embedded broker is started only if a query reads Kafka. Return the
        settings with the broker's address, and the plan."""
        settings = self.reachable(start=False)
        if isinstance(settings.kafka, StoppedBroker):
            try:
                plan = self.plan(settings, datasets, offline=True, record=record, keep=keep)
            except PipelineFileFailedError:
                # Code at module level may have read a topic. It runs again with the broker.
                if not settings.kafka.asked:
                    raise
            else:
                if not settings.kafka.asked:
                    return settings, plan
            settings = self.reachable(start=True)
        return settings, self.plan(settings, datasets, offline=True, record=record, keep=keep)

    def context(
        self,
        settings: ProjectSettings,
        plan: Plan,
        update: str,
        emit: Emitter = lambda _: None,
        stop: StopSignal | None = None,
        remedies: Remedies = Remedies(),  # noqa: B008
        *,
        continuous: bool = False,
    ) -> UpdateContext:
        from headrace.maintain.scheduler import MaintenanceScheduler
        from headrace.run.context import UpdateContext
        from headrace.run.limits import most_tasks
        from headrace.run.queue import BatchQueue
        from headrace.sinks.delta.compaction import LogCheckpointer
        from headrace.state.lease import Heart

        loading = Lock()  # the pipeline's files run, and two threads must not load modules at once

        def replan() -> tuple[Plan, Queries]:
            with loading:
                new = self.plan(settings, (), offline=True, keep=True)
            return new, self.queries(settings, new)

        running = self.opened()
        sessions = _sessions(running, settings)
        stop = stop or StopSignal()
        return UpdateContext(
            update=update,
            mode="continuous" if continuous else "triggered",
            settings=settings,
            spark=running.spark,
            session=sessions,
            queries=self.queries(settings, plan),
            replan=lambda: plan_with_retries(replan, stop),
            systems=self.systems(settings, publishes=settings.consumer_groups),
            emit=emit,
            heart=Heart(),
            stop=stop,
            maintenance=MaintenanceScheduler(
                checkpointer=LogCheckpointer(running.spark),
                session=lambda: sessions({}),
                settings=settings,
                emit=emit,
                update=update,
                continuous=continuous,
                stopping=lambda: stop.requested,
            ),
            queue=BatchQueue(most_tasks(running.spark)) if continuous else None,
            remedies=remedies,
            log_file=running.log_file,
        )

    def queries(self, settings: ProjectSettings, plan: Plan) -> Queries:
        from headrace.project.queries import Queries

        return Queries(settings, plan, self.session, self._overrides)


def find_session_support(settings: ProjectSettings) -> StorageSupport:
    """What a session needs for the pipeline's storage and its connections with Kafka."""
    from headrace.storage.s3.spark import find_support

    is_iam = any(one.needs_iam for one in (settings.kafka, *settings.brokers.named))
    return find_support(settings).with_jar_sets(["msk"] if is_iam else [])


def _sessions(running: RunningSpark, settings: ProjectSettings) -> Callable[[dict[str, str]], SparkSession]:
    """Makes clones of the session for flows and views, with its functions and temporary views. The session
    that was given stays as it is."""
    from pyspark.sql import SparkSession as ClassicSession

    if settings.database != "default":
        # A pipeline of views alone has no streaming table whose opening creates the schema.
        running.spark.sql(f"CREATE DATABASE IF NOT EXISTS `{settings.database}`")

    def make(conf: dict[str, str]) -> SparkSession:
        spark = running.spark
        session = ClassicSession(spark.sparkContext, spark._jsparkSession.cloneSession())
        if not running.owned:
            from headrace.runtime.defaults import WRITER_CHECKS, build_session_settings, find_named_master
            from headrace.runtime.storage_support import CHECKPOINT_FILES
            from headrace.storage.s3.spark import find_support

            chosen = build_session_settings(find_named_master(spark.sparkContext)) | WRITER_CHECKS
            if (fence := find_support(settings).settings.get(CHECKPOINT_FILES)) is not None:
                chosen[CHECKPOINT_FILES] = fence
            for key, value in chosen.items():
                session.conf.set(key, value)
            jvm: Any = spark.sparkContext._jvm
            for key, value in settings.configuration.items():
                # Static settings, such as those of the metastore, belong to the existing session.
                is_static = jvm.org.apache.spark.sql.internal.SQLConf.isStaticConfigKey(key)
                if key.startswith("spark.sql.") and not is_static:
                    session.conf.set(key, value)
        for key, value in conf.items():
            session.conf.set(key, value)
        session.catalog.setCurrentDatabase(settings.database)
        return session

    return make


_WAITS_S = (1.0, 2.0, 4.0, 8.0)
PlanT = TypeVar("PlanT")


def plan_with_retries(plan: Callable[[], PlanT], stop: StopSignal | None) -> PlanT:
    """Plan a run; a query that reads Avro asks the schema registry for its columns."""
    signal = stop or StopSignal()
    for wait_s in _WAITS_S:
        try:
            return plan()
        except SchemaRegistryUnreachableError as error:
            _LOG.warning("%s; planning again in %.0f s", error.summary, wait_s)
            if signal.wait(wait_s):
                raise
    return plan()


@contextmanager
def listing_entries(settings: ProjectSettings) -> Iterator[None]:
    """Add to an error about a missing entry all the entries that the pipeline's files need."""
    try:
        yield
    except HeadraceError as error:
        raise _with_entries(error, settings) from error.__cause__


def _with_entries(error: HeadraceError, settings: ProjectSettings) -> HeadraceError:
    errors = error.errors if isinstance(error, PlanFailedError) else (error,)
    missing = tuple(one for each in errors for one in _missing(each))
    if not missing:
        return error
    named = [one for one in find_outside(find_files(settings), settings.root) if _is_open(one, settings)]
    known = {one.text.casefold() for one in named}
    named += [one for one in missing if one.text.casefold() not in known]
    spec = settings.spec_to_edit
    lines = [f"entries for {spec}, with paths to correct:"]
    if settings.is_bundle:
        lines.append(f"  bundle: {settings.file.name}")
    lines += entry_lines(named, indent="  ")
    remedies = _without_entry(error)
    if isinstance(error, PlanFailedError):
        error = error.with_errors(one.with_(remedies=_without_entry(one)) for one in errors)
    return error.with_(
        facts=(*error.facts, "\n".join(lines)),
        remedies=(
            f"add the entries above to {settings.spec_to_edit}, with the paths that have the data",
            *remedies,
        ),
        params={**error.params, "missing": sorted(one.text for one in named)},
    )


def _without_entry(error: HeadraceError) -> list[str]:
    return [one for one in error.remedies if not one.startswith(ENTRY_MISSING)]


def _missing(error: HeadraceError) -> Iterator[OutsideName]:
    if error.location is None:
        return
    name = str(error.params.get("name", ""))
    if isinstance(error, TableNotFoundError) and "." in name:
        yield OutsideName("table", name, error.location)
    if isinstance(error, PathUnmappedError):
        yield OutsideName("path", str(error.params["path"]), error.location)


def _is_open(one: OutsideName, settings: ProjectSettings) -> bool:
    """Whether the spec has no entry for a name or a path."""
    if one.kind == "path":
        return settings.paths.find(one.text) is None
    parts = tuple(one.text.split("."))
    return not is_own_catalog(parts[0], settings.catalog) and settings.tables.find(parts) is None
