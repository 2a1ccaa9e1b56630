"""A refresh of a view as one commit that removes some rows by their positions, and adds others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from headrace.model.counts import BatchCounts
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.commit import commit_increment
from headrace.sinks.delta.data_files import (
    MaskedRows,
    NoPositionsError,
    collect,
    find_positions,
    list_files,
    mask_rows,
)
from headrace.sinks.delta.placed_rows import check_positions, table_rows
from headrace.sinks.delta.table import delta_log
from headrace.sinks.delta.transaction import WrittenFiles, prepend, table_properties, write_files
from headrace.sinks.target import Committed, RefreshStamp
from headrace.storage.location import Location
from headrace.storage.refreshes import newest_refresh
from headrace.storage.table_log import newest_version

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
        added: DataFrame,
        removed: DataFrame | None,
        facts: Mapping[str, Any],
        check_removed: Callable[[int], None],
    ) -> tuple[Committed, Mapping[str, int]]:
        """Commit the rows of an increment. `removed`: the positions of rows. `facts`: what the commit says of
        the increment beside the numbers of its rows. `check_removed`: refuses too many removed rows.

        Raises:
            NoPositionsError: The view cannot be changed by position; nothing is committed.
        """
        session, path = self._session, self._path
        masked = MaskedRows()
        count = 0
        if removed is not None:
            found = collect(removed.distinct())
            if count := found.num_rows:
                check_removed(count)
                files = list_files(session, self._transaction.snapshot())
                numbered = {one.number: one for one in files}
                masked = mask_rows(session, path, numbered, find_positions(found, files))
        transaction = self._transaction
        written = write_files(transaction, table_rows(added, transaction))
        after = self.row_count + written.rows - count
        counts = BatchCounts(input=after, accepted=after)
        rows = {"added": written.rows, "removed": count}
        actions = written.actions
        for action in masked.actions:
            actions = prepend(actions, action)
        files_of = WrittenFiles(actions=actions, added=written.added)
        version = commit_increment(session, transaction, files_of, stamp, counts, {**facts, **rows})
        return Committed(version=version, counts=counts), rows

    def has_columns(self, rows: DataFrame) -> bool:
        """Whether the columns of the view are those of the rows: another writer can rename, add or drop one.
        Raises `NoPositionsError` if Delta would have to convert the rows."""
        held = self._transaction.metadata().schema()
        if held.catalogString() != rows._jdf.schema().catalogString():
            return False
        # Before an increment is computed: it could not be written.
        table_rows(rows, self._transaction)
        return True

    def open_positions(self) -> None:
        """Let the view have deletion vectors, if nobody has decided about them. Without them, Delta does not
        give the positions of rows.

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

    @cached_property
    def row_count(self) -> int:
        stated = (self.last or {}).get("accepted")
        if stated is not None:
            return int(stated)
        return int(self._session.read.format("delta").load(str(self._path)).count())
