"""Lets the batches of an update run a few at a time."""

from __future__ import annotations

import threading
import time

from headrace.run.stop import StopSignal

_LONG_S = 1.0
"""A batch that runs longer no longer counts: it waits for something else than the processors."""
_PLANNING_S = 0.3
"""How long a flow whose turn it is counts before its batch begins: it may find nothing to read."""
_POLL_S, _LATER_S = 0.05, 0.5  # how often the first and the other flows that wait look for a stop


class BatchQueue:
    """Gives flows their turns, in the order in which they ask.

    If the batches of all flows run at once, each takes as long as all of them together, and so do the records
    that come meanwhile. A flow waits before Spark plans its next batch, which then has the newest records.
    `most`: the number of batches that run at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._counts_until: dict[str, float] = {}
        self._waiting: list[threading.Event] = []

    def begin(self, flow: str, stop: StopSignal) -> None:
        """Begin the batch of a flow; wait if it is not the flow's turn."""
        if self._counts_until.get(flow, 0.0) < time.monotonic():
            self._wait(flow, stop)
        self._counts_until[flow] = time.monotonic() + _LONG_S

    def end(self, flow: str, stop: StopSignal) -> None:
        """End the batch of a flow, and wait for its next turn, or a stop."""
        with self._lock:
            self._counts_until.pop(flow, None)
        self._wait(flow, stop)

    def _wait(self, flow: str, stop: StopSignal) -> None:
        called = threading.Event()
        self._waiting.append(called)
        self._waiting[0].set()
        while not (self._take(flow, called) or stop.requested):
            called.wait(_POLL_S if self._waiting[0] is called else _LATER_S)
            called.clear()
        with self._lock:
            self._waiting.remove(called)
            for first in self._waiting[:1]:
                first.set()

    def _take(self, flow: str, called: threading.Event) -> bool:
        with self._lock:
            now = time.monotonic()
            running = sum(until > now for until in self._counts_until.values())
            is_next = self._waiting[0] is called and running < self._most
            if is_next:
                self._counts_until[flow] = now + _PLANNING_S
            return is_next
