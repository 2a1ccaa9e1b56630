"""Files in an object store: objects, whose names have the folders as a part."""

from __future__ import annotations

import contextlib
import errno
import io
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from headrace.storage.location import FileState

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_WHOLE_BYTES = 8 * 1024 * 1024
"""Objects up to this size are read with one request."""

_WRITE_ID = "headrace-write-id"


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """An object of a listing, or the part of names that several objects share."""

    name: str
    is_folder: bool
    size: int = 0
    modified_ms: int = 0


class ObjectFiles:
    """The objects of a kind of object store, as `headrace.storage.location.Files` describes them. A path is
    ``scheme://bucket/key``.

    A client repeats a request whose answer was lost, and can meet the object of its own first request. So
    each conditional write has an id in the metadata of its object, which tells whose object it is.
    """

    silence_s = 60.0

    def __init__(
        self, scheme: str, open_store: Callable[[str], ObjectStore], options: Mapping[str, str] | None = None
    ) -> None:
        self.scheme = scheme
        self.table_options: Mapping[str, str] = options or {}
        self._open_store = open_store
        self._stores: dict[str, ObjectStore] = {}

    @cached_property
    def _client(self) -> Any:
        # Most commands need no object store, and obstore takes 30 ms to import.
        import obstore

        return obstore

    def open(self, path: str) -> BinaryIO:
        with _as_os_errors(path):
            store, key = self._find(path)
            found = self._client.get(store, key)
            if found.meta["size"] > _WHOLE_BYTES:
                return cast(BinaryIO, self._client.open_reader(store, key))
            return io.BytesIO(bytes(found.bytes()))

    def exists(self, path: str) -> bool:
        return self.look(path) is not None or bool(self.entries(path))

    def look(self, path: str) -> FileState | None:
        with _as_os_errors(path):
            try:
                found = self._client.head(*self._find(path))
            except FileNotFoundError:
                return None
        return FileState(found["size"], _milliseconds(found), str(found["e_tag"]))

    def entries(self, folder: str) -> list[ObjectEntry]:
        with _as_os_errors(folder):
            store, key = self._find(folder)
            found = self._client.list_with_delimiter(store, f"{key}/" if key else None)
        folders = [ObjectEntry(_name(prefix.rstrip("/")), True) for prefix in found["common_prefixes"]]
        return folders + [
            ObjectEntry(_name(one["path"]), False, one["size"], _milliseconds(one))
            for one in found["objects"]
        ]

    def create(self, path: str, data: bytes) -> bool:
        return self._put(path, data, "create")

    def replace(self, path: str, data: bytes) -> None:
        with _as_os_errors(path):
            self._client.put(*self._find(path), data)

    def swap(self, path: str, expected: bytes, data: bytes) -> bool:
        with _as_os_errors(path):
            try:
                found = self._client.get(*self._find(path))
            except FileNotFoundError:
                return False
            tag = found.meta["e_tag"]
            if bytes(found.bytes()) != expected:
                return False
        return self._put(path, data, {"e_tag": tag})

    def delete(self, path: str) -> None:
        with _as_os_errors(path), contextlib.suppress(FileNotFoundError):
            self._client.delete(*self._find(path))

    def resolve(self, path: str) -> str:
        return path

    def make_folder(self, path: str) -> None:
        """Folders of an object store are parts of names."""

    def delete_folder(self, path: str) -> None:
        with _as_os_errors(path):
            store, key = self._find(path)
            for found in self._client.list(store, f"{key}/"):
                self._client.delete(store, [one["path"] for one in found])

    def copy(self, path: str, new: str) -> None:
        store, key = self._find(path)
        to_store, to_key = self._find(new)
        with _as_os_errors(path):
            if store is to_store:
                self._client.copy(store, key, to_key)
            else:
                self._client.put(to_store, to_key, self._client.get(store, key).bytes())

    def free_bytes(self, path: str) -> int | None:
        return None

    def _find(self, path: str) -> tuple[ObjectStore, str]:
        bucket, _, key = path.removeprefix(f"{self.scheme}://").partition("/")
        if bucket not in self._stores:
            self._stores[bucket] = self._open_store(bucket)
        return self._stores[bucket], key

    def _put(self, path: str, data: bytes, mode: Any) -> bool:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        store, key = self._find(path)
        own = uuid.uuid4().hex
        with _as_os_errors(path):
            try:
                self._client.put(store, key, data, mode=mode, attributes={_WRITE_ID: own})
            except (AlreadyExistsError, PreconditionError):
                return self._write_id(store, key) == own
            except FileNotFoundError:
                if mode == "create":
                    raise
                # The object to be replaced was deleted.
                return False
        return True

    def _write_id(self, store: ObjectStore, key: str) -> str | None:
        try:
            found = self._client.get(store, key)
        except FileNotFoundError:
            return None
        return cast("str | None", found.attributes.get(_WRITE_ID))


@contextmanager
def _as_os_errors(path: str) -> Iterator[None]:
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            # Not an empty storage.
            raise OSError(errno.ENODEV, "the bucket does not exist", path) from error
        raise
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise PermissionError(errno.EACCES, _text(error), path) from error
    except BaseError as error:
        raise OSError(errno.EIO, _text(error), path) from error


def _text(error: Exception) -> str:
    """The first line of an error of the client; its other lines are the client's data."""
    return str(error).partition("\n")[0]


def _milliseconds(meta: Mapping[str, Any]) -> int:
    return int(meta["last_modified"].timestamp() * 1000)


def _name(key: str) -> str:
    return key.rpartition("/")[2]
