"""The progress of the tables, read from their logs without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.model.names import TableName
from headrace.storage.layout import Storage
from headrace.storage.table_log import is_table, newest_commits

if TYPE_CHECKING:
    from deltalake import DeltaTable


class TableWatch:
    """Counts the rows of tables repeatedly."""

    def __init__(self, storage: Storage, *, streams: tuple[TableName, ...], view: TableName) -> None:
        self._storage = storage
        self._streams = streams
        self._view = view
        self._tables: dict[TableName, DeltaTable] = {}
        self._rows: dict[TableName, int] = dict.fromkeys(streams, 0)

    def look(self) -> Mapping[TableName, int]:
        """The rows of each streaming table now."""
        from deltalake import DeltaTable

        for name in self._streams:
            path = self._storage.table(name)
            if name in self._tables:
                self._tables[name].update_incremental()
            elif is_table(path):
                self._tables[name] = DeltaTable(str(path))
            else:
                continue
            self._rows[name] = self._tables[name].count()
        return dict(self._rows)

    def holds(self, *rows: int) -> bool:
        """Whether each streaming table had so many rows at the last call, and the view has read them all."""
        found = self._rows.values()
        return all(one >= least for one, least in zip(found, rows, strict=True)) and self._view_is_fresh()

    def _view_is_fresh(self) -> bool:
        path = self._storage.table(self._view)
        source = self._tables.get(self._streams[-1])
        for commit in newest_commits(path):
            if commit.metadata is not None and "inputs" in commit.metadata:
                seen = commit.metadata["inputs"].get(str(self._streams[-1]), {}).get("version", -1)
                return source is not None and bool(seen >= source.version())
        return False
