"""Rows that a batch adds to a table and deletes from it, committed by their positions.

New rows are appended, and old ones marked in deletion vectors. Everything is one commit through Delta's own
transaction, which conflicts with rows that another writer adds meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.model.names import quoted_column
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, SparkSession
from headrace.sinks.delta.append import is_fast
from headrace.sinks.delta.commit import commit_batch
from headrace.sinks.delta.data_files import (
    DataFile,
    NoPositionsError,
    collect,
    find_positions,
    list_files,
    mask_rows,
    read_files,
    with_only_rows,
)
from headrace.sinks.delta.folding import fold_files
from headrace.sinks.delta.key_index import Entries, Unsigned
from headrace.sinks.delta.table_index import TableIndex
from headrace.sinks.delta.transaction import WrittenFiles, iterate, scala_list, table_properties, write_files

if TYPE_CHECKING:
    from headrace.model.counts import BatchCounts
    from headrace.sinks.delta.append import FlowTable
    from headrace.sinks.target import BatchStamp

CHANGE_TYPE = "_change_type"
"""Delta's column: a row that has a value goes to the change feed, a row with NULL goes to the table."""
_MATCHED = "__headrace_matched"
_ROWS_OF_A_FILE = 200_000


@dataclass(frozen=True, kw_only=True)
class FoundRows:
    """The rows that are replaced or deleted, as the index of the keys has found them. `entries`: gives what
    the index must know after the batch, from the positions of the new rows."""

    index: TableIndex
    positions: Unsigned
    entries: Callable[[Entries], Entries]


class PlacedRows:
    """The new rows of a batch in files that no commit names yet, and the positions of old rows.
    `transaction`: Delta's transaction, whose snapshot the rows were compared with. `count`: how many new rows
    there are. `old`: the rows that are replaced or deleted: found by the index, or as a frame with `FILE` and
    `ROW`. `identity`: the columns that identify a row. A new and an old row with equal values are one update.
    Raises `NoPositionsError` if the table cannot be changed by position; nothing is committed."""

    def __init__(
        self,
        session: SparkSession,
        transaction: Any,
        table: FlowTable,
        *,
        rows: DataFrame,
        count: int,
        old: FoundRows | DataFrame,
        identity: tuple[str, ...],
    ) -> None:
        self._session, self._transaction, self._table = session, transaction, table
        self._found = old if isinstance(old, FoundRows) else None
        if self._found is None:
            check_positions(session, transaction)
        rows = table_rows(rows, transaction)
        if isinstance(old, FoundRows):
            self._files: Mapping[int, DataFile] = old.index.files
            self._old = old.positions
        else:
            positions = collect(old)
            listed = list_files(session, transaction.snapshot()) if len(positions) else []
            self._files = {one.number: one for one in listed}
            self._old = find_positions(positions, listed)
        self._written = self._write(rows, count, identity)
        self._added: dict[int, DataFile] = {}
        if self._found is not None:
            index = self._found.index
            self._added = index.new_files(self._written)
            snapshot, added = transaction.snapshot(), self._added
            self._entries = self._found.entries(
                index.read(session, snapshot, added) if added else Entries.empty()
            )

    def _write(self, rows: DataFrame, count: int, identity: tuple[str, ...]) -> WrittenFiles:
        """Write new rows, and the rows of the table's change feed."""
        session, transaction, path = self._session, self._transaction, self._table.path
        has_feed = bool(count or len(self._old)) and _has_change_feed(session, transaction)
        if not count and not has_feed:
            return WrittenFiles(actions=scala_list(session._jvm))
        if has_feed:
            chosen = with_only_rows(session, path, self._files, self._old)
            old = read_files(session, path, transaction.snapshot(), chosen.values())
            rows = with_change_images(rows, old, identity)
            count += count + len(self._old)
        # Many small files would slow each later batch down, which marks old rows in all of them.
        return write_files(transaction, rows.coalesce(1 + count // _ROWS_OF_A_FILE))

    def commit(self, stamp: BatchStamp, counts: BatchCounts) -> int:
        """Commit new files and deletion vectors together; returns the version."""
        session, transaction, table = self._session, self._transaction, self._table
        masked = mask_rows(session, table.path, self._files, self._old)
        actions = scala_list(session._jvm, [*iterate(self._written.actions), *masked.actions])
        # A row that another writer adds meanwhile may have a key of the batch.
        transaction.readWholeTable()
        version = commit_batch(session, transaction, WrittenFiles(actions=actions), stamp, counts, "Update")
        if self._found is not None:
            index = self._found.index
            index.advance(session, version, self._entries, {**self._added, **masked.files})
            fold_files(session, table.path, index.files.values(), transaction.snapshot(), table.maintenance)
        return version


def check_positions(session: SparkSession, transaction: Any) -> None:
    given = {name: value.lower() for name, value in table_properties(session, transaction).items()}
    if given.get("delta.enableDeletionVectors") != "true":
        raise NoPositionsError("the table has no deletion vectors")
    if given.get("delta.enableRowTracking") == "true":
        raise NoPositionsError("the table has delta.enableRowTracking")
    if any(name.casefold() == "_metadata" for name in transaction.metadata().schema().fieldNames()):
        raise NoPositionsError("the table has a column `_metadata`, which hides the positions of rows")


def table_rows(rows: DataFrame, transaction: Any) -> DataFrame:
    names = list(transaction.metadata().schema().fieldNames())
    given = {name.casefold() for name in rows.columns}
    if not {name.casefold() for name in names} <= given:
        raise NoPositionsError("the query does not return all columns of the table")
    chosen = rows.select(*map(quoted_column, names))
    if not is_fast(chosen, transaction, reads_target=False):
        raise NoPositionsError("Delta's own writer has to convert the rows")
    return chosen


def _has_change_feed(session: SparkSession, transaction: Any) -> bool:
    found = table_properties(session, transaction).get("delta.enableChangeDataFeed", "")
    return found.lower() == "true"


def with_change_images(new: DataFrame, old: DataFrame, identity: tuple[str, ...]) -> DataFrame:
    """The new rows, and the rows of the change feed, with `CHANGE_TYPE`. `old`: the rows of the table that
    are replaced or deleted, with the same columns. `identity`: the columns that identify a row. A new row and
    an old row with equal values are one update."""
    after = _matched(new, old, identity, F.lit("update_postimage"), F.lit("insert"))
    before = _matched(old, new, identity, F.lit("update_preimage"), F.lit("delete"))
    table = new.withColumn(CHANGE_TYPE, F.lit(None).cast("string"))
    return table.unionByName(after).unionByName(before)


def _matched(
    rows: DataFrame, others: DataFrame, identity: tuple[str, ...], found: Column, missing: Column
) -> DataFrame:
    """The rows with `CHANGE_TYPE`, depending on whether the others have a row of the same identity."""
    names = {column: f"__headrace_other_{number}" for number, column in enumerate(identity)}
    other = others.select(
        *(F.col(quoted_column(column)).alias(name) for column, name in names.items()),
        F.lit(True).alias(_MATCHED),
    ).distinct()
    same = F.lit(True)
    for column, name in names.items():
        same = same & F.col(quoted_column(column)).eqNullSafe(F.col(name))
    kind = F.when(F.col(_MATCHED), found).otherwise(missing)
    joined = rows.join(other, same, "left").withColumn(CHANGE_TYPE, kind)
    return joined.drop(_MATCHED, *names.values())
