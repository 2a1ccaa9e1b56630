"""Files in an object store: objects, whose names have the folders as a part."""

from __future__ import annotations

import contextlib
import html
import io
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

from headrace.errors import StorageAccessError, StorageUnreadableError
from headrace.storage.location import PART_BYTES, FileState, Item, Result

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_WHOLE_BYTES = 8 * 1024 * 1024
"""Objects up to this size are read with one request."""

_WRITE_ID = "headrace-write-id"
_CODE, _MESSAGE = (re.compile(rf"<{name}>([^<]*)</{name}>") for name in ("Code", "Message"))
_MISSING = {"NoSuchKey", "NoSuchVersion", "NotFound"}
"""The codes of answers for an object that does not exist. Other answers with the status 404 are refusals."""

_CHECK = "check the credentials and their permissions for the bucket:   headrace doctor"
_KEY = "correct the key: that of `object_storage` in headrace.yml, of the profile, or AWS_ACCESS_KEY_ID"
_REGION = "set the bucket's region: `region` of `object_storage` in headrace.yml, or AWS_REGION"
_NAME = "correct the bucket in headrace.yml, or its endpoint; or create it:   aws s3 mb {root}"
_REFUSALS = (
    (re.compile("NoSuchBucket"), "the bucket does not exist", _NAME),
    (re.compile("InvalidBucketName"), "the store does not accept the name of the bucket", _NAME),
    (
        re.compile("redirect without LOCATION|PermanentRedirect|AuthorizationHeaderMalformed"),
        "the bucket is in another region",
        _REGION,
    ),
    (
        re.compile("RequestTimeTooSkewed"),
        "the store refuses the access",
        "set the clock of this machine, then try again:   headrace doctor",
    ),
    (
        re.compile("ExpiredToken|TokenRefreshRequired|InvalidToken"),
        "the credentials have expired, or are not valid",
        "get new credentials, such as with `aws sso login`, then try again:   headrace doctor",
    ),
    (
        re.compile("InvalidAccessKeyId|SignatureDoesNotMatch|XAdminUserNotFound"),
        "the store does not accept the access key",
        _KEY,
    ),
)
"""Answers of the store that do not pass by waiting. Each has the text that the client's message contains, its
meaning, and the remedy."""

_LATER = "run the command again in a minute"
_DOCTOR = "check the store and the network:   headrace doctor"
_ENDPOINT = (
    "check the network and the endpoint: `endpoint` of `object_storage` in headrace.yml, or "
    "AWS_ENDPOINT_URL_S3:   headrace doctor"
)
_PASSING = (
    (re.compile("SlowDown|RequestLimitExceeded|Throttl|status code: 429"), "too many requests", _LATER),
    (re.compile("status code: 5|<Code>(InternalError|ServiceUnavailable)"), "the store has failed", _LATER),
    (re.compile("kind: Timeout|timed out|RequestTimeout"), "it does not answer in time", _ENDPOINT),
    (re.compile("kind: Connect|error sending request|dns error"), "it cannot be reached", _ENDPOINT),
    (re.compile("Precondition|status code: 412"), "the object was replaced while it was read", _LATER),
)
"""Failures that can pass: what is found in the client's message, what it means, and what to do."""

