"""Writes the small files of a table again as larger files, and Delta's checkpoints beside the commits.

A commit that also writes Delta's checkpoint takes several times as long as the others, and records wait for
it. So our tables ask Delta for few checkpoints (``delta.checkpointInterval``), and a thread writes them every
`EVERY` commits while the flows go on.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from headrace.model.maintenance import LOG_CLEANUP, TablePolicy, is_mostly_deleted
from headrace.model.names import quoted_column
from headrace.runtime.engine.record import pool_name
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.arrow_files import FILE_BYTES, merge_files
from headrace.sinks.delta.data_files import DataFile, file_rows, find_files, table_bytes
from headrace.sinks.delta.table import delta_log, newest_snapshot, read_scala
from headrace.sinks.delta.transaction import iterate, scala_list
from headrace.storage.location import Location, open_delta
from headrace.storage.table_log import last_checkpoint

_ATTEMPTS = 3
_WAIT_S = 0.5
_CONFLICTS = (
    *("CONCURRENT_APPEND", "CONCURRENT_DELETE_READ", "CONCURRENT_DELETE_DELETE", "METADATA_CHANGED"),
    *("CONCURRENT_TRANSACTION", "PROTOCOL_CHANGED", "CONCURRENT_WRITE"),
)
"""The conflicts of Delta, by error class. A compaction changes no rows, so it can be repeated after each."""
_PREFIX = "spark.databricks.delta.optimize."
_BATCH_BYTES = 8 << 30
"""A compaction of more bytes has several commits. If it is killed, the files of its earlier commits stay."""
_LIMITED_BATCH_BYTES = 1 << 30
"""The bytes of large files that one commit rewrites if the time is limited."""
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
_PLAIN_FEATURES = {
    *("appendOnly", "changeDataFeed", "checkConstraints", "deletionVectors"),
    *("domainMetadata", "invariants", "timestampNtz"),
}
"""The table features with which `deltalake` writes checkpoints that Delta reads as its own."""
_POOL = "headrace-maintenance"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """What one compaction has done. `conflicts`: the number of conflicts with other writers, by kind; it was
    repeated after each."""

    added: int
    removed: int
    added_bytes: int  # the bytes of the new files
    removed_bytes: int  # the bytes of the replaced files
    duration_s: float  # the time in seconds
    conflicts: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "files": {"added": self.added, "removed": self.removed},
            "size_bytes": {"added": self.added_bytes, "removed": self.removed_bytes},
            "duration_s": round(self.duration_s, 3),
            "conflicts": dict(self.conflicts),
        }


class _Rewritten(NamedTuple):
    added: int
    removed: int
    added_bytes: int
    removed_bytes: int


def compact_files(
    session: SparkSession,
    table: Location,
    policy: TablePolicy | None = None,
    *,
    partitions: Sequence[Mapping[str, str | None]] = (),
    z_order: Sequence[str] = (),
    cube_bytes: int | None = None,
    limit_s: float = math.inf,
    light: bool = False,
) -> Compaction:
    """Write small files, and files with many deleted rows, again as larger files.

    The commit has ``dataChange=false``: streams do not read the rows again. A table with clustering columns
    is clustered. Conflicts with other writers are repeated.

    `policy`: the sizes of files; by default those of all tables. `z_order`: the columns that rows are ordered
    by; then all files are written again. `cube_bytes`: rows of a clustered table that lie in groups of so
    many bytes are not clustered again. `limit_s`: after so many seconds, no other commit begins; the next
    compaction continues. `light`: merge only the smallest files, without a Spark job, if that is possible."""
    policy = policy or TablePolicy()
    snapshot = newest_snapshot(session, table)
    settings = _settings(policy, _bytes_of(session, table, snapshot), cube_bytes)
    # Spark's statement is for the orders of rows. It computes the state of the table several times.
    ordering = z_order or "clustering" in snapshot.protocol().toString()
    total: list[_Rewritten] = []
    conflicts: Counter[str] = Counter()
    began = time.monotonic()
    with session_settings(session, settings):
        while True:
            try:
                if ordering:
                    total.append(_optimize(session, table, partitions, z_order))
                else:
                    total += _rewrite_files(session, table, policy, partitions, began + limit_s, light)
            except Exception as error:
                kind = conflict_kind(error)
                if kind is None:
                    raise
                conflicts[kind] += 1
                if conflicts.total() >= _ATTEMPTS:
                    raise
                time.sleep(_WAIT_S * conflicts.total())
                continue
            return Compaction(
                added=sum(one.added for one in total),
                removed=sum(one.removed for one in total),
                added_bytes=sum(one.added_bytes for one in total),
                removed_bytes=sum(one.removed_bytes for one in total),
                duration_s=time.monotonic() - began,
                conflicts=dict(conflicts),
            )


def _bytes_of(session: SparkSession, table: Location, snapshot: Any) -> int:
    return table_bytes(session, table, int(snapshot.version()), lambda: snapshot)


def _settings(policy: TablePolicy, size: int, cube_bytes: int | None) -> dict[str, str]:
    settings = {
        # By default, OPTIMIZE would rewrite all files below 1 GB each time.
        f"{_PREFIX}minFileSize": str(policy.small_bytes(size)),
        f"{_PREFIX}maxFileSize": str(policy.target_bytes(size)),
        f"{_PREFIX}maxDeletedRowsRatio": str(policy.deleted_ratio),
        f"{_PREFIX}batchSize": str(_BATCH_BYTES),
    }
    if cube_bytes is not None:
        cube = f"{_PREFIX}clustering.mergeStrategy.minCubeSize."
        settings |= {f"{cube}threshold": str(cube_bytes), f"{cube}targetCubeSize": str(cube_bytes)}
    return settings


def conflict_kind(error: BaseException) -> str | None:
    """The kind of a conflict between two writers of a Delta table; ``None`` for any other error."""
    text, kinds = str(error), {name: name.title().replace("_", "") for name in _CONFLICTS}
    classes = [kind for name, kind in kinds.items() if f"[DELTA_{name}" in text]
    return next(iter(classes or [kind for kind in kinds.values() if f"{kind}Exception" in text]), None)


def _predicate(session: SparkSession, table: Location, partitions: Sequence[Mapping[str, str | None]]) -> str:
    schema = json.loads(newest_snapshot(session, table).metadata().schemaString())
    types = {one["name"]: one["type"] for one in schema["fields"]}

    def equal(column: str, value: str | None) -> str:
        name = quoted_column(column)
        if value is None:
            return f"{name} IS NULL"
        text = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"{name} = CAST('{text}' AS {types[column]})"

    each = (" AND ".join(equal(*item) for item in one.items()) for one in partitions)
    return " OR ".join(f"({one})" for one in each)


@contextmanager
def session_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: session.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


def _optimize(
    session: SparkSession,
    table: Location,
    partitions: Sequence[Mapping[str, str | None]],
    z_order: Sequence[str],
) -> _Rewritten:
    """Order the rows of a table, or of some partitions, with Spark's statement."""
    where = f" WHERE {_predicate(session, table, partitions)}" if partitions else ""
    order = f" ZORDER BY ({', '.join(map(quoted_column, z_order))})" if z_order else ""
    done = session.sql(f"OPTIMIZE delta.`{table}`{where}{order}").first()["metrics"]
    sizes = done["filesAdded"]["totalSize"], done["filesRemoved"]["totalSize"]
    return _Rewritten(done["numFilesAdded"], done["numFilesRemoved"], *sizes)


