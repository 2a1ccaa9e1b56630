"""The Delta tables of a dataset, their policies, and the record of their maintenance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, assert_never

from headrace.errors import HeadraceError
from headrace.model.maintenance import MaintenanceSettings, TablePolicy
from headrace.model.names import TableName
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_log import is_table, load_checksum, newest_version
from headrace.storage.table_snapshot import TableSnapshot, load_snapshot

Role = Literal["table", "quarantine", "tombstones"]
_SECONDARY: tuple[Role, ...] = ("quarantine", "tombstones")
Care = Literal["compacted", "ordered", "vacuumed", "erased", "log", "log_look", "vacuum_look"]


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


def record_maintenance(
    storage: Storage, table: TableName, care: Care, outcome: Mapping[str, Any], role: Role = "table"
) -> None:
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


def load_policy(
    storage: Storage, maintenance: MaintenanceSettings, target: DatasetTable, snapshot: TableSnapshot
) -> TablePolicy:
    """The policy of a table. The policy of a dataset's own table holds for its other tables, too."""
    name, is_own = target.dataset, target.role == "table"
    properties = snapshot.properties
    if not is_own:
        _, properties = load_metadata(storage.table(name), newest_version(storage.table(name)))
    policy = maintenance.of(name, properties)
    return policy if is_own else policy.for_secondary_tables


def load_metadata(table: Location, version: int) -> tuple[str, Mapping[str, str]]:
    """Delta's id of a table, and its properties: those of the checksum of a commit, if there is one."""
    try:
        found = load_checksum(table, version)["metadata"]
        return str(found["id"]), dict(found["configuration"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        snapshot = load_snapshot(table)
        return snapshot.table_id, snapshot.properties
