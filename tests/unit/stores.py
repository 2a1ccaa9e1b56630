"""The files of an object store, as `headrace.storage.location.Files` describes them.

The tests of what lies in a storage run over obstore's memory store, too: it has the conditional puts of S3.
It has no folders, rename or append, so nothing can depend on what only a local disk offers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, ClassVar

from obstore.store import MemoryStore

from headrace.storage.local import LocalEntry, LocalFiles
from headrace.storage.location import FileState, Item, Location, Result
from headrace.storage.objects import ObjectFiles

At = Callable[[Path], Location]
"""Gives the location of a folder of this disk, which a test writes by hand: on a local disk, or in an object
store whose objects are the files of this disk."""


def memory_location() -> Location:
    """The root of a storage of its own in memory."""
    return Location("memory://lake", ObjectFiles("memory", lambda _: MemoryStore()))


def object_location(folder: Path) -> Location:
    """A folder of this disk as a part of an object store."""
    return Location(f"memory://{folder}", ObjectsOnDisk())


def on_disk(location: Location) -> Path:
    """Where the files of a location are that `At` has given."""
    return Path(_key(location.path))


class ObjectsOnDisk:
    """The files of this disk as objects: their folders cannot be made, and are not there without a file."""

    scheme = "memory"
    silence_s = 60.0
    table_options: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self._disk = LocalFiles()

    def open(self, path: str) -> BinaryIO:
        return self._disk.open(_key(path))

    def gather(self, look: Callable[[Item], Result], items: Iterable[Item]) -> Sequence[Result]:
        return self._disk.gather(look, items)

    def exists(self, path: str) -> bool:
        return _is_object(Path(_key(path)))

    def look(self, path: str) -> FileState | None:
        return self._disk.look(_key(path)) if Path(_key(path)).is_file() else None

    def entries(self, folder: str) -> list[LocalEntry]:
        return [one for one in self._disk.entries(_key(folder)) if _is_object(Path(_key(folder), one.name))]

    def read_all(self, paths: Sequence[str]) -> Sequence[bytes | None]:
        return self._disk.read_all([_key(path) for path in paths])

    def walk(self, folder: str) -> Iterator[tuple[str, FileState]]:
        return ((f"memory://{path}", state) for path, state in self._disk.walk(_key(folder)))

    def create(self, path: str, data: bytes) -> bool:
        return self._disk.create(_key(path), data)

    def replace(self, path: str, data: bytes) -> None:
        self._disk.replace(_key(path), data)

    def swap(self, path: str, expected: bytes, data: bytes) -> bool:
        return self._disk.swap(_key(path), expected, data)

    def delete(self, path: str) -> None:
        self._disk.delete(_key(path))

    def delete_all(self, paths: Sequence[str]) -> None:
        self._disk.delete_all([_key(path) for path in paths])

    def resolve(self, path: str) -> str:
        return path

    def make_folder(self, path: str) -> None:
        """Folders of an object store are parts of names."""

    def delete_folder(self, path: str) -> None:
        self._disk.delete_folder(_key(path))

    def copy(self, path: str, new: str) -> None:
        self._disk.copy(_key(path), _key(new))

    def find_unsafe(self, folder: str) -> str | None:
        return None

    def space(self, path: str) -> tuple[int, int] | None:
        return self._disk.space(_key(path))


def _is_object(path: Path) -> bool:
    return path.is_file() or any(one.is_file() for one in path.rglob("*"))


def _key(path: str) -> str:
    return path.removeprefix("memory://")


def _name(key: str) -> str:
    return key.rpartition("/")[2]
