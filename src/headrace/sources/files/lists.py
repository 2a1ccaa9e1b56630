"""Which files each batch read, by the lists of the ledger and by Spark's log; positions in a folder.

The lists that the ledger keeps outlive the checkpoint with Spark's own log, and hold each file's size and
time as the batch found it.

Spark's log is ``sources/<i>/<N>`` of a checkpoint. It has one entry for each set of files; an offset names
the last of them. Now and then an entry is written that holds all before it, too (``<N>.compact``), and older
ones are removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.model.folders import FileFolder
from headrace.model.ranges import Position
from headrace.state.checkpoint import SourceIdentity, corrupt, folder_of, reading
from headrace.state.facts import FlowFacts, History, ListOrigin, NextPosition, SourceFacts
from headrace.state.starting_positions import require_whole, resume_impossible
from headrace.storage.layout import locate
from headrace.storage.location import Location

_FOLDER = "files"
COMPACT_INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval"
"""After how many entries Spark writes one that holds all before it."""
_COMPACT = ".compact"
_FEW_FILES = 1_000
_VERSION = "v1"


@dataclass(frozen=True, kw_only=True)
class ReadFile:
    source: int
    log: int  # the number of the entry in Spark's log that names it
    path: str
    size: int | None  # its bytes; ``None`` where it was gone
    modified: int | None  # when it was last written, in milliseconds since 1970; ``None`` where it was gone
    lost: bool = False  # whether it was gone before it could be read, and the flow went on without it
    carried: bool = False  # whether an earlier checkpoint had read it

    def to_line(self) -> str:
        """One line of a list; what is hashed."""
        record: dict[str, Any] = {
            "source": self.source,
            "log": self.log,
            "path": self.path,
            "size": self.size,
            "modified": self.modified,
        }
        record |= {"lost": True} if self.lost else {}
        record |= {"carried": True} if self.carried else {}
        return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def describe_files(files: Sequence[ReadFile], total: int) -> dict[str, Any]:
    """The record of the files of one source in a commit."""
    lines = "\n".join(file.to_line() for file in files)
    record = {
        "count": len(files),
        "bytes": sum(file.size or 0 for file in files),
        "sha256": hashlib.sha256(lines.encode()).hexdigest(),
        "total": total,
    }
    return {**record, "carried": True} if any(file.carried for file in files) else record


def join_descriptions(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    """What two batches that follow each other say together; the sums are chained."""
    chained = hashlib.sha256(f"{one['sha256']}{two['sha256']}".encode()).hexdigest()
    return {
        "count": one["count"] + two["count"],
        "bytes": one["bytes"] + two["bytes"],
        "sha256": chained,
        "total": two["total"],
    }


@dataclass(frozen=True)
class FileLists:
    """The lists of one flow's batches, by checkpoint and batch."""

    folder: Location  # ``<ledger>/files``

    @classmethod
    def of_ledger(cls, ledger: Location) -> FileLists:
        return cls(ledger / _FOLDER)

    def write(self, checkpoint: str, batch: int, files: Iterable[ReadFile]) -> None:
        """Write a batch's list; replaces the list of an earlier attempt."""
        self._path(checkpoint, batch).replace(_text(files))

    def load(self, checkpoint: str, batch: int) -> tuple[ReadFile, ...] | None:
        path = self._path(checkpoint, batch)
        if path.exists():
            return _parsed(path, _read(path).split("\n"))
        packs = (pack for pack in self._packs(checkpoint) if batch in _numbers(pack))
        return next((_unpacked(pack).get(batch) for pack in packs), None)

    def load_source(self, checkpoint: str, source: int, last: int) -> tuple[ReadFile, ...]:
        """All files of a source up to an entry of Spark's log, as far as the lists are there."""
        found: dict[int, tuple[ReadFile, ...]] = {}
        for pack in self._packs(checkpoint):
            found |= _unpacked(pack)
        for path in self._singles(checkpoint):
            # After a crash between the two, a list is in a pack and still by itself.
            found[int(path.stem)] = _parsed(path, _read(path).split("\n"))
        return tuple(
            file
            for batch in sorted(found)
            for file in found[batch]
            if file.source == source and file.log <= last
        )

    def pack(self, checkpoint: str, last: int) -> None:
        """Put the lists of batches up to ``last`` into one file; they are in the table, and final."""
        singles = {int(path.stem): path for path in self._singles(checkpoint) if int(path.stem) <= last}
        if not singles:
            return
        parts = [f"{json.dumps({'batch': batch})}\n{_read(singles[batch])}" for batch in sorted(singles)]
        name = f"{min(singles):012d}-{max(singles):012d}.jsonl"
        (self.folder / checkpoint / name).replace("".join(parts))
        for path in singles.values():
            path.delete()

    def take_over(self, other: FileLists) -> None:
        """Take over another flow's lists, of its checkpoint and of those before it. After a crash, the next
        call takes over the rest."""
        for file in other.folder.walk():
            file.copy(self.folder / "/".join(file.below(other.folder)))
            file.delete()

    def _singles(self, checkpoint: str) -> list[Location]:
        return [file for file in self._files(checkpoint) if file.stem.isdigit()]

    def _packs(self, checkpoint: str) -> list[Location]:
        return [file for file in self._files(checkpoint) if "-" in file.stem]

    def _files(self, checkpoint: str) -> list[Location]:
        folder = self.folder / checkpoint
        return [folder / name for name in folder.list_files() if name[0].isdigit()]

    def _path(self, checkpoint: str, batch: int) -> Location:
        return self.folder / checkpoint / _name(batch)