def _rewrite_files(
    session: SparkSession,
    table: Location,
    policy: TablePolicy,
    partitions: Sequence[Mapping[str, str | None]],
    deadline: float,
    light: bool,
) -> Iterator[_Rewritten]:
    """Rewrite the small files, and those with mostly deleted rows; commit each batch of files. No commit
    begins after the deadline but the first."""
    batch_bytes = _BATCH_BYTES if deadline == math.inf else _LIMITED_BATCH_BYTES
    snapshot = newest_snapshot(session, table)
    size = _bytes_of(session, table, snapshot)

    def is_wanted(one: DataFile) -> bool:
        is_chosen = one.size < policy.small_bytes(size) or is_mostly_deleted(file_rows(one), policy)
        return is_chosen and (not partitions or dict(one.partition) in partitions)

    chosen = find_files(session, table, snapshot, is_wanted)
    smallest = [one for one in chosen if one.size < FILE_BYTES]
    if light and len(chosen) - len(smallest) < policy.small_files < len(smallest):
        merged = merge_files(session, table, snapshot, smallest)
        if merged is not None:
            yield _Rewritten(1, len(smallest), merged[1], merged[0])
            return
    bins = [
        group
        for group in _pack(chosen, policy.target_bytes(size))
        if len(group) > 1 or is_mostly_deleted(file_rows(group[0]), policy)
    ]
    while bins:
        batch, total = [bins.pop()], 0
        while bins and (total := total + sum(one.size for one in batch[-1])) < batch_bytes:
            batch.append(bins.pop())
        yield _rewrite(session, snapshot, batch, policy.target_bytes(size))
        if time.monotonic() > deadline:
            return


def _pack(files: Iterable[DataFile], target: int) -> Iterator[list[DataFile]]:
    """Groups of files of a partition, each of which becomes one file of about the target size."""
    by_partition = sorted(files, key=lambda one: repr(one.partition))
    for _, members in groupby(by_partition, key=lambda one: one.partition):
        group: list[DataFile] = []
        left = 0.0
        for one in members:
            size = one.size * (1 - one.deleted_rows / one.rows) if one.rows else one.size
            if group and left + size > target:
                yield group
                group, left = [], 0.0
            group.append(one)
            left += size
        if group:
            yield group


