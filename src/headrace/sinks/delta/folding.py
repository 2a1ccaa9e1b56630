"""Small files of a table with changes by key are folded between two batches.

Each batch adds a file, and deletes rows of all files that have its keys: many files make the batch slow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace.model.care import CarePolicy
from headrace.sinks.delta.carer import TableCarer
from headrace.sinks.delta.compaction import compact_files
from headrace.sinks.delta.data_files import DataFile, foldable_files
from headrace.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)


def fold_files(
    session: SparkSession,
    table: Location,
    files: Iterable[DataFile],
    snapshot: Any,
    carer: TableCarer | None = None,
) -> None:
    """Rewrite small files, and files with many deleted rows, if there are many of them.

    The batch is committed: a failure is only reported.

    Args:
        session: The session of the batch.
        table: The table's folder.
        files: The table's files after the batch.
        snapshot: The version of the table that the batch was compared with.
        carer: Knows the policy of the table, and reports what was done.
    """
    # OPTIMIZE of a clustered table clusters its rows, and rewrites large files for it.
    if "clustering" in snapshot.protocol().toString():
        return
    jvm: Any = session._jvm
    properties = dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(snapshot.metadata().configuration()))
    own = CarePolicy().with_properties(properties)
    policy = own if carer is None else carer.policy(table, properties)
    listed = list(files)
    small_bytes = policy.small_bytes(sum(one.size for one in listed))
    foldable = foldable_files(listed, small_bytes, policy.deleted_ratio)
    if not (policy.compact and policy.auto) or foldable < policy.small_files:
        return
    if policy.closed_partitions is not None and snapshot.metadata().partitionColumns().nonEmpty():
        # `Caretaker` compacts closed partitions.
        return
    try:
        done = compact_files(session, table, policy)
    except Exception as error:
        _LOG.warning("small files of %s were not compacted: %s", table, error)
        if carer is not None:
            carer.compacted(table, error)
    else:
        if carer is not None:
            carer.compacted(table, done)
