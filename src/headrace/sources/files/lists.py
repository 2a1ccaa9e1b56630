"""Which files each batch read: the lists that the ledger keeps.

They outlive the checkpoint with Spark's own log, and hold each file's size and time as the batch found it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.state.identity import corrupt, reading
from headrace.storage.location import Location

_FOLDER = "files"


@dataclass(frozen=True, kw_only=True)
class ReadFile:
    """A file as a batch read it."""

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
