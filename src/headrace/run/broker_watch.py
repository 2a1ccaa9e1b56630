"""Finds out that no Kafka broker answers while flows run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import TracebackType

from headrace.errors import BrokerUnreachableError, HeadraceError
from headrace.model.declarations import Flow
from headrace.model.event_forms import Emitter
from headrace.model.events import FlowReconnected, FlowReconnecting

INTERVAL_S = 2.0
ANSWER_S = 4.0
"""The longest wait for an answer; with the interval, a lost broker is reported within 10 s."""


class BrokerWatch:
    """Asks the cluster every few seconds whether it answers; a context manager around an update.

    Spark's Kafka source waits a minute and more before it reports that no broker answers.

    Args:
        ping: Asks the cluster; raises `BrokerUnreachableError` if it does not answer.
        remedy: What to do if it does not answer.
    """

    def __init__(
        self,
        flows: Sequence[Flow],
        update: str,
        ping: Callable[[], None],
        remedy: str,
        emit: Emitter,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._flows = flows
        self._update = update
        self._ping = ping
        self._remedy = remedy
        self._emit = emit
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-broker-watch", daemon=True)

    def __enter__(self) -> BrokerWatch:
        if self._flows:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()

    def _run(self) -> None:
        is_lost = False
        asked = datetime.now(UTC)
        while not self._stop.wait(self._interval_s):
            answered, asked = asked, datetime.now(UTC)
            error = self._ask()
            if self._stop.is_set():
                return
            if error is not None and not is_lost:
                self._report_lost(error, answered)
            elif error is None and is_lost:
                for flow in self._flows:
                    self._emit(FlowReconnected(update=self._update, flow=flow.name, dataset=flow.target))
            is_lost = error is not None

    def _ask(self) -> BrokerUnreachableError | None:
        try:
            self._ping()
        except BrokerUnreachableError as error:
            return error
        except HeadraceError:
            # Such as a login that expired: the flow reports it itself.
            return None
        return None

    def _report_lost(self, error: BrokerUnreachableError, answered: datetime) -> None:
        fact = f"the last answer came at {answered:%H:%M:%S} UTC; the flow continues when the broker is back"
        data = error.with_(facts=[fact, *error.facts], remedies=[self._remedy]).to_dict()
        for flow in self._flows:
            self._emit(FlowReconnecting(update=self._update, flow=flow.name, dataset=flow.target, error=data))
