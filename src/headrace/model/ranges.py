"""Positions in sources, and the range of a source that one batch read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

SourceKind = Literal["kafka", "delta", "files"]

Position = Mapping[str, Any]
"""A source's position as JSON, in the words of its kind:

* kafka: ``{"<topic>": {"<partition>": <next offset>}}``
* delta: Spark's own offset, ``{"reservoirId", "reservoirVersion", "index", "isStartingVersion", ..}``
* files: ``{"logOffset": <number of the last file batch>}``
"""


@dataclass(frozen=True)
class SourceRange:
    """What one batch read from one source of its query.

    Args:
        index: The place of the source in the query, as Spark numbers it from 0.
        kind: The kind of system.
        identity: What tells this source from another of the same name:
            kafka ``{"topics": {"<topic>": "<topic id>"}}``, delta ``{"table_id", "path"}``,
            files ``{"path"}``.
        start: Inclusive; ``None`` before the first batch of a delta or files source.
        until: Exclusive for kafka; holds every partition, not only those that moved.
        seen: The last version of a delta source that was read, with the mark of its commit: a table
            that was rolled back uses the number again for another commit.
        files: What a files source read: ``count`` and ``bytes``, the ``sha256`` of the list that the
            ledger holds, and the ``total`` of files up to here. ``carried`` marks the list of a
            seeded checkpoint: files that earlier ones have read.
    """

    index: int
    kind: SourceKind
    identity: Mapping[str, Any]
    start: Position | None
    until: Position
    seen: Mapping[str, Any] | None = None
    files: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {
            "index": self.index,
            "kind": self.kind,
            "identity": dict(self.identity),
            "from": None if self.start is None else dict(self.start),
            "until": dict(self.until),
        }
        if self.seen is not None:
            said["seen"] = dict(self.seen)
        if self.files is not None:
            said["files"] = dict(self.files)
        return said
