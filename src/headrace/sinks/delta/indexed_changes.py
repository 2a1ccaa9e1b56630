"""Writes and commits the changes of a table whose keys have an index, and advances the index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.sinks.delta.changed_rows import commit_rows, write_changes
from headrace.sinks.delta.data_files import DataFile
from headrace.sinks.delta.deletion_vectors import mask_rows
from headrace.sinks.delta.folding import fold_files
from headrace.sinks.delta.key_index import Entries, Unsigned
from headrace.sinks.delta.keyed import KeyedWriter
from headrace.sinks.delta.table_index import TableIndex
from headrace.sinks.delta.transaction import WrittenFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.model.counts import BatchCounts
    from headrace.sinks.target import BatchStamp


class IndexedChanges:
    """The new rows of a batch, and the rows that they replace."""

    def __init__(
        self,
        writer: KeyedWriter,
        index: TableIndex,
        *,
        rows: DataFrame,
        count: int,
        old_rows: Unsigned,
        identity: tuple[str, ...],
    ) -> None:
        self._writer = writer
        self._index = index
        self._old_rows = old_rows
        self._files: WrittenFiles = write_changes(
            writer.session,
            writer.transaction,
            writer.table.path,
            rows=rows,
            count=count,
            files=index.files,
            old_rows=old_rows,
            identity=identity,
        )
        self._added: dict[int, DataFile | None] = dict(index.new_files(self._files))

    def read_entries(self) -> Entries:
        """The positions of the new rows."""
        added = {number: file for number, file in self._added.items() if file is not None}
        if not added:
            return Entries.empty()
        return self._index.read(self._writer.session, self._writer.transaction.snapshot(), added)

    def commit(self, entries: Entries, stamp: BatchStamp, counts: BatchCounts) -> int:
        """Commit the changes; returns the version.

        Raises:
            BatchFencedError: Another driver has committed with this checkpoint meanwhile.
        """
        session, transaction, index = self._writer.session, self._writer.transaction, self._index
        table = self._writer.table
        masked = mask_rows(session, table.path, index.files, self._old_rows)
        version = commit_rows(session, transaction, self._files, masked, stamp, counts)
        index.advance(session, version, entries, self._added | masked.files)
        fold_files(session, table.path, index.files.values(), transaction.snapshot(), table.maintenance)
        return version
