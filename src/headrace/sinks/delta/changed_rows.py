"""Rows that a batch adds to a table and deletes from it, committed by their positions.

New rows are appended, and old ones marked in deletion vectors. Everything is one commit through Delta's own
transaction, which conflicts with rows that another writer adds meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.model.names import quoted_column
from headrace.sinks.delta.append import is_fast
from headrace.sinks.delta.change_images import has_change_feed, with_change_images
from headrace.sinks.delta.commit import commit_batch
from headrace.sinks.delta.data_files import (
    DataFile,
    NoPositionsError,
    find_positions,
    list_files,
    read_files,
)
from headrace.sinks.delta.deletion_vectors import MaskedRows, mask_rows, with_only_rows
from headrace.sinks.delta.effects import EFFECT
from headrace.sinks.delta.folding import fold_files
from headrace.sinks.delta.key_index import Unsigned
from headrace.sinks.delta.maintenance import Maintenance
from headrace.sinks.delta.transaction import WrittenFiles, iterate, scala_list, table_properties, write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.model.counts import BatchCounts
    from headrace.sinks.target import BatchStamp
    from headrace.storage.location import Location

_ROWS_OF_A_FILE = 200_000


def check_positions(session: SparkSession, transaction: Any) -> None:
    """Check that rows of a table can be changed by position.

    Raises:
        NoPositionsError: They cannot.
    """
    given = {name: value.lower() for name, value in table_properties(session, transaction).items()}
    if given.get("delta.enableDeletionVectors") != "true":
        raise NoPositionsError("the table has no deletion vectors")
    if given.get("delta.enableRowTracking") == "true":
        raise NoPositionsError("the table has delta.enableRowTracking")
    if any(name.casefold() == "_metadata" for name in transaction.metadata().schema().fieldNames()):
        raise NoPositionsError("the table has a column `_metadata`, which hides the positions of rows")


def table_rows(rows: DataFrame, transaction: Any) -> DataFrame:
    """The columns of the table, as Delta writes them.

    Raises:
        NoPositionsError: Columns are missing, or Delta's public writer would convert the rows.
    """
    names = list(transaction.metadata().schema().fieldNames())
    given = {name.casefold() for name in rows.columns}
    if not {name.casefold() for name in names} <= given:
        raise NoPositionsError("the query does not return all columns of the table")
    chosen = rows.select(*map(quoted_column, names))
    if not is_fast(chosen, transaction, reads_target=False):
        raise NoPositionsError("Delta's own writer has to convert the rows")
    return chosen


def write_changes(
    session: SparkSession,
    transaction: Any,
    table: Location,
    *,
    rows: DataFrame,
    count: int,
    files: Mapping[int, DataFile],
    old_rows: Unsigned,
    identity: tuple[str, ...],
) -> WrittenFiles:
    """Write new rows, and the rows of the table's change feed, to files that no commit names yet."""
    has_feed = bool(count or len(old_rows)) and has_change_feed(session, transaction)
    if not count and not has_feed:
        return WrittenFiles(actions=scala_list(session._jvm))
    if has_feed:
        chosen = with_only_rows(session, table, files, old_rows)
        old = read_files(session, table, transaction.snapshot(), chosen.values())
        rows = with_change_images(rows, old, identity)
        count += count + len(old_rows)
    # Many small files would slow each later batch down, which marks old rows in all of them.
    return write_files(transaction, rows.coalesce(1 + count // _ROWS_OF_A_FILE))


def commit_rows(
    session: SparkSession,
    transaction: Any,
    added: WrittenFiles,
    masked: MaskedRows,
    stamp: BatchStamp,
    counts: BatchCounts,
) -> int:
    """Commit new files and deletion vectors together; returns the version."""
    actions = scala_list(session._jvm, [*iterate(added.actions), *masked.actions])
    # A row that another writer adds meanwhile may have a key of the batch.
    transaction.readWholeTable()
    return commit_batch(session, transaction, WrittenFiles(actions=actions), stamp, counts, "Update")


def commit_effects(
    session: SparkSession,
    transaction: Any,
    table: Location,
    effects: DataFrame,
    old: DataFrame,
    identity: tuple[str, ...],
    count: int,
    stamp: BatchStamp,
    counts: BatchCounts,
    maintenance: Maintenance | None = None,
) -> int:
    """Apply changes to rows by their positions, and commit them.

    Args:
        transaction: Delta's transaction, whose snapshot the effects were computed from.

    Returns:
        The version of the commit.

    Raises:
        NoPositionsError: They cannot be applied by position; nothing is committed.
        BatchFencedError: Another driver has committed with this checkpoint meanwhile.
    """
    snapshot = transaction.snapshot()
    rows = table_rows(effects.where(f"{EFFECT} IN ('insert', 'update')"), transaction)
    positions = old.toArrow()
    files: Mapping[int, DataFile] = {}
    if len(positions):
        files = {one.number: one for one in list_files(session, snapshot)}
    old_rows = find_positions(positions, files.values())
    masked = mask_rows(session, table, files, old_rows)
    added = write_changes(
        session,
        transaction,
        table,
        rows=rows,
        count=count,
        files=files,
        old_rows=old_rows,
        identity=identity,
    )
    version = commit_rows(session, transaction, added, masked, stamp, counts)
    left = {**files, **masked.files}
    fold_files(session, table, [one for one in left.values() if one is not None], snapshot, maintenance)
    return version