def seed_list(checkpoint: str, files: Iterable[ReadFile]) -> dict[str, str]:
    """The list of a new checkpoint's files that earlier ones have read, by path within the ledger."""
    return {f"{_FOLDER}/{checkpoint}/{_name(0)}": _text(files)}


def covers(files: Sequence[ReadFile], last: int) -> bool:
    """Whether no list is missing of the files of a source up to an entry of Spark's log."""
    # Spark makes no entry without a file.
    return {file.log for file in files}.issuperset(range(last + 1))


def are_whole(files: Sequence[ReadFile], last: int, record: Mapping[str, Any] | None) -> bool:
    """Whether these are all files of a source up to an entry of Spark's log."""
    return covers(files, last) and record is not None and record.get("total") == len(files)


def _name(batch: int) -> str:
    return f"{batch:012d}.jsonl"


def _text(files: Iterable[ReadFile]) -> str:
    return "".join(f"{file.to_line()}\n" for file in files)


def _read(path: Location) -> str:
    with reading(path):
        return path.read_text()


def _parsed(path: Location, lines: Iterable[str]) -> tuple[ReadFile, ...]:
    try:
        return tuple(ReadFile(**json.loads(line)) for line in lines if line)
    except (ValueError, TypeError) as error:
        raise corrupt(path, error) from error


def _numbers(pack: Location) -> range:
    first, _, last = pack.stem.partition("-")
    return range(int(first), int(last) + 1)


def _unpacked(pack: Location) -> dict[int, tuple[ReadFile, ...]]:
    """The lists of a pack: each begins with a line that names its batch."""
    lines: dict[int, list[str]] = {}
    mine: list[str] = []
    for line in _read(pack).split("\n"):
        if line.startswith('{"batch"'):
            try:
                mine = lines.setdefault(int(json.loads(line)["batch"]), [])
            except (ValueError, KeyError, TypeError) as error:
                raise corrupt(pack, error) from error
        else:
            mine.append(line)
    return {batch: _parsed(pack, several) for batch, several in lines.items()}


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


@dataclass(frozen=True)
class FilePosition(Position):
    entry: int  # the last entry of Spark's log whose files were read

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FilePosition:
        try:
            return cls(int(value["logOffset"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a position in a folder: {value!r}") from error

    def to_json(self) -> dict[str, Any]:
        return {"logOffset": self.entry}

    def describe(self) -> str:
        return "after the files whose rows are committed: they are not read again"


@dataclass(frozen=True, kw_only=True)
class FileFacts(SourceFacts):
    """A folder; a changed query may select other files in it."""

    keys = ("path",)

    # Reads of the folder, by checkpoint and source index, of which the ledger does not hold the names of
    # all files
    unlisted: frozenset[ListOrigin] = frozenset()
    read_elsewhere: str | None = None  # A file of it that the flow has read through another folder

    def next_position(self, flow: FlowFacts, history: History) -> NextPosition | None:
        reads = self.last_reads(history)
        path = str(self.source.identity["path"])
        if any(read.until != reads[0].until for read in reads):
            why = f"its query has read {path} on both sides of a join, up to different files"
            raise resume_impossible(flow, why)
        if not reads:
            require_whole(flow, history, path)
        if self.read_elsewhere is not None:
            raise resume_impossible(flow, f"it has read {self.read_elsewhere} before, through another folder")
        if not reads:
            return None
        position = FilePosition.from_json(reads[0].until)
        return NextPosition(position, origin=(reads[0].checkpoint, reads[0].source.index))

    def check_lists(self, flow: FlowFacts, origin: ListOrigin) -> ListOrigin:
        """A new checkpoint needs the names of all files that were read, or it would read them again."""
        if origin in self.unlisted:
            raise resume_impossible(flow, "the ledger does not hold the names of all files that were read")
        return origin


def folder_of_source(identity: Mapping[str, Any]) -> FileFolder:
    return FileFolder.of_identity(identity, locate(str(identity["path"])).files)
