"""The files of an object store, as `headrace.storage.location.Files` describes them.

The tests of what lies in a storage run over obstore's memory store, too: it has the conditional puts of S3.
It has no folders, rename or append, so nothing can depend on what only a local disk offers.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import MemoryStore

from headrace.storage.location import FileState, Location

At = Callable[[Path], Location]
"""Gives the location of a folder that a test has written on this disk: there, or in an object store to which
it is copied anew."""


def memory_location() -> Location:
    """The root of a storage of its own in memory."""
    return Location("memory://lake", ObjectFiles(MemoryStore()))


def copy_to(root: Location, folder: Path) -> Location:
    """Copy the files of a folder of this disk below a location, in place of what was there."""
    copied = Location(f"{root}{folder}", root.files)
    copied.delete_folder()
    for file in folder.rglob("*"):
        if file.is_file():
            root.files.replace(f"{root}{file}", file.read_bytes())
    return copied


@dataclass(frozen=True)
class ObjectEntry:
    """An object, or the part of names that several objects share."""

    name: str
    is_folder: bool
    size: int = 0
    modified_ms: int = 0


class ObjectFiles:
    """The objects of one store; a path is ``memory://bucket/key``."""

    scheme = "memory"
    silence_s = 60.0

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def open(self, path: str) -> BinaryIO:
        return io.BytesIO(bytes(obstore.get(self._store, _key(path)).bytes()))

    def exists(self, path: str) -> bool:
        try:
            obstore.head(self._store, _key(path))
        except FileNotFoundError:
            return bool(self.entries(path))
        return True

    def look(self, path: str) -> FileState | None:
        try:
            found = obstore.head(self._store, _key(path))
        except FileNotFoundError:
            return None
        return FileState(found["size"], int(found["last_modified"].timestamp() * 1000), str(found["e_tag"]))

    def entries(self, folder: str) -> list[ObjectEntry]:
        found = obstore.list_with_delimiter(self._store, f"{_key(folder)}/")
        folders = [ObjectEntry(_name(prefix.rstrip("/")), True) for prefix in found["common_prefixes"]]
        return folders + [
            ObjectEntry(_name(one["path"]), False, one["size"], int(one["last_modified"].timestamp() * 1000))
            for one in found["objects"]
        ]

    @property
    def table_options(self) -> dict[str, str]:
        return {}

    def create(self, path: str, data: bytes) -> bool:
        try:
            obstore.put(self._store, _key(path), data, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def replace(self, path: str, data: bytes) -> None:
        obstore.put(self._store, _key(path), data)

    def swap(self, path: str, expected: bytes, data: bytes) -> bool:
        try:
            found = obstore.get(self._store, _key(path))
            if bytes(found.bytes()) != expected:
                return False
            obstore.put(self._store, _key(path), data, mode={"e_tag": found.meta["e_tag"]})
        except (FileNotFoundError, PreconditionError):
            return False
        return True

    def delete(self, path: str) -> None:
        obstore.delete(self._store, _key(path))

    def resolve(self, path: str) -> str:
        return path

    def make_folder(self, path: str) -> None:
        """Folders of an object store are parts of names."""

    def delete_folder(self, path: str) -> None:
        obstore.delete(self._store, self._below(path))

    def copy(self, path: str, new: str) -> None:
        obstore.copy(self._store, _key(path), _key(new))

    def _below(self, folder: str) -> list[str]:
        return [one["path"] for one in obstore.list(self._store, f"{_key(folder)}/").collect()]


def _key(path: str) -> str:
    return path.removeprefix("memory://")


def _name(key: str) -> str:
    return key.rpartition("/")[2]
