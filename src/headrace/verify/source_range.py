"""The range of a source that one batch read, as its commit or the ledger says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Position = Mapping[str, Any]
"""A source's position, as its JSON:

* kafka: ``{"<topic>": {"<partition>": <next offset>}}``
* delta: Spark's offset, ``{"reservoirId", "reservoirVersion", "index", "isStartingVersion", ..}``
* files: ``{"logOffset": <number of the last file batch>}``
* other: ``{"offset": <Spark's offset of that source, whatever it holds>}``
"""

OPAQUE = "other"
"""The kind of a source whose positions only Spark understands."""


@dataclass(frozen=True)
class SourceRange:
    """What one batch read from one source of its query.

    Args:
        index: The number of the source in the query, as Spark counts from 0.
        kind: The kind of system.
        identity: What tells this source from another of the same name:
            kafka ``{"topics": {"<topic>": "<topic id>"}}``, delta ``{"table_id", "path"}``,
            files ``{"path"}``, other ``{"format"}``.
        start: Inclusive; ``None`` before the first batch of a source that does not say where it starts.
        until: Exclusive for kafka; holds every partition, not only those that moved.
        seen: The last version of a table that was read, with the mark of its commit.
        files: Of the files that were read: ``count``, ``bytes``, the ``sha256`` of the list in the
            ledger, and the ``total`` of files up to here. ``carried`` marks the list of a seeded
            checkpoint: files that earlier ones have read.
    """

    index: int
    kind: str
    identity: Mapping[str, Any]
    start: Position | None
    until: Position
    seen: Mapping[str, Any] | None = None
    files: Mapping[str, Any] | None = None
