"""A refresh of a view as one commit that removes some rows by their positions, and adds others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.model.counts import BatchCounts
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.commit import commit_increment
from headrace.sinks.delta.data_files import (
    DataFile,
    MaskedRows,
    NoPositionsError,
    collect,
    find_files,
    find_positions,
    mask_rows,
    position_columns,
    read_files,
)
from headrace.sinks.delta.placed_rows import check_positions, table_rows
from headrace.sinks.delta.table import delta_log
from headrace.sinks.delta.transaction import WrittenFiles, prepend, table_properties, write_files
from headrace.sinks.target import Committed, RefreshStamp, SplitRows
from headrace.storage.location import Location
from headrace.storage.row_counts import newest_refresh
from headrace.storage.table_log import newest_version

if TYPE_CHECKING:
    import pyarrow as pa

_VECTORS = "delta.enableDeletionVectors"


class ViewIncrement:
    """A change of a view that begins with the view as it is now. `version`: its version. `last`: what the
    last refresh has recorded; ``None`` if the rows are not those of a refresh."""

    def __init__(self, session: SparkSession, path: Location) -> None:
        self._session, self._path = session, path
        self._transaction: Any = delta_log(session, path).startTransaction()
        self.version = int(self._transaction.readVersion())
        self.last: Mapping[str, Any] | None = None
        if self.version >= 0 and newest_version(path) == self.version:
            commit = newest_refresh(path)
            self.last = None if commit is None else commit.metadata

    def commit(
        self,
        stamp: RefreshStamp,
        added: SplitRows,
        removed: DataFrame | None,
        facts: Mapping[str, Any],
        check_removed: Callable[[int], None],
        count_failed: Callable[[pa.Table], Sequence[int]],
    ) -> tuple[Committed, Mapping[str, int]]:
        """Commit the rows of an increment. `removed`: the positions of rows. `facts`: what the commit says of
        the increment beside the numbers of its rows. `check_removed`: refuses too many removed rows.
        `count_failed`: how many of the removed rows fail each expectation.

        Raises:
            NoPositionsError: The view cannot be changed by position; nothing is committed.
        """
        session, path = self._session, self._path
        masked = MaskedRows()
        count = 0
        failed: Sequence[int] = ()
        if removed is not None:
            found = collect(removed)
            if count := found.num_rows:
                check_removed(count)
                failed = count_failed(found)
                files = self._files
                numbered = {one.number: one for one in files}
                masked = mask_rows(session, path, numbered, find_positions(found, files))
        transaction = self._transaction
        written = write_files(transaction, table_rows(added.accepted, transaction))
        added.settle()
        counts = self._with_kept(added.counts(written.rows), count, failed)
        rows = {"added": written.rows, "removed": count}
        actions = written.actions
        for action in masked.actions:
            actions = prepend(actions, action)
        files_of = WrittenFiles(actions=actions, added=written.added)
        version = commit_increment(session, transaction, files_of, stamp, counts, {**facts, **rows})
        return Committed(version=version, counts=counts), rows

    def _with_kept(self, added: BatchCounts, removed: int, failed: Sequence[int]) -> BatchCounts:
        """The counts of all rows that the view has with the added rows and without the removed ones."""
        last = self.last or {}
        accepted = self.row_count + added.accepted - removed
        dropped = int(last.get("dropped", 0)) + added.dropped
        before = {str(one["name"]): int(one["failed"]) for one in last.get("expectations", ())}
        gone = failed or [0] * len(added.expectations)
        listed = []
        for one, less in zip(added.expectations, gone, strict=True):
            total = before.get(one.name, 0) + one.failed - less
            listed.append(replace(one, failed=total, passed=accepted + dropped - total))
        return BatchCounts(
            input=accepted + dropped, accepted=accepted, dropped=dropped, expectations=tuple(listed)
        )

    def has_columns(self, rows: DataFrame) -> bool:
        """Whether the columns of the view are those of the rows: another writer can rename, add or drop one.
        Raises `NoPositionsError` if Delta would have to convert the rows."""
        held = self._transaction.metadata().schema()
        if held.catalogString() != rows._jdf.schema().catalogString():
            return False
        # Before an increment is computed: it could not be written.
        table_rows(rows, self._transaction)
        return True

    def open_rows(self) -> DataFrame:
        """The rows of the view with their positions. Turns on deletion vectors, unless the view's properties
        already say whether it has them: without deletion vectors, Delta does not give the positions of rows.

        Raises:
            NoPositionsError: The view cannot be changed by position.
        """
        session, path = self._session, self._path
        if _VECTORS not in table_properties(session, self._transaction):
            name = "delta.`" + str(path).replace("`", "``") + "`"
            session.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{_VECTORS}' = 'true')")
            self._transaction = delta_log(session, path).startTransaction()
            self.version += 1
            if int(self._transaction.readVersion()) != self.version:
                raise NoPositionsError("another process has changed the view")
        check_positions(session, self._transaction)
        rows = read_files(session, path, self._transaction.snapshot(), self._files)
        return rows.select("*", *position_columns())

    @cached_property
    def _files(self) -> list[DataFile]:
        """The data files of the view."""
        return find_files(self._session, self._path, self._transaction.snapshot())

    @cached_property
    def row_count(self) -> int:
        stated = (self.last or {}).get("accepted")
        if stated is not None:
            return int(stated)
        return int(self._session.read.format("delta").load(str(self._path)).count())
