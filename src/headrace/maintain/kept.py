"""The Delta tables that are cared for: those of datasets, and those beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, assert_never

from headrace.model.names import TableName
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_log import is_table

Role = Literal["table", "quarantine", "tombstones"]
_BESIDE: tuple[Role, ...] = ("quarantine", "tombstones")


@dataclass(frozen=True)
class KeptTable:
    """A Delta table of a storage.

    Args:
        dataset: The dataset.
        role: The dataset's own table, the table of its rejected rows, or the table of its deleted keys.
    """

    dataset: TableName
    role: Role = "table"

    @property
    def title(self) -> str:
        """The name for people."""
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


def tables_beside(storage: Storage, dataset: TableName) -> Iterator[KeptTable]:
    """The tables that a dataset has besides its own."""
    for role in _BESIDE:
        kept = KeptTable(dataset, role)
        if is_table(kept.path(storage)):
            yield kept
