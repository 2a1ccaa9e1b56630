"""The files and tables of a storage, as the proof reads them.

`pyarrow.fs` reads the files. The writers use another client, so that a mistake of theirs cannot hide itself.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from headrace.model.names import TableName
from headrace.model.project import S3Reach

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.fs import FileInfo, FileSystem

Item = TypeVar("Item")
Result = TypeVar("Result")
_READERS = 8


def gather(look: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """What a function finds for each item, in their order. It looks at several items at the same time: an
    object store takes long for each answer."""
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(look, items))


class System(Protocol):
    """One kind of storage. `pyarrow.fs` names its files without the scheme: the path begins with the host."""

    def files(self, host: str) -> FileSystem:
        """Opens the file system."""

    def table_options(self, host: str) -> Mapping[str, str]:
        """The options with which `deltalake` opens tables."""


class LocalDisks:
    def files(self, host: str) -> FileSystem:
        return self._files

    def table_options(self, host: str) -> Mapping[str, str]:
        return {}

    @cached_property
    def _files(self) -> FileSystem:
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem()


class S3Buckets:
    """Buckets of S3, read by the client of AWS for C++, which nothing else here uses."""

    def __init__(self, reach: Callable[[str], S3Reach]) -> None:
        self._reach = cache(reach)
        self.files = cache(self._open)

    def table_options(self, host: str) -> Mapping[str, str]:
        return self._reach(host).table_options

    def _open(self, host: str) -> FileSystem:
        from pyarrow.fs import S3FileSystem

        found = self._reach(host)
        url = urlsplit(found.endpoint or "")
        return S3FileSystem(
            access_key=found.access_key_id,
            secret_key=found.secret_access_key,
            session_token=found.session_token,
            region=found.region,
            scheme=url.scheme or "https",
            endpoint_override=url.netloc or None,
            force_virtual_addressing=not found.path_style,
        )


Systems = Mapping[str, System]
"""The kinds of storage by URI scheme."""

LOCAL: Systems = {"file": LocalDisks()}

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)(?://([^/]*))?(/.*|)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StoredFile:
    name: str
    size: int
    modified_ms: int
    is_folder: bool = False


@dataclass(frozen=True, order=True)
class StoredPath:
    path: str  # as `pyarrow.fs` names it: without the scheme
    scheme: str = "file"
    systems: Systems = field(default_factory=lambda: LOCAL, repr=False, compare=False)

    @classmethod
    def at(cls, text: str, systems: Systems = LOCAL) -> StoredPath:
        """The location of an absolute path or a URI; raises `KeyError` for an unsupported kind of storage."""
        scheme, path = _split(text)
        if scheme not in systems:
            raise KeyError(scheme)
        return cls(path, scheme, systems)

    def find(self, text: str) -> StoredPath | None:
        """The location of another absolute path or URI; ``None`` for an unsupported kind of storage."""
        return self.at(text, self.systems) if _split(text)[0] in self.systems else None

    @property
    def system(self) -> FileSystem:
        return self.systems[self.scheme].files(self._host)

    @property
    def _host(self) -> str:
        return self.path.partition("/")[0]

    def __str__(self) -> str:
        return self.path if self.scheme == "file" else f"{self.scheme}://{self.path}"

    def __truediv__(self, name: str) -> StoredPath:
        return StoredPath(posixpath.join(self.path, name), self.scheme, self.systems)

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def parent(self) -> StoredPath:
        return StoredPath(posixpath.dirname(self.path), self.scheme, self.systems)

    def relative(self, text: str) -> str:
        """A path or a URI, relative to this folder if it lies in it."""
        scheme, path = _split(text)
        return path.removeprefix(f"{self.path}/") if scheme in ("", self.scheme) else text

    def entries(self) -> list[StoredFile]:
        """The files and folders of the folder, sorted by name; none if the folder does not exist."""
        from pyarrow.fs import FileSelector

        try:
            found = self.system.get_file_info(FileSelector(self.path, allow_not_found=True))
        except NotADirectoryError:
            return []
        listed = (
            StoredFile(one.base_name, one.size or 0, _modified_ms(one), not one.is_file) for one in found
        )
        return sorted(listed, key=lambda file: file.name)

    def list_files(self) -> list[StoredFile]:
        """The files of the folder, sorted by name; none if the folder does not exist."""
        return [entry for entry in self.entries() if not entry.is_folder]

    def list_folders(self) -> list[StoredPath]:
        """The folders in the folder, sorted by name; none if the folder does not exist."""
        return [self / entry.name for entry in self.entries() if entry.is_folder]

    def look(self) -> StoredFile | None:
        """The file's size and age; ``None`` if there is no such file."""
        info = self.system.get_file_info(self.path)
        return StoredFile(self.name, info.size, _modified_ms(info)) if info.is_file else None

    def exists(self) -> bool:
        from pyarrow.fs import FileType

        return bool(self.system.get_file_info(self.path).type != FileType.NotFound)

    def open(self) -> Any:
        """Open the file to read it, also from the middle."""
        return self.system.open_input_file(self.path)

    def read_bytes(self) -> bytes:
        """The content of the file; raises `FileNotFoundError` for a missing one."""
        try:
            with self.system.open_input_stream(self.path) as stream:
                data: bytes = stream.read()
        except NotADirectoryError as error:
            raise FileNotFoundError(str(error)) from error
        return data

    def read_text(self) -> str:
        return self.read_bytes().decode("utf-8")

    def open_table(self, version: int | None = None) -> DeltaTable:
        """The Delta table in the folder, by `deltalake`, which the writers do not use."""
        from deltalake import DeltaTable

        options = self.systems[self.scheme].table_options(self._host)
        return DeltaTable(str(self), version=version, storage_options=dict(options))


