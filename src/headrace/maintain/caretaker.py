"""Takes care of the tables that an update writes, while it runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from headrace.maintain.condition import choose_partitions, foldable_files, is_compaction_due
from headrace.maintain.holders import find_holders
from headrace.maintain.log_cleanup import delete_log, plan_log_cleanup
from headrace.maintain.record import load_care, record_care
from headrace.model.care import CarePolicy
from headrace.model.durations import DAY_S
from headrace.model.events import Emitter, OperationProgressed
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.sinks.delta.checkpointer import LogCheckpointer
from headrace.sinks.delta.compaction import Compaction, compact_files, conflict_kind
from headrace.storage.location import Location
from headrace.storage.table_log import load_checksum, load_commit, versions
from headrace.storage.table_snapshot import TableSnapshot, load_snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)
_POOL = "headrace-maintenance"
_FINISH_S = 60.0
"""At the end of a triggered update, no further table is compacted after this time."""
_LOG_S = 3600.0
"""Seconds between two cleanups of a table's log."""
_STOP_S = 10.0
_KEYS = "headrace.keys"


@dataclass
class _Table:
    """What is known of a table.

    Args:
        version: The newest version.
        beside: Whether a compaction can run while its flow goes on.
        looked: The version at which its files were looked at last.
        floor: The number of files that a compaction would have left then.
        cleaned_s: When its log was looked at last.
        wanted: The number of small files for which it is compacted.
    """

    version: int
    beside: bool
    looked: int = -1
    floor: int = 0
    cleaned_s: float = float("-inf")
    wanted: int = CarePolicy.small_files


