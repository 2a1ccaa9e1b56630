"""Batches and compactions of a table take turns where a compaction needs a pause between two batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turns:
    """Lets any number of batches of a table run at once, or one compaction."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._batches = 0
        self._is_alone = False

    @contextmanager
    def batch(self, stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Run a batch in the block: waits until no compaction runs or waits, then holds off compactions.
        `stopped`: returns whether to stop waiting, because a batch that begins now is refused anyway."""
        with self._condition:
            while self._is_alone and not stopped():
                self._condition.wait(0.1)
            self._batches += 1
        try:
            yield
        finally:
            with self._condition:
                self._batches -= 1
                self._condition.notify_all()

    @contextmanager
    def compaction(self, within_s: float, stopped: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Run a compaction in the block. New batches wait; those that run may end first. `within_s`: how many
        seconds they have for that. Yields whether the compaction is alone: neither a batch nor another
        compaction runs."""
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
