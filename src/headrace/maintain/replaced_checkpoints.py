"""Checkpoints that a newer checkpoint of the same flow has replaced, and that no run reads any more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.errors import HeadraceError
from headrace.maintain.checkpoints import measure
from headrace.model.names import TableName
from headrace.sinks.delta.table import CHECKPOINT_PROPERTY
from headrace.state.identity import generations, load_identity
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_snapshot import TableSnapshot


@dataclass(frozen=True, kw_only=True)
class ReplacedCheckpoint:
    """A checkpoint that can be removed."""

    flow: str
    path: Location
    replaced: datetime
    files: int
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "flow": self.flow,
            "path": str(self.path),
            "replaced": self.replaced.isoformat(timespec="seconds"),
            "files": self.files,
            "size_bytes": self.size_bytes,
        }


def find_replaced(
    storage: Storage, table: TableName, snapshot: TableSnapshot, kept_since: datetime
) -> Iterator[ReplacedCheckpoint]:
    """The checkpoints of a table's flows that were replaced before a time.

    If the table's properties do not name the newest checkpoint of a flow, all checkpoints of the flow are
    kept: a process may have created the newest one and not finished.
    """
    for flow in storage.checkpoints(table).list_folders():
        known = generations(storage.flow_checkpoints(table, flow))
        if len(known) < 2:
            continue
        try:
            newest = load_identity(known[-1])
            replaced = datetime.fromisoformat(newest.created)
        except (HeadraceError, OSError, ValueError):
            continue
        replaced = replaced if replaced.tzinfo else replaced.replace(tzinfo=UTC)
        if snapshot.properties.get(CHECKPOINT_PROPERTY + flow) != newest.checkpoint or replaced >= kept_since:
            continue
        for path in known[:-1]:
            yield ReplacedCheckpoint(flow=flow, path=path, replaced=replaced, **measure(path))
