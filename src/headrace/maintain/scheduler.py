"""Schedules the maintenance of the tables that an update writes, while it runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from headrace.errors import HeadraceError, first_line
from headrace.maintain.condition import (
    MIN_RETENTION_DURING_RUNS_S,
    TableCondition,
    check_vacuum,
    choose_partitions,
    delete_log,
    examine_table,
    is_compaction_due,
    plan_log_cleanup,
    vacuum_table,
)
from headrace.maintain.erasures import awaits_refresh, finish_erasure
from headrace.maintain.holders import (
    DatasetTable,
    find_holders,
    load_maintenance,
    load_metadata,
    load_policy,
    record_maintenance,
    secondary_tables,
)
from headrace.model.event_forms import Emitter
from headrace.model.maintenance import TablePolicy, count_foldable
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.table_events import OperationProgressed
from headrace.model.texts import DAY_S
from headrace.runtime.engine.record import pool_name
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.compaction import Compaction, LogCheckpointer, compact_files, conflict_kind
from headrace.sinks.delta.erase import close_erasure
from headrace.storage.layout import table_name
from headrace.storage.location import Location
from headrace.storage.table_log import committed_ms, is_table, load_checksum, newest_version, versions
from headrace.storage.table_snapshot import TableSnapshot, load_snapshot


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


_LOG = logging.getLogger(__name__)
_POOL = "headrace-maintenance"
_FINISH_S = 60.0
"""At the end of a triggered update, no further table is compacted after this time."""
_LOG_S = 3600.0
"""Seconds between two cleanups of a table's log."""
_STOP_S = 10.0
_POLL_S = 1.0
"""How often the thread looks for due vacuums."""
_TURN_S = 60.0
"""How long a compaction that needs a pause between two batches waits for the end of the current batch."""
_VACUUM_LOOK_S = 60.0
"""The maximum time between two checks whether the vacuum of a table is due."""
_REST = 100
"""In a continuous run, a table rests after a compaction for so many times as long as that took: batches share
the cores with a compaction."""
_MOST_SMALL = 8
"""It is compacted earlier if it has so many times as many small files as one that is due."""
_KEYS = "headrace.keys"


