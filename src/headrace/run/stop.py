"""The request to stop an update: batches in progress are finished, no other is started."""

from __future__ import annotations

import threading
import time


class StopRequested(Exception):
    """Raised at the top of a batch that has not begun; the next start replays it."""


class StopSignal:
    """Set once, seen by every thread of an update.

    Args:
        limit_s: The longest that an update may take to stop, in seconds.
    """

    def __init__(self, limit_s: float = 60.0) -> None:
        self.limit_s = limit_s
        self._event = threading.Event()
        self._deadline = float("inf")

    def request(self) -> None:
        if not self._event.is_set():
            self._deadline = time.monotonic() + self.limit_s
            self._event.set()

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    @property
    def remaining_s(self) -> float:
        """Seconds until the limit has passed; infinite while nobody has asked."""
        return self._deadline - time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Wait, and return at once when asked to stop; whether it was."""
        return self._event.wait(seconds)
