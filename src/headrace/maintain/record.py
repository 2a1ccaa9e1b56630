"""Records when a table was compacted, vacuumed and freed of old commits last."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from headrace.errors import HeadraceError
from headrace.maintain.dataset_tables import Role
from headrace.model.names import TableName
from headrace.storage.layout import Storage

Care = Literal["compacted", "ordered", "vacuumed", "erased", "log", "log_look", "vacuum_look"]


def record_maintenance(
    storage: Storage, table: TableName, care: Care, outcome: Mapping[str, Any], role: Role = "table"
) -> None:
    """Record what was done to a table, with the current time.

    Raises:
        StorageUnwritableError: A vacuum cannot be recorded. Other records are only information.
    """
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
    """Remove a record.

    Raises:
        StorageUnwritableError: The storage cannot be written.
    """
    if care in load_maintenance(storage, table, role):
        storage.care(table, role).update_json(
            lambda held: {key: value for key, value in held.items() if key != care}
        )


def load_maintenance(storage: Storage, table: TableName, role: Role = "table") -> Mapping[str, Any]:
    """What was done to a table last, by kind; empty if nothing is known."""
    try:
        held = storage.care(table, role).read_json()
    except (OSError, ValueError):
        return {}
    return held if isinstance(held, dict) else {}