def _rewrite(
    session: SparkSession, snapshot: Any, bins: Iterable[Sequence[DataFile]], target: int
) -> _Rewritten:
    """Commit one batch of OPTIMIZE with these files, and no others."""
    jvm: Any = session._jvm
    commands, none, nil = jvm.org.apache.spark.sql.delta.commands, jvm.scala.Option.empty(), scala_list(jvm)
    context = commands.DeltaOptimizeContext(none, none, none, none, False)
    executor = commands.OptimizeExecutor(session._jsparkSession, snapshot, none, nil, nil, False, context)
    groups = [[one.in_jvm(jvm) for one in files] for files in bins]
    batch = commands.Batch(
        scala_list(
            jvm, [commands.Bin(files[0].partitionValues(), scala_list(jvm, files)) for files in groups]
        )
    )
    # The method is private: Delta offers no public way to rewrite single files.
    gateway: Any = session.sparkContext._gateway
    types = gateway.new_array(jvm.java.lang.Class, 2)
    types[0], types[1] = batch.getClass(), jvm.java.lang.Long.TYPE
    method = executor.getClass().getDeclaredMethod("runOptimizeBatch", types)
    method.setAccessible(True)
    arguments = gateway.new_array(jvm.java.lang.Object, 2)
    arguments[0], arguments[1] = batch, target
    done = method.invoke(executor, arguments)
    added = [int(one.size()) for one in iterate(done._1())]
    removed = [one.size for files in bins for one in files]
    return _Rewritten(len(added), len(removed), sum(added), sum(removed))


class Maintenance(Protocol):
    """Maintains the tables that an update commits to."""

    def policy(self, table: Location, properties: Mapping[str, str]) -> TablePolicy:
        """The policy of a table."""

    def watch(self, table: Location) -> None:
        """Maintain a table from now on, even before its next commit."""

    def turn(self, table: Location) -> AbstractContextManager[None]:
        """Hold off compactions that need a pause between two batches, while the block runs."""

    def awaits_rewrite(self, table: Location) -> bool:
        """Whether rows were erased since the last refresh of a view: its files must be replaced."""

    def offer(self, table: Location, version: int, *, concurrently: bool) -> None:
        """Take note of a commit; returns at once. `concurrently`: whether a compaction can run while the flow
        goes on."""

    def compacted(self, table: Location, done: Compaction | Exception) -> None:
        """Report a compaction, or why it has failed."""

    def indexing(self, table: Location, *, read: int, rows: int) -> None:
        """Report how many rows of a large table were read for the index of its keys."""

    def finish(self) -> None:
        """Do the maintenance that is due, after the flows have ended."""

    def stop(self) -> None:
        """End the work at hand, and begin nothing else."""


def write_checkpoint(spark: SparkSession, table: Location) -> None:
    """Write Delta's checkpoint of the newest version of a table.

    Delta's own takes seconds of all cores, beside batches that wait for them. `deltalake` needs a tenth, and
    writes the tables whose features are tested."""
    snapshot = newest_snapshot(spark, table)
    if _is_plain(spark, snapshot):
        open_delta(table).create_checkpoint()
        return
    jvm: Any = spark.sparkContext._jvm
    delta_log(spark, table).checkpointAndCleanUpDeltaLog(snapshot, jvm.scala.Option.empty())


def _is_plain(spark: SparkSession, snapshot: Any) -> bool:
    """Whether `deltalake` writes the checkpoint of a table as Delta does."""
    protocol = json.loads(snapshot.protocol().json())["protocol"]
    features = {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
    properties = read_scala(spark, snapshot.metadata().configuration())
    # Delta also deletes old commits after a checkpoint, if it is asked to.
    is_kept = properties.get(LOG_CLEANUP) == "false"
    has_form = any(one.startswith("delta.checkpoint.") for one in properties)
    return is_kept and not has_form and features <= _PLAIN_FEATURES


class LogCheckpointer:
    """Writes the checkpoints of the tables that an update commits to.

    A failure does not fail the flow: the table is whole without a checkpoint, and the next
    offer tries again.
    """

    def __init__(self, spark: SparkSession, every: int | None = None) -> None:
        self.written: Callable[[Location, int, float], object] = lambda *_: None
        """Called after each checkpoint with its table, its version, and the seconds that it took."""
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
        began = time.monotonic()
        try:
            write_checkpoint(self._spark, table)
        except Exception as error:
            _LOG.warning("no checkpoint of %s was written: %s", table, error)
        else:
            self.written(table, version, time.monotonic() - began)
        self._written[table] = version
        ended = time.monotonic()
        self._not_before[table] = ended + _SHARE * (ended - began)