@dataclass(frozen=True)
class Storage:
    root: StoredPath

    @property
    def tables(self) -> StoredPath:
        return self.root / "tables"

    def table(self, dataset: TableName) -> StoredPath:
        return self.tables / dataset.schema / dataset.name

    def side_table(self, kind: Literal["quarantine", "tombstones"], dataset: TableName) -> StoredPath:
        """The table of a dataset's rejected rows, or of its deleted keys."""
        return self.root / kind / dataset.schema / dataset.name

    def flows(self, kind: Literal["checkpoints", "ledger"], dataset: TableName) -> StoredPath:
        """The folder with the checkpoints, or with the ledger, of each flow of a dataset."""
        return self.root / kind / str(dataset)


def query(table: DeltaTable, sql: str) -> Any:
    """The rows that SQL gives on the table ``t``; the engine raises no class narrower than `Exception`."""
    import pyarrow as pa
    from deltalake import QueryBuilder

    found = QueryBuilder().register("t", table).execute(sql)
    # Its own `read_all` holds the interpreter's lock while it waits for the store.
    return pa.RecordBatchReader.from_stream(found).read_all()


class StoredFolders:
    def __init__(self, root: StoredPath) -> None:
        self._root = root

    def entries(self, folder: str) -> list[StoredFile]:
        """The files and folders of a folder; none if it does not exist."""
        found = self._root.find(folder)
        return [] if found is None else found.entries()

    def exists(self, path: str) -> bool:
        found = self._root.find(path)
        return found is not None and found.exists()


def plain_path(text: str) -> str:
    """A path as it is, a ``file:`` URI as its path; another URI is only decoded."""
    scheme, path = _split(text)
    return path if scheme == "file" else f"{scheme}://{path}"


def _split(text: str) -> tuple[str, str]:
    """The scheme of a path or a URI, and its path as `pyarrow.fs` names it; ``#`` and ``?`` are parts of
    names."""
    parts = _URI.fullmatch(text)
    if parts is None:
        return "file", text
    scheme, host, path = parts[1].lower(), parts[2] or "", unquote(parts[3])
    return scheme, path if scheme == "file" else host + path


def _modified_ms(info: FileInfo) -> int:
    return int((info.mtime_ns or 0) // 1_000_000)
