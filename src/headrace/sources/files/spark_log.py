"""Spark's own log of the files that it took in: ``sources/<i>/<N>`` of a checkpoint.

It has one entry for each set of files; an offset names the last of them. Now and then an entry is
written that holds all before it, too (``<N>.compact``), and older ones are removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from headrace.sources.files.lists import ReadFile
from headrace.state.identity import SourceIdentity, corrupt, folder_of, reading
from headrace.storage.location import Location

COMPACT_INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval"
"""After how many entries Spark writes one that holds all before it."""

_COMPACT = ".compact"
_FEW_FILES = 1_000
_VERSION = "v1"


def load_entries(checkpoint: Location, folder: int, first: int, last: int) -> dict[int, list[str]]:
    """The URIs of Spark's log entries ``first`` to ``last``, by entry."""
    log = checkpoint / "sources" / str(folder)
    found = {}
    for number in range(first, last + 1):
        path = log / str(number)
        if not path.exists():
            path = log / f"{number}{_COMPACT}"
        end = f'"batchId":{number}}}'
        # A compacted entry holds all before it, too; only lines of this one are parsed.
        found[number] = [_path_of(path, line) for line in _lines(path) if line.endswith(end)]
    return found


def load_seen(checkpoint: Location, folder: int) -> dict[str, int]:
    """Every URI that Spark's log holds, with the number of its entry."""
    return dict(_logged(checkpoint, folder))


def find_earlier(checkpoint: Location, folder: int, paths: Iterable[str], before: int) -> list[str]:
    """The URIs that Spark's log holds in an entry before this one."""
    wanted = set(paths)
    logged = _logged(checkpoint, folder) if wanted else ()
    return sorted({path for path, number in logged if number < before and path in wanted})


def _logged(checkpoint: Location, folder: int) -> Iterator[tuple[str, int]]:
    """Every URI in Spark's log, and the number of its entry."""
    log = checkpoint / "sources" / str(folder)
    names = log.list_files()
    compacted = [int(n.removesuffix(_COMPACT)) for n in names if n.endswith(_COMPACT) and n[0].isdigit()]
    newest = max(compacted, default=-1)
    paths = [log / f"{newest}{_COMPACT}"] if newest >= 0 else []
    paths += [log / str(n) for n in sorted(int(name) for name in names if name.isdigit()) if n > newest]
    for path in paths:
        number = int(path.name.removesuffix(_COMPACT))
        for line in _lines(path):
            yield _path_of(path, line), min(number, _number_of(line, number))


class SeenFiles:
    """The files that a source has read: of each a hash of its path, and the number of its entry in the log.

    The paths of millions of files would need gigabytes. Two paths can have one hash: `find_earlier` decides.
    """

    def __init__(self, seen: Mapping[str, int]) -> None:
        import numpy as np

        self._keys = self._entries = np.empty(0, dtype=np.int64)
        self._new = {_hash(path): entry for path, entry in seen.items()}
        self._count = len(seen)
        self._fold()

    def __len__(self) -> int:
        return self._count

    def entry_of(self, path: str) -> int | None:
        """The entry of a file; ``None`` if it was not read."""
        key = _hash(path)
        if (entry := self._new.get(key)) is not None:
            return entry
        at = int(self._keys.searchsorted(key))
        return int(self._entries[at]) if at < self._keys.size and self._keys[at] == key else None

    def add(self, path: str, entry: int) -> None:
        """Add a file; one that is there with this entry is not added again."""
        if self.entry_of(path) != entry:
            self._new[_hash(path)] = entry
            self._count += 1
            if len(self._new) > max(_FEW_FILES, self._keys.size // 32):
                self._fold()

    def _fold(self) -> None:
        import numpy as np

        # New files first: of two with one hash, the last one is found.
        keys = np.concatenate((np.array(list(self._new), dtype=np.int64), self._keys))
        entries = np.concatenate((np.array(list(self._new.values()), dtype=np.int64), self._entries))
        order = np.argsort(keys, kind="stable")
        self._keys, self._entries = keys[order], entries[order]
        self._new = {}


def _hash(path: str) -> int:
    return int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest(), signed=True)


def last_entry(checkpoint: Location, folder: int) -> int:
    """The last entry of Spark's log; -1 if there is none."""
    log = checkpoint / "sources" / str(folder)
    names = (name.removesuffix(_COMPACT) for name in log.list_files())
    return max((int(name) for name in names if name.isdigit()), default=-1)


def seed_log(source: SourceIdentity, last: int, files: Sequence[ReadFile], interval: int) -> dict[str, str]:
    """Spark's log of a source whose files up to an entry have been read, as Spark would find it."""
    compacted = (last + 1) // interval * interval - 1
    names = {number: str(number) for number in range(last + 1)}
    names |= dict.fromkeys(range(compacted + 1), f"{compacted}{_COMPACT}")
    lines: dict[str, list[str]] = {name: [_VERSION] for name in names.values()}
    for file in sorted(files, key=lambda one: one.log):
        entry = {"path": file.path, "timestamp": file.modified or 0, "batchId": file.log}
        lines[names[file.log]].append(json.dumps(entry, separators=(",", ":")))
    folder = f"sources/{folder_of(source)}"
    return {f"{folder}/{name}": "\n".join(several) for name, several in lines.items()}


def _lines(path: Location) -> Iterator[str]:
    with reading(path):
        version, *lines = path.read_text().split("\n")
        if version != _VERSION:
            raise ValueError(f"unknown version {version!r}")
    yield from (line for line in lines if line)


def _path_of(path: Location, line: str) -> str:
    try:
        return str(json.loads(line)["path"])
    except (ValueError, KeyError, TypeError) as error:
        raise corrupt(path, error) from error


def _number_of(line: str, default: int) -> int:
    number = line.rpartition('"batchId":')[2].rstrip("}")
    return int(number) if number.isdigit() else default
