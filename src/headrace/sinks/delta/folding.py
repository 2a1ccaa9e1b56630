"""Small files of a table with changes by key are folded between two batches.

Each batch adds a file, and deletes rows of all files that have its keys: many files make the batch slow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace.sinks.delta.compaction import MANY_FILES, compact_files
from headrace.sinks.delta.data_files import DataFile, foldable_files
from headrace.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)


def fold_files(session: SparkSession, table: Location, files: Iterable[DataFile], snapshot: Any) -> None:
    """Rewrite small files, and files with many deleted rows, if there are many of them.

    The batch is committed: a failure is only logged.

    Args:
        session: The session of the batch.
        table: The table's folder.
        files: The table's files after the batch.
        snapshot: The version of the table that the batch was compared with.
    """
    # OPTIMIZE of a clustered table clusters its rows, and rewrites large files for it.
    if foldable_files(files) <= MANY_FILES or "clustering" in snapshot.protocol().toString():
        return
    try:
        compact_files(session, table)
    except Exception as error:
        _LOG.warning("small files of %s were not compacted: %s", table, error)
