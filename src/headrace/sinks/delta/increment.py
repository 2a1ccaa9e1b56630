"""A refresh of a view as one commit that removes some rows by their positions, and adds others."""

from __future__ import annotations

from collections.abc import Mapping
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
from headrace.sinks.delta.replace import last_refresh
from headrace.sinks.delta.table import delta_log
from headrace.sinks.delta.transaction import WrittenFiles, prepend, write_files
from headrace.sinks.target import Committed, RefreshStamp
from headrace.storage.location import Location
from headrace.storage.table_log import newest_version


class ViewIncrement:
    """A change of a view that begins with the view as it is now. `version`: its version. `last`: what the
    last refresh has recorded; ``None`` if the rows are not those of a refresh."""

    def __init__(self, session: SparkSession, path: Location) -> None:
        self._session, self._path = session, path
        self._transaction: Any = delta_log(session, path).startTransaction()
        self.version = int(self._transaction.readVersion())
        self.last: Mapping[str, Any] | None = None
        if self.version >= 0 and newest_version(path) == self.version:
            self.last = last_refresh(path)

    def check_positions(self) -> None:
        """Check that rows of the view can be removed by their positions.

        Raises:
            NoPositionsError: They cannot.
        """
        check_positions(self._session, self._transaction)

    def commit(
        self, stamp: RefreshStamp, added: DataFrame, removed: DataFrame | None, facts: Mapping[str, Any]
    ) -> Committed:
        """Commit the rows of an increment. `removed`: the positions of rows. `facts`: what the commit says of
        the increment beside the numbers of its rows.

        Raises:
            NoPositionsError: The view cannot be changed by position; nothing is committed.
        """
        session, transaction, path = self._session, self._transaction, self._path
        if len(added.columns) > len(transaction.metadata().schema().fieldNames()):
            raise NoPositionsError("the query has columns that the view lacks")
        written = write_files(transaction, table_rows(added, transaction))
        masked = MaskedRows()
        count = 0
        if removed is not None:
            self.check_positions()
            found = collect(removed.distinct())
            if count := found.num_rows:
                files = list_files(session, transaction.snapshot())
                numbered = {one.number: one for one in files}
                masked = mask_rows(session, path, numbered, find_positions(found, files))
        after = self.row_count + written.rows - count
        counts = BatchCounts(input=after, accepted=after)
        increment = {**facts, "added": written.rows, "removed": count}
        actions = written.actions
        for action in masked.actions:
            actions = prepend(actions, action)
        files_of = WrittenFiles(actions=actions, added=written.added)
        version = commit_increment(session, transaction, files_of, stamp, counts, increment)
        return Committed(version=version, counts=counts)

    @cached_property
    def row_count(self) -> int:
        """The rows of the view before the commit."""
        stated = (self.last or {}).get("accepted")
        if stated is not None:
            return int(stated)
        files = list_files(self._session, self._transaction.snapshot())
        if all(one.rows is not None for one in files):
            return sum((one.rows or 0) - one.deleted_rows for one in files)
        return int(self._session.read.format("delta").load(str(self._path)).count())
