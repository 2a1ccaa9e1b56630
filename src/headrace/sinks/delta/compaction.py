"""Writes the small files of a table again as larger files."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

from headrace.model.maintenance import TablePolicy, is_mostly_deleted
from headrace.model.names import quoted_column
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.data_files import DataFile, file_rows, list_files
from headrace.sinks.delta.table import newest_snapshot
from headrace.sinks.delta.transaction import iterate, scala_list
from headrace.storage.location import Location

_ATTEMPTS = 3
_WAIT_S = 0.5
_CONFLICTS = {
    "DELTA_CONCURRENT_APPEND": "ConcurrentAppend",
    "DELTA_CONCURRENT_DELETE_READ": "ConcurrentDeleteRead",
    "DELTA_CONCURRENT_DELETE_DELETE": "ConcurrentDeleteDelete",
    "DELTA_METADATA_CHANGED": "MetadataChanged",
    "DELTA_CONCURRENT_TRANSACTION": "ConcurrentTransaction",
    "DELTA_PROTOCOL_CHANGED": "ProtocolChanged",
    "DELTA_CONCURRENT_WRITE": "ConcurrentWrite",
}
"""The conflicts of Delta, by error class. A compaction changes no rows, so it can be repeated after each."""
_PREFIX = "spark.databricks.delta.optimize."
_BATCH_BYTES = 8 << 30
"""A compaction of more bytes has several commits. If it is killed, the files of its earlier commits stay."""
_LIMITED_BATCH_BYTES = 1 << 30
"""The bytes of large files that one commit rewrites if the time is limited."""


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


def compact_files(
    session: SparkSession,
    table: Location,
    policy: TablePolicy | None = None,
    *,
    partitions: Sequence[Mapping[str, str | None]] = (),
    z_order: Sequence[str] = (),
    cube_bytes: int | None = None,
    limit_s: float = math.inf,
) -> Compaction:
    """Write small files, and files with many deleted rows, again as larger files.

    The commit has ``dataChange=false``: streams do not read the rows again. A table with clustering columns
    is clustered. Conflicts with other writers are repeated.

    `policy`: the sizes of files; by default those of all tables. `z_order`: the columns that rows are ordered
    by; then all files are written again. `cube_bytes`: rows of a clustered table that lie in groups of so
    many bytes are not clustered again. `limit_s`: after so many seconds, no more large files are rewritten
    for their deleted rows; the next compaction continues."""
    policy = policy or TablePolicy()
    settings = _settings(policy, newest_snapshot(session, table).sizeInBytes(), cube_bytes)
    where = f" WHERE {_predicate(session, table, partitions)}" if partitions else ""
    order = f" ZORDER BY ({', '.join(map(quoted_column, z_order))})" if z_order else ""
    statement = f"OPTIMIZE delta.`{table}`{where}{order}"
    added: list[int] = []
    removed: list[int] = []
    conflicts: Counter[str] = Counter()
    began = time.monotonic()
    with session_settings(session, settings):
        while True:
            try:
                # An order of all rows rewrites all files.
                if not z_order:
                    for new, old in _rewrite_masked(session, table, policy, partitions, began + limit_s):
                        added += new
                        removed += old
                metrics = session.sql(statement).first()["metrics"]
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
                added=metrics["numFilesAdded"] + len(added),
                removed=metrics["numFilesRemoved"] + len(removed),
                added_bytes=metrics["filesAdded"]["totalSize"] + sum(added),
                removed_bytes=metrics["filesRemoved"]["totalSize"] + sum(removed),
                duration_s=time.monotonic() - began,
                conflicts=dict(conflicts),
            )


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
    text = str(error)
    for name, kind in _CONFLICTS.items():
        if f"[{name}" in text:
            return kind
    return next((kind for kind in _CONFLICTS.values() if f"{kind}Exception" in text), None)


def _predicate(session: SparkSession, table: Location, partitions: Sequence[Mapping[str, str | None]]) -> str:
    """A condition that is true for the rows of some partitions."""
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


def _rewrite_masked(
    session: SparkSession,
    table: Location,
    policy: TablePolicy,
    partitions: Sequence[Mapping[str, str | None]],
    deadline: float,
) -> Iterator[tuple[list[int], list[int]]]:
    """Rewrite the files that are not small and have mostly deleted rows; commit each batch of files. No
    commit begins after the deadline but the first. Yields the sizes of the new files of each commit, and of
    the files that they replace."""
    batch_bytes = _BATCH_BYTES if deadline == math.inf else _LIMITED_BATCH_BYTES
    snapshot = newest_snapshot(session, table)
    features = snapshot.protocol().toString()
    if "clustering" in features or "deletionVectors" not in features:
        return
    deleted = snapshot.numDeletedRecordsOpt()
    if deleted.isDefined() and not deleted.get():
        return
    size = snapshot.sizeInBytes()
    chosen = [
        one
        for one in list_files(session, snapshot)
        if one.size >= policy.small_bytes(size)
        and is_mostly_deleted(file_rows(one), policy)
        and (not partitions or dict(one.partition) in partitions)
    ]
    bins = list(_pack(chosen, policy.target_bytes(size)))
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
) -> tuple[list[int], list[int]]:
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
    return added, [one.size for files in bins for one in files]


class Maintenance(Protocol):
    """Maintains the tables that an update commits to."""

    def policy(self, table: Location, properties: Mapping[str, str]) -> TablePolicy:
        """The policy of a table."""

    def watch(self, table: Location) -> None:
        """Maintain a table from now on, even before its next commit."""

    def turn(self, table: Location) -> AbstractContextManager[None]:
        """Hold off compactions that need a pause between two batches, while the block runs."""

    def offer(self, table: Location, version: int, *, concurrently: bool) -> None:
        """Take note of a commit; returns at once.

        `concurrently`: whether a compaction can run while the flow goes on.
        """

    def compacted(self, table: Location, done: Compaction | Exception) -> None:
        """Report a compaction, or why it has failed."""

    def indexing(self, table: Location, *, read: int, rows: int) -> None:
        """Report how many rows of a large table were read for the index of its keys."""

    def finish(self) -> None:
        """Do the maintenance that is due, after the flows have ended."""

    def stop(self) -> None:
        """End the work at hand, and begin nothing else."""