_TRIES = 5
_READERS = 16
"""Requests at the same time where many objects are read."""


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

    def __init__(self, scheme: str, open_store: Callable[[str], ObjectStore]) -> None:
        self.scheme = scheme
        self._open_store = open_store
        self._stores: dict[str, ObjectStore] = {}

    @cached_property
    def _client(self) -> Any:
        # Most commands need no object store, and obstore takes 30 ms to import.
        import obstore

        return obstore

    @property
    def table_options(self) -> Mapping[str, str]:
        return {}

    def open(self, path: str) -> BinaryIO:
        with _as_os_errors(path):
            store, key = self._find(path)
            found = self._client.get(store, key)
            if found.meta["size"] > _WHOLE_BYTES:
                large = _LargeObject(self._client, store, key, path, found.meta)
                return io.BufferedReader(large, PART_BYTES)
            return io.BytesIO(bytes(found.bytes()))

    def gather(self, look: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        held = list(items)
        if len(held) < 2:
            return list(map(look, held))
        with ThreadPoolExecutor(min(_READERS, len(held))) as pool:
            return list(pool.map(look, held))

    def walk(self, folder: str) -> Iterator[tuple[str, FileState]]:
        with _as_os_errors(folder):
            store, key = self._find(folder)
            root = path_root(folder)
            for page in self._client.list(store, f"{key}/" if key else None):
                for path, state in ((f"{root}/{one['path']}", _state(one)) for one in page):
                    # Hadoop marks a folder by an empty object whose name ends with a slash, which a listing
                    # lacks: there is no object of the listed name.
                    if state.size or self.look(path) is not None:
                        yield path, state

    def exists(self, path: str) -> bool:
        if self.look(path) is not None:
            return True
        with _as_os_errors(path):
            store, key = self._find(path)
            # One page, however many objects the folder has.
            return any(self._client.list(store, f"{key}/" if key else None))

    def look(self, path: str) -> FileState | None:
        with _as_os_errors(path):
            try:
                found = self._client.head(*self._find(path))
            except FileNotFoundError:
                return None
        return _state(found)

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

    def add(self, path: str, data: bytes) -> None:
        self.replace(path, data)

    def write(self, path: str, parts: Iterator[bytes]) -> str | None:
        store, key = self._find(path)
        first, second = next(parts, b""), next(parts, None)
        with _as_os_errors(path):
            if second is None:
                return self._client.put(store, key, first)["e_tag"]  # type: ignore[no-any-return]
            # Closed only at the end: what is not closed never becomes an object.
            writer = self._client.open_writer(store, key, buffer_size=PART_BYTES, max_concurrency=2)
            for part in chain((first, second), parts):
                writer.write(part)
            writer.close()
            return self._client.head(store, key)["e_tag"]  # type: ignore[no-any-return]

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

    def delete_all(self, paths: Sequence[str]) -> None:
        if paths:
            with _as_os_errors(paths[0]), contextlib.suppress(FileNotFoundError):
                store, _ = self._find(paths[0])
                self._client.delete(store, [self._find(path)[1] for path in paths])

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

    def find_unsafe(self, folder: str) -> str | None:
        name = f"probe-{uuid.uuid4().hex}"
        path = f"{folder}/{name}"
        try:
            if not self.create(path, b"first"):
                return "it refuses to create an object that does not exist"
            if name not in [entry.name for entry in self.entries(folder)]:
                return "a listing lacks an object that was just created"
            if self.create(path, b"second"):
                return "it creates an object that exists (If-None-Match)"
            stale = self.look(path)
            if not self.swap(path, b"first", b"third"):
                return "it refuses to replace an unchanged object (If-Match)"
            if stale is None or self._put(path, b"fourth", {"e_tag": stale.mark}):
                return "it replaces an object that was changed meanwhile (If-Match)"
            with self.open(path) as file:
                return None if file.read() == b"third" else "a read does not give what was written last"
        finally:
            self.delete(path)

    def space(self, path: str) -> tuple[int, int] | None:
        return None

    def _find(self, path: str) -> tuple[ObjectStore, str]:
        bucket, _, key = path.removeprefix(f"{self.scheme}://").partition("/")
        if bucket not in self._stores:
            self._stores[bucket] = self._open_store(bucket)
        return self._stores[bucket], key.rstrip("/")

    def _put(self, path: str, data: bytes, mode: Any) -> bool:
        """Write an object on a condition; return whether this call has written it. After a refusal or an
        unclear answer, the object itself tells whose it is."""
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        store, key = self._find(path)
        own = uuid.uuid4().hex
        with _as_os_errors(path):
            for _ in range(_TRIES):
                try:
                    self._client.put(store, key, data, mode=mode, attributes={_WRITE_ID: own})
                    return True
                except (AlreadyExistsError, PreconditionError):
                    if (found := self._write_id(store, key)) is not None or mode != "create":
                        return found == own
                    # The answer meant another write at the same time, of which nothing is left.
                except FileNotFoundError:
                    if mode == "create":
                        raise
                    # The object to be replaced was deleted.
                    return False
                except BaseError:
                    with contextlib.suppress(BaseError):
                        if self._write_id(store, key) == own:
                            return True
                    raise
        raise StorageUnreadableError(
            f"{path_root(path)} has refused a conditional write {_TRIES} times",
            facts=(f"path {path}",),
            remedies=(_LATER,),
            params={"path": path},
        )

    def _write_id(self, store: ObjectStore, key: str) -> str | None:
        """The id of the write that has made an object, empty without one; ``None`` for a missing object."""
        try:
            found = self._client.get(store, key, options={"head": True})
        except FileNotFoundError:
            return None
        return str(found.attributes.get(_WRITE_ID, ""))


class _LargeObject(io.RawIOBase):
    """An object that is read in parts. All parts are of the same object, also if it is replaced meanwhile."""

    def __init__(self, client: Any, store: ObjectStore, key: str, path: str, meta: Mapping[str, Any]) -> None:
        super().__init__()
        self._client, self._store, self._key, self._path = client, store, key, path
        self._size: int = meta["size"]
        self._condition = {} if meta["e_tag"] is None else {"if_match": meta["e_tag"]}
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"negative position {start + offset}")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        with _as_os_errors(self._path):
            options = {"range": (self._position, end), **self._condition}
            data = self._client.get(self._store, self._key, options=options).bytes()
        buffer[: len(data)] = memoryview(data)
        self._position += len(data)
        return len(data)

    def readall(self) -> bytes:
        data = bytearray(max(self._size - self._position, 0))
        view = memoryview(data)
        while view and (count := self.readinto(view[:PART_BYTES])):
            view = view[count:]
        return bytes(data)


