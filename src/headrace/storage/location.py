"""The location of a file or a folder in a storage, and what can be done with it.

A kind of storage (local disks, later object stores) is one implementation of `Files`. Everything else
works with `Location`, which has the methods of a path and no method that only a local disk could offer.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

from headrace.errors import HeadraceError, StorageUnsupportedError, StorageUnwritableError
from headrace.model.folders import Entry

if TYPE_CHECKING:
    from deltalake import DeltaTable


Item = TypeVar("Item")
Result = TypeVar("Result")

PART_BYTES = 5 * 1024 * 1024
"""What is read or written at once of a large file: the least that S3 takes as a part."""

_SPARE_BYTES = 1024 * 1024
"""Left free by a write, for the files of the commit."""


@dataclass(frozen=True)
class FileState:
    """A file at one moment: two states of a path are equal if nobody has written it in between."""

    size: int  # bytes
    modified_ms: int  # when it was last written, in milliseconds since 1970
    mark: str  # tells it from another file with this path


class Files(Protocol):
    """The files of one kind of storage, by their paths.

    A method that reads raises `FileNotFoundError` for a missing file. All methods raise `OSError` where the
    storage cannot be reached or refuses the access.
    """

    @property
    def scheme(self) -> str:
        """The URI scheme of this kind of storage."""

    @property
    def silence_s(self) -> float:
        """Seconds without a heartbeat in this kind of storage after which a process counts as ended."""

    def open(self, path: str) -> BinaryIO:
        """Open a file to read it, also from the middle."""

    def gather(self, look: Callable[[Item], Result], items: Iterable[Item]) -> Sequence[Result]:
        """Return what `look` finds for each item. Object storage looks at several items at the same time."""

    def walk(self, folder: str) -> Iterator[tuple[str, FileState]]:
        """Return all files of a folder and of the folders in it, with their states and without order, but not
        files that vanish meanwhile."""

    def exists(self, path: str) -> bool:
        """Return whether there is a file or a folder at this path."""

    def look(self, path: str) -> FileState | None:
        """Return the state of a file; ``None`` if there is no such file."""

    def entries(self, folder: str) -> Sequence[Entry]:
        """Return the files and folders of a folder, without order; none if the folder does not exist."""

    @property
    def table_options(self) -> Mapping[str, str]:
        """The options with which `deltalake` opens the tables of this kind of storage."""

    def create(self, path: str, data: bytes) -> bool:
        """Write a file whole if it does not exist; return whether this call has written it."""

    def replace(self, path: str, data: bytes) -> None:
        """Write a file whole: a reader sees the old content or the new one."""

    def write(self, path: str, parts: Iterator[bytes]) -> str | None:
        """Write a file whole from parts of `PART_BYTES`, of which the last can be smaller, with the memory of
        a few parts. Return the tag that the storage gives the new file."""

    def add(self, path: str, data: bytes) -> None:
        """Write a new file that nothing refers to yet. No missing folder is made: its disk may be away."""

    def swap(self, path: str, expected: bytes, data: bytes) -> bool:
        """Replace a file if its content is still the expected one; return whether this call has done it."""

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is fine."""

    def resolve(self, path: str) -> str:
        """Return the path without symbolic links, where the kind of storage has them."""

    def make_folder(self, path: str) -> None:
        """Make a folder where the kind of storage has folders; an existing one is fine."""

    def delete_all(self, paths: Sequence[str]) -> None:
        """Delete files, in no order; missing ones are fine."""

    def delete_folder(self, path: str) -> None:
        """Delete a folder with everything in it; a missing one is fine."""

    def copy(self, path: str, new: str) -> None:
        """Write a copy of a file in one step; replaces a file with the new path."""

    def find_unsafe(self, folder: str) -> str | None:
        """Try the operations that keep two writers apart, on a file that is deleted again. Return what this
        storage does wrong; ``None`` if it is safe for two writers."""

    def space(self, path: str) -> tuple[int, int] | None:
        """Return the bytes that can still be written beside a path, which may be missing, and all bytes of
        its disk; ``None`` if unknown."""


