"""The files of an object store, as `headrace.storage.location.Files` describes them.

The tests of what lies in a storage run over obstore's memory store, too: it has the conditional puts of S3,
and no folders, so nothing can depend on what only a local disk offers.
"""

from __future__ import annotations

import io
from typing import BinaryIO

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import MemoryStore

from headrace.storage.location import Location


def memory_location() -> Location:
    """The root of a storage of its own in memory."""
    return Location("memory://lake", ObjectFiles(MemoryStore()))


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
            return bool(self.list_files(path) or self.list_folders(path))
        return True

    def size(self, path: str) -> int:
        return int(obstore.head(self._store, _key(path))["size"])

    def list_files(self, folder: str) -> list[str]:
        found = obstore.list_with_delimiter(self._store, f"{_key(folder)}/")["objects"]
        return [one["path"].rpartition("/")[2] for one in found]

    def list_folders(self, folder: str) -> list[str]:
        found = obstore.list_with_delimiter(self._store, f"{_key(folder)}/")["common_prefixes"]
        return [prefix.rstrip("/").rpartition("/")[2] for prefix in found]

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

    def move(self, path: str, new: str) -> None:
        for key in self._below(path) or [_key(path)]:
            obstore.rename(self._store, key, _key(new) + key.removeprefix(_key(path)), overwrite=False)

    def _below(self, folder: str) -> list[str]:
        return [one["path"] for one in obstore.list(self._store, f"{_key(folder)}/").collect()]


def _key(path: str) -> str:
    return path.removeprefix("memory://")
