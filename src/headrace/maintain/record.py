"""Records when a table was compacted, vacuumed and freed of old commits last."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from headrace.errors import HeadraceError
from headrace.maintain.dataset_tables import Role
from headrace.model.names import TableName
from headrace.storage.layout import Storage

Care = Literal["compacted", "vacuumed", "log", "log_look", "vacuum_look"]


def record_care(
    storage: Storage, table: TableName, care: Care, outcome: Mapping[str, Any], role: Role = "table"
) -> None:
    """Record what was done to a table just now; a storage that cannot be written is left as it is."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        storage.care(table, role).replace_json(
            {**load_care(storage, table, role), care: {"at": at, **outcome}}
        )
    except HeadraceError:
        # It is information for people; the care itself is done.
        return


def load_care(storage: Storage, table: TableName, role: Role = "table") -> Mapping[str, Any]:
    """What was done to a table last, by kind; empty if nothing is known."""
    try:
        held = storage.care(table, role).read_json()
    except (OSError, ValueError):
        return {}
    return held if isinstance(held, dict) else {}