@dataclass(frozen=True, order=True)
class Location:
    """A file or a folder in a storage, with the methods of `Files` for its path."""

    path: str  # its path as Spark and Delta take it: a plain path on a local disk, else a URI
    files: Files = field(repr=False, compare=False)

    def __str__(self) -> str:
        return self.path

    def __truediv__(self, name: str) -> Location:
        return Location(f"{self.path.rstrip('/')}/{name}", self.files)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its last suffix."""
        return self.name.rpartition(".")[0] or self.name

    @property
    def parent(self) -> Location:
        return Location(self.path.rpartition("/")[0] or "/", self.files)

    def resolve(self) -> Location:
        """The same location, without symbolic links."""
        return Location(self.files.resolve(self.path), self.files)

    def below(self, folder: Location) -> tuple[str, ...]:
        """The names on the way from a folder to this location; none if it is not in the folder."""
        start = folder.path.rstrip("/") + "/"
        return tuple(self.path.removeprefix(start).split("/")) if self.path.startswith(start) else ()

    @property
    def is_local(self) -> bool:
        """Whether it is on a disk of this machine, or on one that is mounted here."""
        return self.files.scheme == "file"

    @property
    def uri(self) -> str:
        return Path(self.path).as_uri() if self.is_local else self.path

    @property
    def remove_command(self) -> str:
        """The command that removes the file by hand."""
        tool = "rm" if self.is_local else f"aws {self.files.scheme} rm"
        return f"{tool} {shlex.quote(self.path)}"

    def move_command(self, new: str, *, is_folder: bool = True) -> str:
        """The command that moves the folder or file by hand."""
        recursive = " --recursive" if is_folder else ""
        tool = "mv" if self.is_local else f"aws {self.files.scheme} mv{recursive}"
        return f"{tool} {shlex.quote(self.path)} {shlex.quote(new)}"

    @property
    def local_path(self) -> Path:
        """The path on a local disk."""
        if not self.is_local:
            raise StorageUnsupportedError(
                f"`{self.path}` is not on a local disk, as this command or function needs",
                facts=("nothing was read or written",),
                remedies=("name a folder of this machine as the storage:   --storage ./lake",),
                params={"storage": self.path, "scheme": self.files.scheme},
            )
        return Path(self.path)

    def open(self) -> BinaryIO:
        return self.files.open(self.path)

    def read_bytes(self) -> bytes:
        with self.files.open(self.path) as file:
            return file.read()

    def read_text(self) -> str:
        return self.read_bytes().decode("utf-8")

    def read_json(self) -> Any:
        return json.loads(self.read_bytes())

    def find_json(self) -> Any:
        """The JSON value of a file; ``None`` if the file is missing or is not JSON. A storage that cannot be
        read raises its error: it does not count as empty."""
        try:
            return self.read_json()
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None

    def read_lines(self) -> Iterator[str]:
        """The lines of the file, one after another, without their ends."""
        with self.files.open(self.path) as file:
            for line in file:
                yield line.decode("utf-8").rstrip("\r\n")

    def exists(self) -> bool:
        return self.files.exists(self.path)

    def look(self) -> FileState | None:
        return self.files.look(self.path)

    def walk(self) -> Iterator[Location]:
        """All files of the folder and of the folders in it, sorted by path."""
        return iter(sorted(path for path, _ in self.walk_states()))

    def walk_states(self) -> Iterator[tuple[Location, FileState]]:
        """All files of the folder and of the folders in it, with their states, without files that vanish."""
        for path, state in self.files.walk(self.path):
            yield Location(path, self.files), state

    def read_files(self, names: Sequence[str]) -> dict[str, bytes]:
        """The contents of files of the folder by their names, without missing ones."""

        def read(name: str) -> bytes | None:
            try:
                return (self / name).read_bytes()
            except FileNotFoundError:
                return None

        found = self.files.gather(read, names)
        return {name: data for name, data in zip(names, found, strict=True) if data is not None}

    def entries(self) -> Sequence[Entry]:
        return self.files.entries(self.path)

    def list_files(self) -> list[str]:
        """The names of the files in the folder, sorted; none if the folder does not exist."""
        return sorted(entry.name for entry in self.entries() if not entry.is_folder)

    def list_folders(self) -> list[str]:
        """The names of the folders in the folder, sorted; none if the folder does not exist."""
        return sorted(entry.name for entry in self.entries() if entry.is_folder)

    def create(self, text: str) -> bool:
        with self.writing():
            return self.files.create(self.path, text.encode())

    def create_json(self, value: Any) -> bool:
        return self.create(json.dumps(value))

    def replace(self, text: str) -> None:
        with self.writing():
            self.files.replace(self.path, text.encode())

    def replace_json(self, value: Any) -> None:
        self.replace(json.dumps(value))

    def update_json(self, change: Callable[[Any], Any]) -> None:
        """Change the JSON value of a file; a change of another process at the same time is not lost. `change`
        may be called several times, with ``None`` if the file is missing or is not JSON. A value that stays
        the same is not written."""
        for pause_s in _pauses():
            try:
                held = self.read_bytes()
            except FileNotFoundError:
                held = None
            try:
                value = None if held is None else json.loads(held)
            except ValueError:
                value = None
            changed = change(value)
            if held is not None and changed == value:
                return
            text = json.dumps(changed)
            if self.create(text) if held is None else self.swap(held, text):
                return
            time.sleep(pause_s)

    def write(self, parts: Iterator[bytes]) -> str | None:
        with self.writing():
            return self.files.write(self.path, parts)

    def add(self, data: bytes) -> None:
        """Write a new file that nothing refers to yet. Raises `FileNotFoundError` if it has no folder."""
        try:
            self.files.add(self.path, data)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self.unwritable(error) from error

    def swap(self, expected: bytes, text: str) -> bool:
        with self.writing():
            return self.files.swap(self.path, expected, text.encode())

    def delete(self) -> None:
        with self.writing():
            self.files.delete(self.path)

    def delete_files(self, names: Iterable[str]) -> None:
        """Delete files of the folder by their names, in no order."""
        with self.writing():
            self.files.delete_all([f"{self.path.rstrip('/')}/{name}" for name in names])

    def make_folder(self) -> None:
        with self.writing():
            self.files.make_folder(self.path)

    def delete_folder(self) -> None:
        with self.writing():
            self.files.delete_folder(self.path)

    def copy(self, new: Location) -> None:
        # A file that cannot be read is no failure to write.
        if self.is_local:
            self.open().close()
        elif self.look() is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        with new.writing():
            self.files.copy(self.path, new.path)

    def space(self) -> tuple[int, int] | None:
        return self.files.space(self.path)

    def check_space(self, size: int) -> None:
        """Raise an error if the disk has no space for so many bytes. `deltalake` does not raise one on a full
        disk: it prints a panic for each of its threads."""
        space = self.space()
        if space is not None and space[0] < size + _SPARE_BYTES:
            raise self.full()

    def full(self) -> StorageUnwritableError:
        """The error to raise if the disk has no space for a write here."""
        space = self.space()
        free = None if space is None else space[0]
        return StorageUnwritableError(
            f"no space is left on the disk of {self.path}",
            facts=() if free is None else (f"free: {free:,} bytes",),
            remedies=("free space on the disk, then start again:   headrace run",),
            params={"path": self.path, "free": free},
        )

    def unwritable(self, error: OSError) -> StorageUnwritableError:
        """The error to raise if the storage refuses to write here."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return self.full()
        is_taken = error.errno in (errno.ENOTDIR, errno.EEXIST) and self.is_local
        parents = Path(self.path).parents if is_taken else ()
        if (taken := next((one for one in parents if one.is_file()), None)) is not None:
            move = Location(str(taken), self.files).move_command(f"{taken}.moved", is_folder=False)
            return StorageUnwritableError(
                f"cannot write to the storage: {taken} is a file, not a folder",
                remedies=(
                    "set `storage` in headrace.yml to a folder, such as:   storage: ./lake",
                    f"or move the file away:   {move}",
                ),
                params={"path": self.path},
            )
        return StorageUnwritableError(
            f"cannot write to the storage: {self.path}",
            facts=(f"the system's error: {error.strerror or error}",),
            remedies=(
                "make the folder writable, or set `storage` in headrace.yml to another folder",
                "and check the machine:   headrace doctor",
            ),
            params={"path": self.path},
        )

    @contextmanager
    def writing(self) -> Iterator[None]:
        try:
            yield
        except HeadraceError:
            raise
        except OSError as error:
            raise self.unwritable(error) from error


def _pauses() -> Iterator[float]:
    """Seconds to wait for the writes of other processes, longer each time: each attempt costs requests."""
    longest_s = 0.01
    while True:
        yield random.uniform(0.2, 1.0) * longest_s
        longest_s = min(2 * longest_s, 2.0)


def open_delta(table: Location, version: int | None = None) -> DeltaTable:
    """Open a Delta table without Spark, at its newest version or at the given one."""
    from deltalake import DeltaTable

    return DeltaTable(table.path, version=version, storage_options=dict(table.files.table_options))
