"""A pipeline as a library: load, plan, run, verify. The command line is a thin shell over it."""

from __future__ import annotations

import logging
import os
import platform
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.declare.registry import ActivePipeline, activate
from headrace.declare.spec import load_project
from headrace.errors import HeadraceError
from headrace.model.connections import KafkaConnection
from headrace.model.declarations import Declarations, Flow, MaterializedView
from headrace.model.events import Emitter, Event, FlowFailed, FlowRetrying, ViewFailed
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.remedies import Remedies
from headrace.model.secrets import Redactor
from headrace.project.selection import check_remedies, select
from headrace.sources.limits import KAFKA_MAX_OFFSETS_PER_TRIGGER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.observe.log import LogSettings, UpdateLog
    from headrace.observe.snapshot import Snapshot
    from headrace.plan.stages import Plan
    from headrace.run.context import Build, UpdateContext
    from headrace.run.stop import StopSignal
    from headrace.run.update import RunResult
    from headrace.runtime.session import RunningSpark
    from headrace.verify.report import Proof

_LOG = logging.getLogger(__name__)
_UNREACHED = "127.0.0.1:9"
"""Stands for the embedded broker while it is down and nobody needs it to answer."""


class Pipeline:
    """A pipeline on disk.

    Example:
        >>> from headrace import Pipeline
        >>> with Pipeline.load("shop") as pipeline:  # doctest: +SKIP
        ...     pipeline.run()
        ...     assert pipeline.verify().proven
    """

    def __init__(self, settings: ProjectSettings) -> None:
        self.settings = settings
        self._running: RunningSpark | None = None
        self._spark_log: Path | None = None
        self._replaced: dict[str, str | None] = {}

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        *,
        profile: str | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> Pipeline:
        """Read a pipeline's spec.

        Args:
            path: Its folder or spec file; by default found from the current folder upward.
            profile: The profile's name; by default ``HEADRACE_PROFILE``, else ``dev``.
            overrides: Values for keys of the spec, by dotted name; they win over spec and profile.

        Raises:
            UsageError: The spec is missing or wrong.
        """
        found = None if path is None else Path(path)
        return cls(load_project(found, profile=profile, overrides=overrides or {}))

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the Spark that this pipeline started; a session of somebody else's is left alone."""
        if self._running is not None:
            if not self._running.owned:
                _restore(self._running.spark, self._replaced)
            self._running.stop()
            self._running = None

    def plan(self, datasets: Sequence[str] = (), *, offline: bool = False) -> Plan:
        """Resolve the pipeline; writes nothing.

        Args:
            datasets: The datasets to plan; all by default.
            offline: Whether to leave out what would change in the storage.

        Raises:
            UsageError: The pipeline is wrong, with file and line.
        """
        with self._redacted():
            settings = self._reachable(start=False)
            plan = self._plan(settings, datasets, offline=offline)
            if not offline:
                from headrace.plan.folders import find_files

                plan = find_files(plan)
            if offline or settings.kafka.bootstrap_servers == _UNREACHED:
                return plan
            from headrace.plan.topics import find_topics
            from headrace.sources.cluster import KafkaCluster

            return find_topics(plan, KafkaCluster(settings.kafka))

    def run(
        self,
        datasets: Sequence[str] = (),
        *,
        continuous: bool = False,
        remedies: Remedies | None = None,
        emit: Emitter | None = None,
        stop: StopSignal | None = None,
        log: LogSettings | None = None,
    ) -> RunResult:
        """Bring the tables up to date.

        Args:
            datasets: The datasets to run; all by default.
            continuous: Whether to go on until `stop` is set, rather than to what is there now.
            remedies: What to do about earlier refusals.
            emit: Takes the events of the update as they happen; called from several threads.
            stop: Set it to stop.
            log: How its log is written; by default as the environment says. A run that finds nothing
                to do leaves none.

        Raises:
            HeadraceError: The update could not start; what single flows meet is in the result.
        """
        with self._redacted():
            result = self._run(datasets, continuous, remedies or Remedies(), emit, stop, log)
        for error in result.errors:
            self.settings.redactor.error(error)
        return result

    def full_refresh(
        self,
        datasets: Sequence[str],
        *,
        emit: Emitter | None = None,
        stop: StopSignal | None = None,
        log: LogSettings | None = None,
    ) -> RunResult:
        """Empty streaming tables and read everything again.

        Args:
            datasets: Their names. Streams that read them must be among them.
            emit: Takes the events of the run that follows.
            stop: Set it to stop that run; the next one goes on.
            log: How its log is written; by default as the environment says.

        Raises:
            HeadraceError: A name is unknown, a stream downstream is not among them, or a table
                cannot be emptied.
        """
        from headrace.observe.log import LogSettings
        from headrace.project.refresh import clear_datasets

        with self._redacted():
            how = log or LogSettings.of()
            settings = self._reachable(start=True)
            update = _new_update()
            with self._logging(settings, update, how) as own:
                plan = self._plan(settings, (), offline=True, keep=True)
                context = self._context(settings, plan, update, _ignore, None, Remedies(), continuous=False)
                try:
                    _LOG.info("emptying %s", ", ".join(datasets))
                    clear_datasets(datasets, plan, context)
                finally:
                    context.close()
                emitters: list[Emitter] = [emit, own] if emit else [own]
                result = self._execute(
                    settings, datasets, update, emitters, stop, Remedies(), continuous=False
                )
        for error in result.errors:
            self.settings.redactor.error(error)
        return result

    def verify(
        self,
        datasets: Sequence[str] = (),
        *,
        since: datetime | int | None = None,
        require: str | None = None,
    ) -> Proof:
        """Prove that every record is in the tables exactly once; starts no JVM."""
        from headrace.runtime.kafka_faults import find_fault
        from headrace.verify.proof import verify_pipeline

        names = [TableName.parse(name, self.settings.database) for name in datasets]
        connection = self._connection()
        with self._redacted():
            return verify_pipeline(
                self.settings,
                datasets=names,
                since=since,
                require=require,  # type: ignore[arg-type]
                connection=connection,
                explain=lambda said: find_fault(connection, said),
            )

    def status(self) -> Snapshot:
        """How the pipeline stands, from what is on disk and in the broker; starts no JVM."""
        from headrace.observe.snapshot import take_snapshot

        with self._redacted():
            return take_snapshot(self.settings, self._connection())

    @contextmanager
    def _redacted(self) -> Iterator[None]:
        """Errors leave without the pipeline's secrets."""
        try:
            yield
        except HeadraceError as error:
            self.settings.redactor.error(error)
            raise

    def _run(
        self,
        datasets: Sequence[str],
        continuous: bool,
        remedies: Remedies,
        emit: Emitter | None,
        stop: StopSignal | None,
        log: LogSettings | None,
    ) -> RunResult:
        from headrace.observe.log import LogSettings
        from headrace.project.standing import find_up_to_date
        from headrace.run.update import report_up_to_date
        from headrace.sources.cluster import KafkaCluster

        began = time.monotonic()
        how = log or LogSettings.of()
        settings = self._reachable(start=True)
        update = _new_update()
        emitters: list[Emitter] = [emit] if emit else []
        if not (continuous or datasets or remedies.flows or self._running):
            found = find_up_to_date(settings, KafkaCluster(settings.kafka))
            if found is not None:
                return report_up_to_date(
                    found.flows,
                    found.views,
                    pipeline=settings.name,
                    update=update,
                    emit=_fan_out(emitters, settings.redactor),
                    started=began,
                )
        with self._logging(settings, update, how) as own:
            emitters.append(own)
            return self._execute(settings, datasets, update, emitters, stop, remedies, continuous=continuous)

    @contextmanager
    def _logging(self, settings: ProjectSettings, update: str, how: LogSettings) -> Iterator[UpdateLog]:
        """An update's log, and Spark's beside it, where Spark has still to be started."""
        from headrace.observe.log import UpdateLog, spark_log

        with UpdateLog(settings, update, how) as log:
            self._spark_log = spark_log(settings, update)
            facts = (settings.name, settings.profile, settings.storage.root, os.getpid(), platform.node())
            _LOG.info("pipeline %s, profile %s, storage %s, process %d on %s", *facts)
            yield log

    def _execute(
        self,
        settings: ProjectSettings,
        datasets: Sequence[str],
        update: str,
        emitters: list[Emitter],
        stop: StopSignal | None,
        remedies: Remedies,
        *,
        continuous: bool,
    ) -> RunResult:
        from headrace.observe.events import EventLog, prune_events
        from headrace.observe.log import update_log
        from headrace.run.update import execute

        plan = self._plan(settings, datasets, offline=True, record=not datasets, keep=True)
        if (spark_log := self._opened().log_file) is not None:
            _LOG.info("Spark's log: %s", spark_log)
        check_remedies(remedies, plan)
        with EventLog.open(settings.storage, update) as log:
            emitters.append(log)
            prune_events(settings.storage)
            emit = _fan_out(emitters, settings.redactor)
            context = self._context(settings, plan, update, emit, stop, remedies, continuous=continuous)
            try:
                return replace(execute(plan, context), log_file=update_log(settings, update))
            finally:
                context.close()

    def _plan(
        self,
        settings: ProjectSettings,
        datasets: Sequence[str],
        *,
        offline: bool,
        record: bool = False,
        keep: bool = False,
    ) -> Plan:
        from headrace.declare.loader import load_declarations
        from headrace.plan.intercept import loading
        from headrace.plan.resolve import build_plan
        from headrace.project.standing import record_plan
        from headrace.state.kept_schemas import keep_schema

        active = ActivePipeline(settings, self._session)
        with loading(settings, self._session) as session:
            declarations: Declarations = load_declarations(settings, session, active.schema_files)
        for declared in (*declarations.datasets, *declarations.flows):
            settings.redactor.add_settings(getattr(declared, "spark_conf", {}))
        with activate(active):
            plan = build_plan(self._session(), settings, declarations, offline=offline)
        if keep:
            for key, schema in active.inferred:
                keep_schema(settings.storage.schemas, key, schema)
        if record:
            record_plan(plan, declarations, active.schema_files)
        return select(plan, datasets) if datasets else plan

    def _session(self) -> SparkSession:
        return self._opened().spark

    def _opened(self) -> RunningSpark:
        if self._running is None:
            from headrace.runtime.session import open_spark

            settings = self.settings
            conf = {k: v for k, v in settings.configuration.items() if k.startswith("spark.")}
            self._running = open_spark(
                settings.name,
                conf=conf,
                master=settings.master,
                memory=settings.memory,
                log_file=self._spark_log,
                redactor=settings.redactor,
            )
            spark = self._running.spark
            _LOG.info("Spark %s on %s", spark.version, spark.sparkContext.master)
            self._replaced = {key: spark.conf.get(key, None) for key in settings.own_values}
            for key, value in settings.own_values.items():
                spark.conf.set(key, value)
        return self._running

    def _connection(self) -> KafkaConnection:
        """How to reach the broker, or that it is the embedded one and does not run."""
        from headrace.runtime.broker import resolve_embedded

        return resolve_embedded(self.settings.kafka) or self.settings.kafka

    def _reachable(self, *, start: bool) -> ProjectSettings:
        """The settings with the embedded broker's real address."""
        kafka = self.settings.kafka
        if not kafka.is_embedded:
            return self.settings
        from headrace.runtime.broker import ensure_embedded, resolve_embedded

        found: KafkaConnection | None = ensure_embedded(kafka) if start else resolve_embedded(kafka)
        if found is None:
            found = kafka.with_bootstrap_servers(_UNREACHED)
        return replace(self.settings, kafka=found)

    def _context(
        self,
        settings: ProjectSettings,
        plan: Plan,
        update: str,
        emit: Emitter,
        stop: StopSignal | None,
        remedies: Remedies,
        *,
        continuous: bool,
    ) -> UpdateContext:
        from headrace.run.context import UpdateContext
        from headrace.run.publish import OffsetPublisher
        from headrace.run.stop import StopSignal
        from headrace.sinks.delta.checkpointer import LogCheckpointer
        from headrace.sources.cluster import KafkaCluster
        from headrace.state.lease import Heart

        cluster = KafkaCluster(settings.kafka)
        running = self._opened()
        flows: dict[TableName, set[str]] = {}
        for planned in plan.flows:
            flows.setdefault(planned.flow.target, set()).add(planned.flow.name)
        return UpdateContext(
            update=update,
            mode="continuous" if continuous else "triggered",
            settings=settings,
            spark=running.spark,
            session=_sessions(running, settings),
            build=_builder(settings, plan),
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


def _new_update() -> str:
    """An id that begins with the time, so that later updates sort behind."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"


def _restore(spark: SparkSession, before: Mapping[str, str | None]) -> None:
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


def _builder(settings: ProjectSettings, plan: Plan) -> Build:
    """Evaluates queries against the real tables."""
    from headrace.plan.resolve import evaluate

    def build(
        session: SparkSession,
        declared: Flow | MaterializedView,
        kafka_limit: int = KAFKA_MAX_OFFSETS_PER_TRIGGER,
    ) -> DataFrame:
        with activate(ActivePipeline(settings, lambda: session)):
            return evaluate(session, declared, plan, kafka_limit)

    return build


def _fan_out(emitters: Sequence[Emitter], redactor: Redactor) -> Emitter:
    def emit(event: Event) -> None:
        if isinstance(event, FlowRetrying | FlowFailed | ViewFailed):
            # Errors quote what others have said; the rest of an event is names and numbers.
            event = replace(event, error=redactor.data(event.error))
        for one in emitters:
            one(event)

    return emit


def _ignore(event: Event) -> None:
    pass
