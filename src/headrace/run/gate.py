"""Lets the flows of one table open their checkpoints one after another."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from headrace.run.stop import StopSignal

_POLL_S = 0.05


class OpeningGate:
    """Lets flows of one table open one after another, and commit only after all have tried to open.

    An opening changes the table's metadata. At the same time, Delta would refuse other openings and batches
    as conflicts, and they would be retried.
    """

    def __init__(self, flows: Iterable[str] = ()) -> None:
        self._missing = set(flows)
        self._turn = threading.Lock()

    def expect(self, flow: str) -> None:
        """Register a flow that will start: no flow commits before it has tried to open."""
        self._missing.add(flow)

    @contextmanager
    def opening(self, flow: str) -> Iterator[None]:
        """Open a flow within this context: one flow at a time."""
        with self._turn:
            try:
                yield
            finally:
                self.leave(flow)

    def leave(self, flow: str) -> None:
        """Do not wait for this flow any more."""
        self._missing.discard(flow)

    def wait(self, stop: StopSignal) -> None:
        """Wait until every flow has tried to open, or until the update stops."""
        while self._missing and not stop.wait(_POLL_S):
            pass