@dataclass
class _Table:
    version: int = -1
    concurrently: bool = False  # whether a compaction can run while its flow goes on
    looked: int = -1  # the version at which its files were looked at last
    floor: int = 0  # the number of files that a compaction would have left then
    deleted: int = 0  # the number of rows that deletion vectors hid then
    cleaned_s: float = float("-inf")
    wanted: int = TablePolicy.small_files  # the number of small files for which it is compacted
    rests_until_s: float = 0.0
    log_retention_s: float = TablePolicy.log_retention_s
    vacuum_look_s: float = 0.0
    turns: Turns = field(default_factory=Turns)  # keeps batches and compactions apart

    @property
    def has_new_commits(self) -> bool:
        """Whether there are enough new commits to check the files of the table."""
        every = max(self.wanted // 2, 1) if self.looked >= 0 else 0
        return self.version >= 0 and self.version - self.looked >= every


@dataclass(eq=False, kw_only=True)
class MaintenanceScheduler:
    """Compacts the tables that flows append to, cleans the logs of all tables, and vacuums them.

    In a continuous update, a thread does this while the flows run. In a triggered update, it is done after
    the flows have ended. Tables with changes by key are compacted by their flows, between two batches. A
    failure is reported as an event, and never fails a flow.

    `stopping`: returns whether the update stops: no compaction begins then that batches wait for."""

    checkpointer: LogCheckpointer
    session: Callable[[], SparkSession]
    settings: ProjectSettings
    emit: Emitter
    update: str
    continuous: bool
    stopping: Callable[[], bool] = lambda: False
    _tables: dict[Location, _Table] = field(default_factory=dict, init=False)
    _wake: threading.Event = field(default_factory=threading.Event, init=False)
    _stopped: bool = field(default=False, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _made: SparkSession | None = field(default=None, init=False)
    _work: threading.Lock = field(default_factory=threading.Lock, init=False)
    """The thread, and the compactions at the end of a triggered update, use the same session."""

    def __post_init__(self) -> None:
        self.checkpointer.written = self._checkpointed

    def _checkpointed(self, table: Location, version: int, duration_s: float) -> None:
        outcome = {"checkpoint": {"version": version}}
        self._report(DatasetTable(table_name(table)), duration_s=duration_s, outcome=outcome)

    def policy(self, table: Location, properties: Mapping[str, str]) -> TablePolicy:
        return self.settings.maintenance.of(table_name(table), properties)

    def watch(self, table: Location) -> None:
        """Maintain a table from now on, even before its next commit."""
        self._tables.setdefault(table, _Table())
        if self.continuous:
            self._start()

    def turn(self, table: Location) -> AbstractContextManager[None]:
        """Hold off compactions that need a pause between two batches, while the block runs."""
        return self._tables.setdefault(table, _Table()).turns.batch(self._is_ending)

    def awaits_rewrite(self, table: Location) -> bool:
        """Whether rows were erased since the last refresh of a view: its files must be replaced."""
        return awaits_refresh(self.settings.storage, DatasetTable(table_name(table)))

    def offer(self, table: Location, version: int, *, concurrently: bool) -> None:
        """Take note of a commit; returns at once."""
        self.checkpointer.offer(table, version)
        known = self._tables.setdefault(table, _Table())
        known.version, known.concurrently = version, concurrently
        if self.continuous and known.has_new_commits:
            self._start()
            self._wake.set()

    def compacted(self, table: Location, done: Compaction | Exception) -> None:
        self._compacted(DatasetTable(table_name(table)), done)

    def indexing(self, table: Location, *, read: int, rows: int) -> None:
        """Report how many rows of a large table were read for the index of its keys."""
        event = OperationProgressed(
            update=self.update,
            dataset=table_name(table),
            operation="KEY_INDEX",
            status="STARTED" if read < rows else "COMPLETED",
            outcome={"rows_read": read, "rows": rows},
        )
        self.emit(event)

    def _is_ending(self) -> bool:
        return self._stopped or self.stopping()

    def _compacted(self, target: DatasetTable, done: Compaction | Exception) -> None:
        if isinstance(done, Exception):
            self._report(target, status="FAILED", error=_error_of(done), outcome={"failed": "compaction"})
        elif done.removed:
            record_maintenance(
                self.settings.storage, target.dataset, "compacted", done.to_json(), target.role
            )
            self._report(target, duration_s=done.duration_s, outcome={"compacted": done.to_json()})

    def finish(self) -> None:
        """Maintain all tables with commits, then vacuum them; one after another, for a limited time."""
        deadline = time.monotonic() + _FINISH_S
        for table, known in list(self._tables.items()):
            if known.version >= 0 and time.monotonic() < deadline:
                self._look(table, known, concurrently=True)
        for table, known in list(self._tables.items()):
            if known.version >= 0 and time.monotonic() < deadline:
                self._vacuum_if_due(table, known)

    def stop(self) -> None:
        """Finish the table at hand, and begin no other."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=_STOP_S)
        self.checkpointer.stop()

    def _start(self) -> None:
        if self._thread is None and not self._stopped:
            self._thread = threading.Thread(target=self._run, name="headrace-maintenance", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            self._wake.wait(_POLL_S)
            self._wake.clear()
            try:
                self._maintain_tables()
            except Exception as error:
                # A storage that cannot be read or written now may be whole again later.
                _LOG.warning("tables were not maintained: %s", error)

    def _maintain_tables(self) -> None:
        for table, known in list(self._tables.items()):
            if self._is_ending():
                return
            if known.has_new_commits:
                self._look(table, known, concurrently=known.concurrently)
            if time.monotonic() >= known.vacuum_look_s:
                self._vacuum_if_due(table, known)

    def _look(self, table: Location, known: _Table, *, concurrently: bool) -> None:
        """Compact one table and clean its log, if that is due."""
        with self._work:
            self._look_alone(table, known, concurrently=concurrently)

    def _look_alone(self, table: Location, known: _Table, *, concurrently: bool) -> None:
        known.looked = known.version
        self._compact_quarantine(table, known)
        try:
            # The checksum beside a commit is enough to know that nothing is due.
            files, properties, deleted = _checksum(table, known.version)
            policy = self.policy(table, properties or {})
            known.wanted = min(policy.small_files, policy.commits or policy.small_files)
            known.log_retention_s = policy.log_retention_s
            cleans = self._is_log_due(table, known)
            rests = self.continuous and time.monotonic() < known.rests_until_s
            wanted = known.wanted * (_MOST_SMALL if rests else 1)
            is_grown = files is None or files >= known.floor + wanted or deleted > known.deleted
            if not (is_grown or cleans):
                return
            snapshot = load_snapshot(table)
            policy = self.policy(table, snapshot.properties)
            # Tables with keys are compacted by their flows.
            is_ours = concurrently and _KEYS not in snapshot.properties
            foldable = count_foldable(snapshot.files, policy).number
            is_wanted = policy.compact and policy.auto and is_ours and (not rests or foldable >= wanted)
            if is_wanted and is_compaction_due(table, snapshot, policy):
                began = time.monotonic()
                self._compact(DatasetTable(table_name(table)), table, snapshot, policy)
                ended = time.monotonic()
                known.rests_until_s = ended + _REST * (ended - began)
            known.floor = len(snapshot.files) - foldable
            known.deleted = sum(one.deleted for one in snapshot.files)
            if cleans and policy.cleans_log:
                self._clean_log(DatasetTable(table_name(table)), snapshot, policy)
            if cleans:
                self._clean_secondary_logs(table_name(table))
        except Exception as error:
            _LOG.warning("%s was not maintained: %s", table, error)

    def _is_log_due(self, table: Location, known: _Table) -> bool:
        """Whether the log of a table is checked now: once an hour, or once a day if runs are short.

        With a log retention below four hours, it is checked more often.
        """
        if time.monotonic() - known.cleaned_s < min(_LOG_S, known.log_retention_s / 4):
            return False
        known.cleaned_s = time.monotonic()
        storage, name = self.settings.storage, table_name(table)
        held = versions(table)
        kept_s = min(DAY_S, known.log_retention_s)
        is_old = bool(held) and time.time() - committed_ms(table, held[0]) / 1000 > kept_s
        last = load_maintenance(storage, name).get("log_look", {}).get("at")
        seen_s = 0.0 if last is None else datetime.fromisoformat(last).timestamp()
        if not is_old or (not self.continuous and time.time() - seen_s < DAY_S):
            return False
        record_maintenance(storage, name, "log_look", {})
        return True

    def _compact(
        self, target: DatasetTable, table: Location, snapshot: TableSnapshot, policy: TablePolicy
    ) -> None:
        partitions = choose_partitions(snapshot, policy)
        # Groups of a clustered table that have this size are not written again with each compaction.
        cube = 2 * policy.target_bytes(snapshot.size_bytes)
        try:
            with self._pool() as session:
                done = compact_files(
                    session, table, policy, partitions=partitions, cube_bytes=cube, light=self.continuous
                )
        except Exception as error:
            _LOG.warning("%s was not compacted: %s", table, error)
            self._compacted(target, error)
        else:
            self._compacted(target, done)

    def _compact_quarantine(self, table: Location, known: _Table) -> None:
        """Compact the quarantine table if it is due, between two batches: a batch can replace its rows."""
        target = DatasetTable(table_name(table), "quarantine")
        path = target.path(self.settings.storage)
        try:
            files = _checksum(path, newest_version(path))[0]
            if files is None or files < TablePolicy.small_files:
                return
            snapshot = load_snapshot(path)
            policy = load_policy(self.settings.storage, self.settings.maintenance, target, snapshot)
            if policy.compact and policy.auto and is_compaction_due(path, snapshot, policy):
                with known.turns.compaction(_TURN_S, self._is_ending) as is_free:
                    if is_free:
                        self._compact(target, path, snapshot, policy)
        except Exception as error:
            _LOG.warning("%s was not maintained: %s", path, error)

    def _vacuum_if_due(self, table: Location, known: _Table) -> None:
        """Vacuum a table, its quarantine and its tombstones, if the last vacuum is long enough ago."""
        known.vacuum_look_s = time.monotonic() + _VACUUM_LOOK_S
        storage, name = self.settings.storage, table_name(table)
        try:
            if not is_table(table):
                # The first refresh of a view has not ended.
                return
            version = known.version if known.version >= 0 else newest_version(table)
            policy = self.policy(table, load_metadata(table, version)[1])
            known.vacuum_look_s = time.monotonic() + min(_VACUUM_LOOK_S, policy.vacuum_every_s)
            held = load_maintenance(storage, name)
            last = max((held[key]["at"] for key in ("vacuumed", "vacuum_look") if key in held), default=None)
            if last is not None:
                passed_s = time.time() - datetime.fromisoformat(last).timestamp()
                if passed_s < policy.vacuum_every_s or not policy.vacuum:
                    return
            if not self.continuous and not (policy.vacuum and _is_older(table, policy.retention_s)):
                return
            record_maintenance(storage, name, "vacuum_look", {})
            if last is None and self.continuous:
                # A new table has nothing to delete yet.
                return
        except Exception as error:
            _LOG.warning("%s was not vacuumed: %s", table, error)
            return
        with self._work:
            for target in (DatasetTable(name), *secondary_tables(storage, name)):
                if not self._stopped:
                    self._vacuum(target)

    def _vacuum(self, target: DatasetTable) -> None:
        storage = self.settings.storage
        began = time.monotonic()
        try:
            found = self._examine(target)
            if found.policy.retention_s < MIN_RETENTION_DURING_RUNS_S:
                return
            if found.vacuum.expired or found.vacuum.held:
                check_vacuum(target, found)
                if vacuum_table(storage, target, found, lambda: self._examine(target)):
                    outcome = {"vacuumed": found.vacuum.to_json()}
                    self._report(target, duration_s=time.monotonic() - began, outcome=outcome)
            finish_erasure(storage, target, lambda: self._examine(target), self._close_erasure)
        except Exception as error:
            _LOG.warning("%s was not vacuumed: %s", target.title, error)
            self._report(target, status="FAILED", error=_error_of(error), outcome={"failed": "vacuum"})

    def _close_erasure(self, table: Location) -> None:
        with self._pool() as session:
            close_erasure(lambda: session, table)

    def _examine(self, target: DatasetTable) -> TableCondition:
        storage = self.settings.storage
        path = target.path(storage)
        snapshot = load_snapshot(path)
        policy = load_policy(storage, self.settings.maintenance, target, snapshot)
        holders = find_holders(storage, target.dataset, snapshot.table_id, target.role)
        return examine_table(path, policy, holders, snapshot)

    @contextmanager
    def _pool(self) -> Iterator[SparkSession]:
        """A session whose jobs run in the pool of maintenance."""
        if self._made is None:
            self._made = self.session()
        context = self._made.sparkContext
        before = context.getLocalProperty("spark.scheduler.pool")
        context.setLocalProperty("spark.scheduler.pool", pool_name(_POOL))
        try:
            yield self._made
        finally:
            # At the end of a triggered update, the thread is the caller's.
            context.setLocalProperty("spark.scheduler.pool", cast("str", before))

    def _clean_secondary_logs(self, name: TableName) -> None:
        storage = self.settings.storage
        for target in secondary_tables(storage, name):
            snapshot = load_snapshot(target.path(storage))
            policy = load_policy(storage, self.settings.maintenance, target, snapshot)
            self._clean_log(target, snapshot, policy)

    def _clean_log(self, target: DatasetTable, snapshot: TableSnapshot, policy: TablePolicy) -> None:
        storage = self.settings.storage
        table = target.path(storage)
        holders = find_holders(storage, target.dataset, snapshot.table_id, target.role)
        since = datetime.now(UTC) - timedelta(seconds=policy.log_retention_s)
        plan = plan_log_cleanup(table, snapshot, holders, since)
        if plan.files:
            delete_log(table, plan)
            record_maintenance(storage, target.dataset, "log", plan.to_json(), target.role)
            self._report(target, outcome={"log_cleanup": plan.to_json()})

    def _report(self, target: DatasetTable, *, status: Any = "COMPLETED", **more: Any) -> None:
        if target.role != "table" and "outcome" in more:
            more["outcome"] = {"part": target.role, **more["outcome"]}
        event = OperationProgressed(
            update=self.update, dataset=target.dataset, operation="MAINTENANCE", status=status, **more
        )
        self.emit(event)


def _error_of(error: Exception) -> dict[str, Any]:
    if isinstance(error, HeadraceError):
        return error.to_dict()
    return {"summary": first_line(error), "conflict": conflict_kind(error)}


def _is_older(table: Location, seconds: float) -> bool:
    """Whether a table is older than a number of seconds: only then can a vacuum delete files."""
    try:
        return time.time() - committed_ms(table, 0) / 1000 > seconds
    except FileNotFoundError:
        # The first commit is old enough to have been deleted.
        return True


def _checksum(table: Location, version: int) -> tuple[int | None, Mapping[str, str] | None, int]:
    """The number of files of a version, the table's properties, ``None`` where they are not known, and the
    number of rows that deletion vectors hide."""
    try:
        found = load_checksum(table, version)
        properties = dict(found["metadata"]["configuration"])
        return int(found["numFiles"]), properties, int(found.get("numDeletedRecordsOpt") or 0)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None, None, 0
