"""Starts and stops single flows, each in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from headrace.run.flow_reports import FlowResult
from headrace.run.stop import StopSignal

RunFlow = Callable[[StopSignal], FlowResult]
"""Runs a flow until it ends or the signal is set, and returns its result."""

_POLL_S = 0.2
_ABORT_S = 2.0
"""Seconds that flows get to end when a run is aborted."""


class Supervisor:
    """Runs the flows of an update.

    A flow can be started again after its end. After the outcome ``plan again`` it is planned again and
    continues.

    Args:
        replan: Gives what runs a flow after it was planned again; called in the flow's thread.
    """

    def __init__(
        self,
        prepare: Callable[[str], RunFlow],
        replan: Callable[[str], RunFlow],
        stop: StopSignal,
    ) -> None:
        self._prepare = prepare
        self._replan = replan
        self._stop = stop
        self._changed = threading.Condition()
        self._signals: dict[str, StopSignal] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._results: dict[str, FlowResult | BaseException] = {}

    def start(self, *flows: str) -> None:
        """Start flows together; running flows are not changed."""
        with self._changed:
            chosen = [flow for flow in flows if flow not in self._threads]
            prepared = {flow: self._prepare(flow) for flow in chosen}
            for flow, run in prepared.items():
                self._results.pop(flow, None)
                signal = self._signals[flow] = self._stop.child()
                # As a daemon, for an aborted run does not wait for a thread that waits for the JVM.
                self._threads[flow] = threading.Thread(
                    target=self._work, args=(flow, run, signal), name=f"headrace-flow-{flow}", daemon=True
                )
                self._threads[flow].start()

    def stop(self, flow: str) -> None:
        """Ask a flow to stop after its batch; returns at once."""
        with self._changed:
            if (signal := self._signals.get(flow)) is not None:
                signal.request()

    @property
    def running(self) -> frozenset[str]:
        """The flows that have been started and have not ended."""
        with self._changed:
            return frozenset(self._threads)

    def result(self, flow: str) -> FlowResult | None:
        """The last result of a flow; ``None`` while it is running, and before its first start.

        Raises:
            BaseException: The exception of the flow's thread. This is a bug: errors of a flow are results.
        """
        with self._changed:
            found = self._results.get(flow)
        if isinstance(found, BaseException):
            raise found
        return found

    def wait(self) -> None:
        """Wait until no flow is running."""
        with self._changed:
            self._changed.wait_for(lambda: not self._threads)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the flows. After an error, such as Ctrl-C, they are asked to stop first.

        After `StopSignal.abort` they get `_ABORT_S` seconds to end.
        """
        if error is not None:
            self._stop.request()
        deadline = time.monotonic() + _ABORT_S
        with self._changed:
            while self._threads and not (self._stop.aborted and time.monotonic() > deadline):
                self._changed.wait(_POLL_S)

    def _work(self, flow: str, run: RunFlow, signal: StopSignal) -> None:
        result: FlowResult | BaseException
        try:
            result = run(signal)
            while result.outcome == "plan again":
                result = self._replan(flow)(signal)
        except BaseException as error:
            result = error
        with self._changed:
            self._results[flow] = result
            del self._threads[flow]
            self._changed.notify_all()
