"""The Delta tables of a dataset: its own table, its quarantine table and its tombstone table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, assert_never

from headrace.model.names import TableName
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_log import is_table

Role = Literal["table", "quarantine", "tombstones"]
_SECONDARY: tuple[Role, ...] = ("quarantine", "tombstones")


@dataclass(frozen=True)
class DatasetTable:
    """A Delta table of a storage.

    Args:
        role: The dataset's own table, the table of its rejected rows, or the table of its deleted keys.
    """

    dataset: TableName
    role: Role = "table"

    @property
    def title(self) -> str:
        """The name in messages."""
        return self.dataset.short if self.role == "table" else f"{self.dataset.short} ({self.role})"

    def path(self, storage: Storage) -> Location:
        match self.role:
            case "table":
                return storage.table(self.dataset)
            case "quarantine":
                return storage.quarantine(self.dataset)
            case "tombstones":
                return storage.tombstones(self.dataset)
            case _:
                assert_never(self.role)


def secondary_tables(storage: Storage, dataset: TableName) -> Iterator[DatasetTable]:
    """The quarantine table and the tombstone table of a dataset, if they exist."""
    for role in _SECONDARY:
        one = DatasetTable(dataset, role)
        if is_table(one.path(storage)):
            yield one