def path_root(path: str) -> str:
    """The scheme and the bucket of a path."""
    scheme, _, rest = path.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


@contextmanager
def _as_os_errors(path: str) -> Iterator[None]:
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except FileNotFoundError as error:
        code = _CODE.search(str(error))
        if code is None or code[1] in _MISSING:
            raise
        raise _explained(path, error, is_refused=False) from error
    except BaseError as error:
        is_refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
        raise _explained(path, error, is_refused=is_refused) from error


def _explained(
    path: str, error: Exception, *, is_refused: bool
) -> StorageAccessError | StorageUnreadableError:
    found = next((one[1:] for one in _REFUSALS if one[0].search(str(error)) is not None), None)
    if found is None and is_refused:
        found = ("the store refuses the access", _CHECK)
    return _failed(path, error) if found is None else _refused(*found, path, error)


def _failed(path: str, error: Exception) -> StorageUnreadableError:
    """The error for a failure that can pass, with what its reason asks for."""
    found = (one for one in _PASSING if one[0].search(str(error)) is not None)
    _, reason, remedy = next(found, (None, "the request failed", _DOCTOR))
    return StorageUnreadableError(
        f"{path_root(path)} cannot be used at the moment: {reason}",
        facts=(f"path {path}", f"the store's answer: {_text(error)}"),
        remedies=(remedy,),
        params={"path": path},
    )


def _refused(reason: str, remedy: str, path: str, error: Exception) -> StorageAccessError:
    return StorageAccessError(
        f"{path_root(path)} cannot be used: {reason}",
        facts=(f"path {path}", f"the store's answer: {_text(error)}"),
        remedies=(remedy.format(root=path_root(path)),),
        params={"path": path},
    )


def _text(error: Exception) -> str:
    """An error of the client in one line: the store's code and message, if there are any."""
    text = str(error)
    if (code := _CODE.search(text)) is not None:
        message = _MESSAGE.search(text)
        return code[1] if message is None else f"{code[1]}: {html.unescape(message[1])}"
    return text.partition("\n")[0]


def _state(meta: Mapping[str, Any]) -> FileState:
    return FileState(meta["size"], _milliseconds(meta), str(meta["e_tag"]))


def _milliseconds(meta: Mapping[str, Any]) -> int:
    return int(meta["last_modified"].timestamp() * 1000)


def _name(key: str) -> str:
    return key.rpartition("/")[2]
