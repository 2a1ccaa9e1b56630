"""What the flows of one process share that apply changes to one table.

Small files of the table are folded between two batches. Each batch adds a file, and deletes rows of all files
that have its keys: many files make the batch slow.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from headrace.model.maintenance import TablePolicy, count_foldable
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.compaction import Maintenance, compact_files
from headrace.sinks.delta.data_files import DataFile, file_rows, list_files
from headrace.sinks.delta.key_index import IndexMemory
from headrace.sinks.delta.table import delta_log
from headrace.storage.location import Location
from headrace.storage.table_log import commits_since_compaction

if TYPE_CHECKING:
    from headrace.sinks.delta.table_index import TableIndex


_LOG = logging.getLogger(__name__)
_LIMIT_S = 30.0
"""The next batch waits for a compaction."""


@dataclass(frozen=True)
class ListedFiles:
    """The numbers of files and deleted rows when the files of a table were last listed."""

    floor: int = 0  # the number of files that a compaction would have left
    deleted: int = 0  # the number of rows that deletion vectors hid


def fold_files(
    session: SparkSession,
    table: Location,
    files: Iterable[DataFile],
    snapshot: Any,
    maintenance: Maintenance | None = None,
) -> None:
    """Rewrite small files, and files with many deleted rows, if there are many. A failure is only
    reported."""
    policy = _policy(session, table, snapshot, maintenance)
    if policy is None:
        return
    wanted = count_foldable(map(file_rows, files), policy).wanted_commits(policy)
    # The batch's own commit is not in the snapshot.
    newest = int(snapshot.version()) + 1
    if wanted is None or commits_since_compaction(table, newest, wanted) < wanted:
        return
    try:
        done = compact_files(session, table, policy, limit_s=_LIMIT_S)
    except Exception as error:
        _LOG.warning("small files of %s were not compacted: %s", table, error)
        if maintenance is not None:
            maintenance.compacted(table, error)
    else:
        if maintenance is not None:
            maintenance.compacted(table, done)


def fold_unlisted(
    session: SparkSession, table: Location, known: ListedFiles, maintenance: Maintenance | None = None
) -> ListedFiles:
    """Fold a table whose files the batch did not list, such as after a MERGE.

    Its files are listed only if its checksum shows many more files or deleted rows than before. The batch is
    committed: a failure is only reported. Returns the numbers after the last listing.
    """
    try:
        snapshot = delta_log(session, table).unsafeVolatileSnapshot()
        policy = _policy(session, table, snapshot, maintenance)
        if policy is None or not _has_grown(snapshot, known, policy):
            return known
        files = list_files(session, snapshot)
        fold_files(session, table, files, snapshot, maintenance)
        floor = len(files) - count_foldable(map(file_rows, files), policy).number
        return ListedFiles(floor, sum(one.deleted_rows for one in files))
    except Exception as error:
        _LOG.warning("the files of %s were not listed: %s", table, error)
        return known


def _has_grown(snapshot: Any, known: ListedFiles, policy: TablePolicy) -> bool:
    checksum = snapshot.checksumOpt()
    if checksum.isEmpty():
        return False
    wanted = min(policy.small_files, policy.commits or policy.small_files)
    if checksum.get().numFiles() >= known.floor + wanted:
        return True
    deleted = checksum.get().numDeletedRecordsOpt()
    # Each batch deletes rows. Twice as many as before can exceed the limit.
    return bool(deleted.isDefined() and deleted.get() > 2 * known.deleted)


def _policy(
    session: SparkSession, table: Location, snapshot: Any, maintenance: Maintenance | None
) -> TablePolicy | None:
    """How the files of a table are folded; ``None`` if they are not folded between two batches."""
    # OPTIMIZE of a clustered table clusters its rows, and rewrites large files for it.
    if "clustering" in snapshot.protocol().toString():
        return None
    jvm: Any = session._jvm
    properties = dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(snapshot.metadata().configuration()))
    own = TablePolicy().with_properties(properties)
    policy = own if maintenance is None else maintenance.policy(table, properties)
    return policy if policy.compact and policy.auto else None


class SharedTable:
    """What the flows of one process share that apply changes to one table. `memory`: the memory of the
    indexes of all tables. `listed`: the numbers of files and deleted rows when the table's files were last
    listed."""

    def __init__(self, memory: IndexMemory | None = None) -> None:
        self.memory = IndexMemory() if memory is None else memory
        self.turn = threading.Lock()
        self.index: TableIndex | None = None
        self.listed = ListedFiles()


class SharedTables:
    """The shared state of each table, for as long as a flow writes to it."""

    def __init__(self) -> None:
        self._tables: WeakValueDictionary[str, SharedTable] = WeakValueDictionary()
        self._making = threading.Lock()
        self._memory = IndexMemory()

    def of(self, path: Location) -> SharedTable:
        with self._making:
            table = self._tables.get(str(path))
            if table is None:
                table = self._tables[str(path)] = SharedTable(self._memory)
            return table