class Caretaker:
    """Compacts the tables that flows append to, and cleans the logs of all tables.

    In a continuous update it works in a thread, beside the flows; in a triggered one at the end of the flows.
    Tables with changes by key are compacted by their flows, between two batches. A failure is an event, and
    never fails a flow.

    Args:
        checkpointer: Writes Delta's checkpoints of the tables.
        session: Makes a session.
        settings: The pipeline's settings.
        emit: Takes the events.
        update: The update's id.
        continuous: Whether the update is continuous.
    """

    def __init__(
        self,
        *,
        checkpointer: LogCheckpointer,
        session: Callable[[], SparkSession],
        settings: ProjectSettings,
        emit: Emitter,
        update: str,
        continuous: bool,
    ) -> None:
        self._checkpointer = checkpointer
        self._session = session
        self._settings = settings
        self._emit = emit
        self._update = update
        self._continuous = continuous
        self._tables: dict[Location, _Table] = {}
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._made: SparkSession | None = None

    def policy(self, table: Location, properties: Mapping[str, str]) -> CarePolicy:
        """How a table is cared for."""
        return self._settings.maintenance.of(self._name(table), properties)

    def offer(self, table: Location, version: int, *, beside: bool) -> None:
        """Take note of a commit; returns at once."""
        self._checkpointer.offer(table, version)
        known = self._tables.setdefault(table, _Table(version, beside))
        known.version = version
        if self._continuous and version - known.looked >= self._every(known):
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace-care", daemon=True)
                self._thread.start()
            self._wake.set()

    def compacted(self, table: Location, done: Compaction | Exception) -> None:
        """Report a compaction, or why it has failed."""
        name = self._name(table)
        if isinstance(done, Exception):
            error = {"summary": str(done).strip().partition("\n")[0], "conflict": conflict_kind(done)}
            self._report(name, status="FAILED", error=error)
        elif done.removed:
            record_care(self._settings.storage, name, "compacted", done.to_json())
            self._report(name, duration_s=done.duration_s, outcome={"compacted": done.to_json()})

    def finish(self) -> None:
        """Take care of all tables, one after another, for a limited time."""
        deadline = time.monotonic() + _FINISH_S
        for table, known in list(self._tables.items()):
            if time.monotonic() < deadline:
                self._look(table, known, beside=True)

    def stop(self) -> None:
        """Finish the table at hand, and begin no other."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=_STOP_S)
        self._checkpointer.stop()

    def _every(self, known: _Table) -> int:
        """The number of commits between two looks at a table."""
        return max(known.wanted // 2, 1) if known.looked >= 0 else 0

    def _run(self) -> None:
        while not self._stopped:
            self._wake.wait()
            self._wake.clear()
            for table, known in list(self._tables.items()):
                if not self._stopped and known.version - known.looked >= self._every(known):
                    self._look(table, known, beside=known.beside)

    def _look(self, table: Location, known: _Table, *, beside: bool) -> None:
        """Take care of one table, if it is due."""
        known.looked = known.version
        try:
            # The checksum beside a commit is enough to know that nothing is due.
            files, properties = _checksum(table, known.version)
            if properties is not None:
                policy = self.policy(table, properties)
                known.wanted = min(policy.small_files, policy.commits or policy.small_files)
            cleans = self._is_log_due(table, known)
            if files is not None and files < known.floor + known.wanted and not cleans:
                return
            snapshot = load_snapshot(table)
            policy = self.policy(table, snapshot.properties)
            compacts = policy.compact and policy.auto and beside and _KEYS not in snapshot.properties
            if compacts and is_compaction_due(table, snapshot, policy):
                self._compact(table, snapshot, policy)
            known.floor = len(snapshot.files) - foldable_files(snapshot, policy)
            if cleans and policy.cleans_log:
                self._clean_log(table, snapshot, policy)
        except Exception as error:
            _LOG.warning("%s was not maintained: %s", table, error)

    def _is_log_due(self, table: Location, known: _Table) -> bool:
        """Whether the log of a table is looked at: once an hour, or once a day if runs are short."""
        if time.monotonic() - known.cleaned_s < _LOG_S:
            return False
        known.cleaned_s = time.monotonic()
        storage, name = self._settings.storage, self._name(table)
        held = versions(table)
        is_old = bool(held) and time.time() - load_commit(table, held[0]).timestamp_ms / 1000 > DAY_S
        last = load_care(storage, name).get("log_look", {}).get("at")
        seen_s = 0.0 if last is None else datetime.fromisoformat(last).timestamp()
        if not is_old or (not self._continuous and time.time() - seen_s < DAY_S):
            return False
        record_care(storage, name, "log_look", {})
        return True

    def _compact(self, table: Location, snapshot: TableSnapshot, policy: CarePolicy) -> None:
        partitions = choose_partitions(snapshot, policy)
        # Groups of a clustered table that have this size are not written again with each compaction.
        cube = 2 * policy.target_bytes(snapshot.size_bytes)
        try:
            with self._pool() as session:
                done = compact_files(session, table, policy, partitions=partitions, cube_bytes=cube)
        except Exception as error:
            _LOG.warning("%s was not compacted: %s", table, error)
            self.compacted(table, error)
        else:
            self.compacted(table, done)

    @contextmanager
    def _pool(self) -> Iterator[SparkSession]:
        """A session whose jobs run in the pool of maintenance."""
        if self._made is None:
            self._made = self._session()
        context = self._made.sparkContext
        before = context.getLocalProperty("spark.scheduler.pool")
        context.setLocalProperty("spark.scheduler.pool", _POOL)
        try:
            yield self._made
        finally:
            # At the end of a triggered update, the thread is the caller's.
            context.setLocalProperty("spark.scheduler.pool", cast("str", before))

    def _clean_log(self, table: Location, snapshot: TableSnapshot, policy: CarePolicy) -> None:
        name, storage = self._name(table), self._settings.storage
        holders = find_holders(storage, name, snapshot.table_id)
        since = datetime.now(UTC) - timedelta(seconds=policy.log_retention_s)
        plan = plan_log_cleanup(table, snapshot, holders, since)
        if plan.files:
            delete_log(table, plan)
            record_care(storage, name, "log", plan.to_json())
            self._report(name, outcome={"log": plan.to_json()})

    def _report(self, name: TableName, *, status: Any = "COMPLETED", **more: Any) -> None:
        event = OperationProgressed(
            update=self._update, dataset=name, operation="MAINTENANCE", status=status, **more
        )
        self._emit(event)

    def _name(self, table: Location) -> TableName:
        return TableName(table.parent.name, table.name)


def _checksum(table: Location, version: int) -> tuple[int | None, Mapping[str, str] | None]:
    """The number of files of a version, and the table's properties; ``None`` where they are not known."""
    try:
        found = load_checksum(table, version)
        return int(found["numFiles"]), dict(found["metadata"]["configuration"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, None
