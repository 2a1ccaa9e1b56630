"""Files on a local disk, or on a disk of another machine that is mounted here."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

from headrace.storage.location import FileState, Item, Location, Result


class LocalEntry:
    """A file or a folder of a listing. Its size and time are read when they are asked for."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self._entry = entry

    @property
    def name(self) -> str:
        return self._entry.name

    @property
    def is_folder(self) -> bool:
        return self._entry.is_dir()

    @property
    def size(self) -> int:
        return self._entry.stat().st_size

    @property
    def modified_ms(self) -> int:
        return self.state.modified_ms

    @property
    def state(self) -> FileState:
        return _state(self._entry.stat())


class LocalFiles:
    """The files of this machine, as `headrace.storage.location.Files` describes them."""

    scheme = "file"
    silence_s = 20.0

    def open(self, path: str) -> BinaryIO:
        try:
            return Path(path).open("rb")
        except NotADirectoryError as error:
            # A folder above it is a file.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error

    def gather(self, look: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        return list(map(look, items))

    def walk(self, folder: str) -> Iterator[tuple[str, FileState]]:
        for entry in self.entries(folder):
            path = f"{folder.rstrip('/')}/{entry.name}"
            if entry.is_folder:
                yield from self.walk(path)
            else:
                with contextlib.suppress(FileNotFoundError):
                    yield path, entry.state

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def look(self, path: str) -> FileState | None:
        try:
            found = Path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _state(found)

    def entries(self, folder: str) -> list[LocalEntry]:
        try:
            with os.scandir(folder) as entries:
                return [LocalEntry(entry) for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            return []

    @property
    def table_options(self) -> Mapping[str, str]:
        return {}

    def create(self, path: str, data: bytes) -> bool:
        target = Path(path)
        with _staged(target, [data]) as staged:
            try:
                os.link(staged, target)
            except FileExistsError:
                return False
            except OSError:
                # A file system without hard links: a reader can see the file while it is still empty.
                return _create_in_place(target, data)
        return True

    def replace(self, path: str, data: bytes) -> None:
        with _staged(Path(path), [data]) as staged:
            staged.replace(path)

    def write(self, path: str, parts: Iterator[bytes]) -> None:
        with _staged(Path(path), parts) as staged:
            staged.replace(path)

    def add(self, path: str, data: bytes) -> None:
        with Path(path).open("xb") as file:
            file.write(data)

    def swap(self, path: str, expected: bytes, data: bytes) -> bool:
        """Replace a file if its content is still the expected one.

        A lock on the file keeps two processes of this machine apart. A file system without locks, and
        processes of two machines, have a short time in which both can succeed.
        """
        try:
            with Path(path).open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                except OSError:
                    pass
                # Another process may have replaced the file before it was locked here.
                if os.fstat(file.fileno()).st_ino != Path(path).stat().st_ino or file.read() != expected:
                    return False
                self.replace(path, data)
        except FileNotFoundError:
            return False
        return True

    def delete(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)

    def delete_all(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.delete(path)

    def resolve(self, path: str) -> str:
        return os.path.realpath(path)

    def make_folder(self, path: str) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)

    def delete_folder(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def copy(self, path: str, new: str) -> None:
        self.replace(new, Path(path).read_bytes())

    def find_unsafe(self, folder: str) -> str | None:
        return None

    def space(self, path: str) -> tuple[int, int] | None:
        for folder in (Path(path), *Path(path).parents):
            try:
                found = os.statvfs(folder)
            except OSError:
                continue
            # Some file systems of a network report nothing.
            size = found.f_frsize
            return (found.f_bavail * size, found.f_blocks * size) if found.f_blocks else None
        return None


def _state(found: os.stat_result) -> FileState:
    mark = f"{found.st_ino}-{found.st_mtime_ns}"
    return FileState(found.st_size, found.st_mtime_ns // 1_000_000, mark)


def link_folder(link: Location, folder: Path) -> Path | None:
    """Make a link in a storage on a local disk to a folder outside of it. Return the folder that is there
    instead; ``None`` if the link is made."""
    path = link.local_path
    if path.resolve() == folder.resolve():
        return None
    if path.is_symlink() or path.exists():
        return path.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(folder)
    return None


def remove_link(link: Location) -> None:
    """Remove a link that `link_folder` has made, if there is one."""
    path = Path(link.path)
    if path.is_symlink():
        path.unlink()


def lock_shared(stream: IO[Any]) -> None:
    """Show other processes that a file is in use. The lock ends with the stream, or with the process."""
    # A file system without locks: the files' age and number decide what is removed.
    with contextlib.suppress(OSError):
        fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)


@contextlib.contextmanager
def _staged(target: Path, parts: Iterable[bytes]) -> Iterator[Path]:
    """A durable file beside the target, which is gone after the block."""
    staged = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with staged.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        yield staged
    finally:
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)


def _create_in_place(target: Path, data: bytes) -> bool:
    try:
        with target.open("xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    return True
