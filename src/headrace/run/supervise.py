"""Runs named tasks, such as flows and the refreshes of views, each in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.run.stop import StopSignal

Result = TypeVar("Result")

_POLL_S = 0.2
_ABORT_S = 2.0
"""Seconds that tasks get to end when a run is aborted."""


class Supervisor(Generic[Result]):
    """Runs tasks until they end or the stop signal is set; a task can be started again after its end.
    `prepare`: gives the function of a task; called before the task's thread starts."""

    def __init__(
        self, kind: str, prepare: Callable[[str], Callable[[StopSignal], Result]], stop: StopSignal
    ) -> None:
        self._kind = kind
        self._prepare = prepare
        self._stop = stop
        self._changed = threading.Condition()
        self._signals: dict[str, StopSignal] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._results: dict[str, Result] = {}
        self._bugs: dict[str, BaseException] = {}

    def start(self, *names: str) -> None:
        """Start tasks together; running tasks are not changed."""
        with self._changed:
            chosen = [name for name in names if name not in self._threads]
            prepared = {name: self._prepare(name) for name in chosen}
            for name, run in prepared.items():
                self._results.pop(name, None)
                self._bugs.pop(name, None)
                signal = self._signals[name] = self._stop.child()
                # As a daemon, for an aborted run does not wait for a thread that waits for the JVM.
                self._threads[name] = threading.Thread(
                    target=self._work,
                    args=(name, run, signal),
                    name=f"headrace-{self._kind}-{name}",
                    daemon=True,
                )
                self._threads[name].start()

    def stop(self, name: str) -> None:
        with self._changed:
            if (signal := self._signals.get(name)) is not None:
                signal.request()

    @property
    def running(self) -> frozenset[str]:
        """The tasks that have been started and have not ended."""
        with self._changed:
            return frozenset(self._threads)

    def result(self, name: str) -> Result | None:
        """The last result of a task; ``None`` while it is running, and before its first start."""
        with self._changed:
            if (bug := self._bugs.get(name)) is not None:
                raise bug
            return self._results.get(name)

    def wait(self, most: int = 0, seconds: float | None = None) -> None:
        """Wait until at most some tasks are running, or for a time."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._threads) <= most, seconds)

    def __enter__(self) -> Supervisor[Result]:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Wait for the tasks, after an abort `_ABORT_S` seconds. After an error they are asked to stop
        first."""
        if error is not None:
            self._stop.request()
        deadline = time.monotonic() + _ABORT_S
        with self._changed:
            while self._threads and not (self._stop.aborted and time.monotonic() > deadline):
                self._changed.wait(_POLL_S)

    def _work(self, name: str, run: Callable[[StopSignal], Result], signal: StopSignal) -> None:
        try:
            result = run(signal)
        except BaseException as error:
            with self._changed:
                self._bugs[name] = error
        else:
            with self._changed:
                self._results[name] = result
        with self._changed:
            del self._threads[name]
            self._changed.notify_all()
