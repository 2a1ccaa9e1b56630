"""The snapshots of a flow: one file for each version, in the order in which they are applied.

The flow's query is a stream of these files, so a snapshot is applied exactly once, as a file is read.
"""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass

from headrace.model.snapshots import SnapshotMarker
from headrace.storage.location import Location


@dataclass(frozen=True)
class SnapshotLog:
    """The markers of a flow's snapshots."""

    folder: Location  # ``<storage>/snapshots/<dataset>``

    @property
    def pattern(self) -> str:
        """The files of the stream. Spark accepts a pattern whose folder does not exist yet."""
        return f"{self.folder}/*.json"

    def load(self) -> tuple[SnapshotMarker, ...]:
        """All markers, the oldest first."""
        return tuple(load_marker(self.folder / name) for name in self._names())

    def add(self, marker: SnapshotMarker) -> None:
        """Add the marker of the next snapshot.

        Spark reads files in the order of their modification times, so each is later than the one before.
        The file gets its time before it gets its name, since a query may be running.
        """
        folder, names = self.folder.local_path, self._names()
        modified_ms = time.time_ns() // 1_000_000
        if names:
            modified_ms = max(modified_ms, (folder / names[-1]).stat().st_mtime_ns // 1_000_000 + 1)
        number = int(names[-1].partition("-")[0]) + 1 if names else 1
        # A checkpoint knows files by their paths, so no other file may get this name.
        name = f"{number:012d}-{uuid.uuid4().hex[:8]}.json"
        # Spark ignores names that begin with a dot.
        staged = self.folder / f".{name}"
        staged.create_json(marker.to_json())
        os.utime(staged.local_path, ns=(modified_ms * 1_000_000,) * 2)
        staged.move(self.folder / name)

    def _names(self) -> list[str]:
        return sorted(name for name in self.folder.list_files() if name[0].isdigit())


def load_marker(path: Location) -> SnapshotMarker:
    """The marker in a file."""
    return SnapshotMarker.from_json(path.read_json())
