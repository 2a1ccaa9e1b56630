"""Updates of a pipeline: runs and full refreshes, with their logs and events."""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.errors import BrokerUnreachableError, HeadraceError
from headrace.model.declarations import Flow
from headrace.model.event_forms import Emitter, Event
from headrace.model.events import (
    FlowFailed,
    FlowReconnected,
    FlowReconnecting,
    FlowRetrying,
    LookFailed,
    ViewFailed,
)
from headrace.model.project import ProjectSettings
from headrace.model.remedies import Remedies
from headrace.model.secrets import Redactor
from headrace.plan.stages import Plan
from headrace.project.engine import Engine, plan_with_retries
from headrace.project.operations import logged_operation, new_update
from headrace.project.plan_choices import check_remedies
from headrace.run.reporting import logged_only
from headrace.runtime.broker_watch import keeping_alive
from headrace.runtime.defaults import is_local
from headrace.sources.requests import Server

if TYPE_CHECKING:
    from headrace.observe.log import LogSettings, UpdateLog
    from headrace.run.schedule import RunResult
    from headrace.run.stop import StopSignal


INTERVAL_S = 2.0
ANSWER_S = 4.0
"""The longest wait for an answer; with the interval, a lost broker is reported within 10 s."""


@dataclass
class ServerWatch:
    """Asks a server every few seconds whether it answers: Spark can wait a minute and more before it reports
    that."""

    _server: Server
    _flows: Sequence[Flow]
    _update: str
    _emit: Emitter
    _interval_s: float = INTERVAL_S

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-server-watch", daemon=True)

    def __enter__(self) -> ServerWatch:
        if self._flows:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            # Its client is closed next; with a request under way, that can abort the process.
            self._thread.join(ANSWER_S)

    def _run(self) -> None:
        is_lost = False
        last = f"it has not answered since {datetime.now(UTC):%H:%M:%S} UTC, when the run began"
        while not self._stop.wait(self._interval_s):
            error = self._ask()
            if self._stop.is_set():
                return
            if error is None:
                last = f"the last answer came at {datetime.now(UTC):%H:%M:%S} UTC"
            if error is not None and not is_lost:
                self._report_lost(error, last)
            elif error is None and is_lost:
                for flow in self._flows:
                    self._emit(FlowReconnected(update=self._update, flow=flow.name, dataset=flow.target))
            is_lost = error is not None

    def _ask(self) -> BrokerUnreachableError | None:
        try:
            self._server.ping()
        except BrokerUnreachableError as error:
            return error
        except HeadraceError:
            # Such as a login that expired: the flow reports it itself.
            return None
        return None

    def _report_lost(self, error: BrokerUnreachableError, last: str) -> None:
        fact = f"{last}; the flow continues when the server is back"
        data = error.with_(facts=[fact, *error.facts], remedies=[self._server.remedy]).to_dict()
        for flow in self._flows:
            self._emit(FlowReconnecting(update=self._update, flow=flow.name, dataset=flow.target, error=data))


@contextmanager
def watching_servers(plan: Plan, settings: ProjectSettings, update: str, emit: Emitter) -> Iterator[None]:
    watched: dict[str, tuple[Server, list[Flow]]] = {}
    for planned in plan.flows:
        servers = (source.server(settings, ANSWER_S) for source in planned.sources)
        for name, server in {one.name: one for one in servers if one is not None}.items():
            watched.setdefault(name, (server, []))[1].append(planned.flow)
    with ExitStack() as watches:
        for server, flows in watched.values():
            watches.enter_context(ServerWatch(server, flows, update, emit))
        yield


_LOG = logging.getLogger(__name__)


