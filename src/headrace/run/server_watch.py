"""Finds out that a server of sources does not answer while flows run."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.errors import BrokerUnreachableError, HeadraceError
from headrace.model.declarations import Flow
from headrace.model.event_forms import Emitter
from headrace.model.events import FlowReconnected, FlowReconnecting
from headrace.model.project import ProjectSettings
from headrace.plan.stages import Plan
from headrace.sources.requests import Server

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
