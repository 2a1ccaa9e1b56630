"""Delta checkpoints, written beside the commits instead of within them.

A commit that also writes Delta's checkpoint takes several times as long as the others, and records
wait for it. So our tables ask Delta for few checkpoints (``delta.checkpointInterval``), and a
thread writes them every `EVERY` commits while the flows go on.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from headrace.runtime.engine.record import pool_name
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.table import delta_log
from headrace.storage.location import Location
from headrace.storage.table_log import last_checkpoint

EVERY = 100
"""Commits between two checkpoints, unless the checkpoints of the table take long: a reader replays few."""
REMOTE_EVERY = 25
"""The same in an object store, where a reader gets each commit with a request."""
MOST = 900
"""The maximum number of commits between two checkpoints of a table whose checkpoints take long. After 1,000,
Delta itself writes one within a commit."""
_SHARE = 20
"""After a checkpoint, the pause is so many times as long as its writing: a checkpoint lists all files, also
those that were removed in the last week, and takes long for a large table."""

_POOL = "headrace-maintenance"
_LOG = logging.getLogger(__name__)


class LogCheckpointer:
    """Writes the checkpoints of the tables that an update commits to.

    A failure does not fail the flow: the table is whole without a checkpoint, and the next
    offer tries again.
    """

    def __init__(self, spark: SparkSession, every: int | None = None) -> None:
        self._spark = spark
        self._every = every
        self._newest: dict[Location, int] = {}
        self._written: dict[Location, int] = {}
        self._not_before: dict[Location, float] = {}
        self._offering = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def offer(self, table: Location, version: int) -> None:
        """Take note of a commit; returns at once."""
        # Flows commit at the same time, also to one table, and one thread writes the checkpoints.
        with self._offering:
            if table not in self._written:
                self._written[table] = max(last_checkpoint(table), 0)
            self._newest[table] = max(version, self._newest.get(table, version))
            if self._is_due(table, version):
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="headrace-checkpoints", daemon=True
                    )
                    self._thread.start()
                self._wake.set()

    def stop(self) -> None:
        """Finish the checkpoint at hand, and write no other."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=10.0)

    def _run(self) -> None:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool_name(_POOL))
        while not self._stopped:
            self._wake.wait()
            self._wake.clear()
            for table, version in list(self._newest.items()):
                if not self._stopped and self._is_due(table, version):
                    self._write(table, version)

    def _is_due(self, table: Location, version: int) -> bool:
        commits = version - self._written[table]
        rests = time.monotonic() < self._not_before.get(table, 0.0)
        every = self._every or (EVERY if table.is_local else REMOTE_EVERY)
        return commits >= every and (not rests or commits >= MOST)

    def _write(self, table: Location, version: int) -> None:
        jvm: Any = self._spark.sparkContext._jvm
        began = time.monotonic()
        try:
            log = delta_log(self._spark, table)
            none = jvm.scala.Option.empty()
            log.checkpointAndCleanUpDeltaLog(log.update(False, none, none), none)
        except Exception as error:
            _LOG.warning("no checkpoint of %s was written: %s", table, error)
        self._written[table] = version
        ended = time.monotonic()
        self._not_before[table] = ended + _SHARE * (ended - began)
