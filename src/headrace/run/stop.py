"""The request to stop an update or a flow: batches in progress are finished, no other is started."""

from __future__ import annotations

import logging
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.runtime.lazy_pyspark import SparkSession

_LOG = logging.getLogger(__name__)
_POLL_S = 0.2
_GRACE_S = 5.0
"""Seconds that other jobs than those of a batch may take to end by themselves at a stop."""


class StopRequested(Exception):
    """Raised before a batch starts to write; the next start replays it."""


class PlanAgain(Exception):
    """Raised before a query starts, or in a batch before its commit: the flow needs a new plan."""


class StopSignal:
    """A stop request that threads share; it is set once. `limit_s`: the seconds that a stop may take."""

    def __init__(self, limit_s: float = 60.0) -> None:
        self.limit_s = limit_s
        self._event = threading.Event()
        self._deadline = float("inf")
        # A signal handler may interrupt the thread that holds it, and ask again.
        self._lock = threading.RLock()
        self._children: weakref.WeakSet[StopSignal] = weakref.WeakSet()

    def child(self) -> StopSignal:
        """A signal for one flow: set by its own request, and by this signal's."""
        found = StopSignal(self.limit_s)
        with self._lock:
            self._children.add(found)
        if self.requested:
            found.request()
        if self.aborted:
            found.abort()
        return found

    def request(self) -> None:
        with self._lock:
            if self._event.is_set():
                return
            self._deadline = time.monotonic() + self.limit_s
            self._event.set()
            children = list(self._children)
        for child in children:
            child.request()

    def abort(self) -> None:
        """Request a stop that does not wait for the current batches; the next start replays them."""
        self.request()
        with self._lock:
            self._deadline = time.monotonic()
            children = list(self._children)
        for child in children:
            child.abort()

    @property
    def aborted(self) -> bool:
        return self.remaining_s <= 0

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    @property
    def remaining_s(self) -> float:
        """Seconds until the limit has passed; infinite until a stop is requested."""
        return self._deadline - time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Wait, and return at once when a stop is requested; whether it was."""
        return self._event.wait(seconds)


@contextmanager
def cancelled_at(stop: StopSignal, spark: SparkSession) -> Iterator[None]:
    """Cancel the Spark jobs of the block `_GRACE_S` after a stop is requested, at once when it is aborted."""
    context, tag, ended = spark.sparkContext, f"headrace-{uuid.uuid4().hex}", threading.Event()

    def cancel() -> None:
        while not ended.wait(_POLL_S):
            if stop.remaining_s > max(stop.limit_s - _GRACE_S, 0.0):
                continue
            try:
                # Again and again: a cancelled query may start its next job.
                context.cancelJobsWithTag(tag)
            except Exception as error:
                _LOG.debug("jobs could not be cancelled: %s", error)

    context.addJobTag(tag)
    threading.Thread(target=cancel, name="headrace-cancel", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        context.removeJobTag(tag)
