"""Rewrites large files whose rows are mostly deleted, without their deleted rows.

Delta's OPTIMIZE chooses these files, too, but it rewrites a file only together with other files that fit into
the target size with it. A file of the target size stays as it is, however many of its rows are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from headrace.model.maintenance import TablePolicy, is_mostly_deleted
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.data_files import DataFile, file_rows, list_files
from headrace.sinks.delta.table import newest_snapshot
from headrace.sinks.delta.transaction import iterate, scala_list
from headrace.storage.location import Location


def rewrite_masked(
    session: SparkSession,
    table: Location,
    policy: TablePolicy,
    batch_bytes: int,
    partitions: Sequence[Mapping[str, str | None]] = (),
) -> Iterator[tuple[list[int], list[int]]]:
    """Rewrite the files that are not small and have mostly deleted rows; commit each batch of files.

    Args:
        batch_bytes: The bytes of the files that are rewritten by one commit.

    Yields:
        The sizes of the new files of each commit, and of the files that they replace.
    """
    snapshot = newest_snapshot(session, table)
    deleted = snapshot.numDeletedRecordsOpt()
    is_clustered = "clustering" in snapshot.protocol().toString()
    if is_clustered or (deleted.isDefined() and not deleted.get()):
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
