"""Batches and compactions of a table take turns: a compaction waits until no batch is running."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turns:
    """The turns of one table: any number of batches at once, or one compaction."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._batches = 0
        self._is_alone = False

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Hold off compactions for the block; first waits until none runs or waits."""
        with self._condition:
            self._condition.wait_for(lambda: not self._is_alone)
            self._batches += 1
        try:
            yield
        finally:
            with self._condition:
                self._batches -= 1
                self._condition.notify_all()

    @contextmanager
    def alone(self, within_s: float, stopped: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Hold off batches for the block; first waits until none runs.

        Args:
            within_s: The maximum seconds to wait. Meanwhile, no other batch begins.
            stopped: Whether to wait no longer.

        Yields:
            Whether no batch runs; false if one still does.
        """
        deadline = time.monotonic() + within_s
        with self._condition:
            if self._is_alone:
                yield False
                return
            self._is_alone = True
            while self._batches and time.monotonic() < deadline and not stopped():
                self._condition.wait(0.1)
            is_free = not self._batches
        try:
            yield is_free
        finally:
            with self._condition:
                self._is_alone = False
                self._condition.notify_all()