@dataclass
class Update:
    """One update of a pipeline: a run, or a full refresh."""

    engine: Engine
    emitters: list[Emitter]
    stop: StopSignal | None = None
    log: LogSettings | None = None
    id: str = field(default_factory=new_update)

    def __post_init__(self) -> None:
        from headrace.lineage.sender import check_lineage
        from headrace.observe.log import LogSettings

        # A wrong environment variable is an error also if there is nothing to do.
        self._log_settings = self.log or LogSettings.of()
        check_lineage(self.settings)

    @property
    def settings(self) -> ProjectSettings:
        return self.engine.settings

    def run(self, datasets: Sequence[str], remedies: Remedies, *, continuous: bool) -> RunResult:
        """Bring the tables up to date; `Pipeline.run` has the details. `continuous`: whether to run until
        `stop` is set."""
        from headrace.project.noop_check import find_up_to_date
        from headrace.run.schedule import report_up_to_date

        began = time.monotonic()
        settings = self.settings
        # A continuous update does not end by itself: it would take memory from the commands of an engine.
        self.engine.choose_jvm(shared=not continuous)
        if not (continuous or datasets or remedies.flows or self.engine.is_running):
            found = find_up_to_date(settings, lambda: self.engine.reachable(start=True).kafka)
            if found is not None:
                with self._alerting(), self._sending(settings, None) as sender:
                    self.emitters += [] if sender is None else [sender]
                    return report_up_to_date(
                        found.flows,
                        found.views,
                        pipeline=settings.name,
                        update=self.id,
                        emit=self._fan_out(),
                        started=began,
                    )
        with self._alerting(), self._logging() as own:
            self.emitters.append(own)
            result = self._execute(datasets, remedies, continuous=continuous)
        return _redacted(result, settings.redactor)

    def full_refresh(
        self, datasets: Sequence[str] | None, refresh: Sequence[str], accept_loss: Sequence[str]
    ) -> RunResult:
        """Empty streaming tables, and read their sources again; `Pipeline.full_refresh` has the details.
        `accept_loss`: those of them whose rows are removed even if they cannot be read again."""
        from headrace.project.refresh import clear_datasets, plan_refresh

        with self._alerting(), self._logging() as own:
            settings, plan = self.engine.reach(keep=True)
            with closing(self.engine.context(settings, plan, self.id)) as context:
                planned = plan_refresh(datasets, plan, context.systems, self.engine.read_table)
                planned.refuse_losses(accept_loss)
                names = planned.names
                _LOG.info("emptying %s", ", ".join(map(str, names)))
                with logged_operation(settings, self.id, "FULL_REFRESH", names):
                    clear_datasets(names, plan, context)
            self.emitters.append(own)
            chosen = () if datasets is None else (*map(str, names), *refresh)
            result = self._execute(chosen, Remedies(), continuous=False)
        return _redacted(result, self.settings.redactor)

    @contextmanager
    def _logging(self) -> Iterator[UpdateLog]:
        """The log of the update, and that of Spark if Spark is not started yet."""
        from headrace.observe.log import UpdateLog, spark_log

        settings = self.settings
        with UpdateLog(settings, self.id, self._log_settings) as log:
            self.engine.spark_log = spark_log(settings, self.id)
            facts = (settings.name, settings.profile, settings.storage.root, os.getpid(), platform.node())
            _LOG.info("pipeline %s, profile %s, storage %s, process %d on %s", *facts)
            yield log

    def _execute(self, datasets: Sequence[str], remedies: Remedies, *, continuous: bool) -> RunResult:
        from headrace.observe.event_log import EventLog
        from headrace.observe.log import update_log
        from headrace.project.alerting import check_datasets
        from headrace.project.noop_check import require_spark
        from headrace.run.schedule import execute
        from headrace.storage.guarantee import check_guarantee

        check_guarantee(self.settings.storage.root)
        settings, plan = plan_with_retries(
            lambda: self.engine.reach(datasets, record=not datasets, keep=True), self.stop
        )
        if (spark_log := self.engine.opened().log_file) is not None:
            _LOG.info("Spark's log: %s", spark_log)
        check_remedies(remedies, plan)
        if not datasets:
            check_datasets(settings, (one.name for one in plan.datasets))
        with (
            keeping_alive(settings.kafka),
            EventLog(settings.storage, settings.name, self.id, plan, settings.redactor) as log,
            ExitStack() as following,
        ):
            self.emitters.append(log)
            for listener in self._listeners(settings, plan):
                if (follow := following.enter_context(listener)) is not None:
                    self.emitters.append(follow)
            emit = self._fan_out()
            context = self.engine.context(
                settings, plan, self.id, emit, self.stop, remedies, continuous=continuous
            )
            with (
                closing(context),
                watching_servers(plan, settings, self.id, emit),
                self._scaling(settings, emit) if continuous else nullcontext(),
            ):
                result = execute(plan, context)
            if result.outcome == "failed":
                # Even if the next run has nothing to do, it starts Spark, and the event log says so.
                settings.storage.last_plan(settings.home).delete()
            elif result.outcome == "stopped":
                require_spark(settings)
            return replace(result, log_file=update_log(settings, self.id))

    def _alerting(self) -> AbstractContextManager[object]:
        from headrace.project.alerting import RunAlerts

        # An alert of a rule that was removed ends, too.
        held = self.settings.storage.alerts(self.settings.name)
        if not (self.settings.alerts.rules or held.exists()):
            return nullcontext()
        watching = [*self.emitters]
        return RunAlerts(self.settings, self.id, lambda event: emit_to(watching, event))

    def _listeners(
        self, settings: ProjectSettings, plan: Plan
    ) -> Iterator[AbstractContextManager[Emitter | None]]:
        """What tells other systems of the update; each gives what takes its events, or ``None``."""
        from headrace.telemetry.traces import tracing

        yield tracing()
        yield self._sending(settings, plan)

    def _sending(
        self, settings: ProjectSettings, plan: Plan | None
    ) -> AbstractContextManager[Emitter | None]:
        """What sends OpenLineage's events of the update, if the spec says where."""
        from headrace.lineage.sender import sending_lineage

        return sending_lineage(settings, self.id, plan, self._fan_out())

    def _scaling(self, settings: ProjectSettings, emit: Emitter) -> AbstractContextManager[object]:
        """Sets the number of executors during a continuous run on a cluster, if the spec says so."""
        from headrace.declare.spec_checks import check_executors
        from headrace.run.executors import ExecutorScaling, FlowLoads, SparkExecutors

        spark = self.engine.opened().spark
        limits = settings.cluster.executors
        if limits is None or is_local(spark.sparkContext.master):
            return nullcontext()
        check_executors(lambda key: spark.conf.get(key, None))
        loads = FlowLoads()
        self.emitters.append(loads.observe)
        return ExecutorScaling(limits, SparkExecutors(spark), loads, emit, self.id)

    def _fan_out(self) -> Emitter:
        """One emitter for all; an emitter that raises is logged, and fails no flow."""

        def emit(event: Event) -> None:
            if isinstance(event, FlowReconnecting | FlowRetrying | FlowFailed | ViewFailed | LookFailed):
                # Errors quote texts of other systems; the rest of an event is names and numbers.
                event = replace(event, error=self.settings.redactor.data(event.error))
            emit_to(self.emitters, event)

        return emit


def emit_to(emitters: Iterable[Emitter], event: Event) -> None:
    """Give an event to each emitter; one that raises is logged."""
    for one in emitters:
        with logged_only(f"the event {type(event).__name__}"):
            one(event)


def _redacted(result: RunResult, redactor: Redactor) -> RunResult:
    return replace(
        result,
        flows=tuple(replace(one, error=one.error and redactor.error(one.error)) for one in result.flows),
        views=tuple(replace(one, error=one.error and redactor.error(one.error)) for one in result.views),
    )
