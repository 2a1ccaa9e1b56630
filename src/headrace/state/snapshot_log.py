"""The snapshots of a flow: one file for each version, in the order in which they are applied.

The flow's query is a stream of these files, so a snapshot is applied exactly once, as a file is read.
A marker is added when all others are applied: Spark orders files by their times, which the storage sets.
"""

from __future__ import annotations

import errno
import json
import uuid
from dataclasses import dataclass, field

from headrace.model.snapshots import SnapshotMarker
from headrace.storage.location import Location


@dataclass(frozen=True)
class SnapshotLog:
    folder: Location  # ``<storage>/snapshots/<dataset>``
    _loaded: dict[str, SnapshotMarker] = field(default_factory=dict, repr=False, compare=False)

    @property
    def pattern(self) -> str:
        """The files of the stream. Spark accepts a pattern whose folder does not exist yet."""
        return f"{self.folder}/*.json"

    def load(self) -> tuple[SnapshotMarker, ...]:
        names = self._names()
        new = self.folder.read_files([name for name in names if name not in self._loaded])
        self._loaded.update({name: SnapshotMarker.from_json(json.loads(data)) for name, data in new.items()})
        if gone := [name for name in names if name not in self._loaded]:
            raise FileNotFoundError(
                errno.ENOENT, "the marker of a snapshot has vanished", str(self.folder / gone[0])
            )
        return tuple(self._loaded[name] for name in names)

    def add(self, marker: SnapshotMarker) -> None:
        names = self._names()
        number = int(names[-1].partition("-")[0]) + 1 if names else 1
        # A checkpoint knows files by their paths, so no other file may get this name.
        (self.folder / f"{number:012d}-{uuid.uuid4().hex[:8]}.json").create_json(marker.to_json())

    def _names(self) -> list[str]:
        return [name for name in self.folder.list_files() if name[0].isdigit()]


def load_marker(path: Location) -> SnapshotMarker:
    return SnapshotMarker.from_json(path.read_json())
