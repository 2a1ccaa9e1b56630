"""What the flows of one process share that apply changes to one table."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from headrace.sinks.delta.folding import ListedFiles
from headrace.sinks.delta.key_index import IndexMemory
from headrace.storage.location import Location

if TYPE_CHECKING:
    from headrace.sinks.delta.table_index import TableIndex


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
        """The state of a table, by its folder."""
        with self._making:
            table = self._tables.get(str(path))
            if table is None:
                table = self._tables[str(path)] = SharedTable(self._memory)
            return table
