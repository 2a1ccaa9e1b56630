"""The flows of one table, at their start."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from headrace.run.stop import StopSignal

_POLL_S = 0.05


class OpeningGate:
    """Lets flows of one table open one after another, and commit only when all have tried.

    An opening changes the table's metadata. Beside it, Delta refuses another opening and every batch as
    conflicts: no harm, but a retry that nobody asked for.

    Args:
        flows: Those that are started together.
    """

    def __init__(self, flows: Iterable[str] = ()) -> None:
        self._missing = set(flows)
        self._turn = threading.Lock()

    def expect(self, flow: str) -> None:
        """A flow is about to start: nobody commits before it has tried to open."""
        self._missing.add(flow)

    @contextmanager
    def opening(self, flow: str) -> Iterator[None]:
        """Around a flow's opening, however it ends."""
        with self._turn:
            try:
                yield
            finally:
                self.leave(flow)

    def leave(self, flow: str) -> None:
        """Nobody waits for this flow any more."""
        self._missing.discard(flow)

    def wait(self, stop: StopSignal) -> None:
        """Wait until every flow has tried to open, or the update is asked to stop."""
        while self._missing and not stop.wait(_POLL_S):
            pass
