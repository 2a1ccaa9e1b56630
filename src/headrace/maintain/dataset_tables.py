"""The Delta tables of a dataset, and the record of their maintenance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, assert_never

from headrace.errors import HeadraceError
from headrace.model.names import TableName
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_log import is_table

Role = Literal["table", "quarantine", "tombstones"]
_SECONDARY: tuple[Role, ...] = ("quarantine", "tombstones")


@dataclass(frozen=True)
class DatasetTable:
    """A Delta table of a storage. `role`: the dataset's own table, the table of its rejected rows, or the
    table of its deleted keys."""

    dataset: TableName
    role: Role = "table"

    @property
    def title(self) -> str:
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


Care = Literal["compacted", "ordered", "vacuumed", "erased", "log", "log_look", "vacuum_look"]


def record_maintenance(
    storage: Storage, table: TableName, care: Care, outcome: Mapping[str, Any], role: Role = "table"
) -> None:
    """Record a maintenance step of a table, with the current time."""
    at = datetime.now(UTC).isoformat(timespec="seconds")

    def change(held: Any) -> dict[str, Any]:
        return {**(held if isinstance(held, dict) else {}), care: {"at": at, **outcome}}

    try:
        storage.care(table, role).update_json(change)
    except HeadraceError:
        if care in ("vacuumed", "erased"):
            # `headrace pin` refuses versions by the first, and erasures end by the second.
            raise


def forget_maintenance(storage: Storage, table: TableName, care: Care, role: Role = "table") -> None:
    if care in load_maintenance(storage, table, role):
        storage.care(table, role).update_json(
            lambda held: {key: value for key, value in held.items() if key != care}
        )


def load_maintenance(storage: Storage, table: TableName, role: Role = "table") -> Mapping[str, Any]:
    """What was done to a table last, by kind; empty if nothing is known."""
    held = storage.care(table, role).find_json()
    return held if isinstance(held, dict) else {}
