"""The demo's folder: written for the user to read and edit, renewed by the next demo."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.declare.spec import OWN_FOLDER
from headrace.errors import DemoFolderTakenError, StorageUnwritableError
from headrace.model.names import TableName
from headrace.runtime.places import replace_file
from headrace.storage.layout import Storage
from headrace.storage.location import Location, open_delta
from headrace.storage.table_log import is_table, newest_commits

if TYPE_CHECKING:
    from deltalake import DeltaTable

_OWN = ".demo"
_WRITTEN = "written.json"
_LAKE = "lake"
_EDITED = "edited"  # files of users, which earlier versions have moved there


class DemoFolder:
    """The folder of the demo and its parts. `renewed`: whether an earlier demo has created it."""

    def __init__(self, path: Path, *, renewed: bool = False) -> None:
        self.path = path
        self.renewed = renewed
        self.own = path / _OWN  # for files of the demo that do not belong to the pipeline
        self.broker = path / OWN_FOLDER / "broker"  # as for any pipeline
        # For temporary files of the pipeline's processes, which are killed before they can remove them.
        self.scratch = self.own / "tmp"
        self.driver_log = self.own / "driver.log"
        self.driver_pid = self.own / "driver.json"

    def clear_scratch(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other demos; the kernel releases the lock when this process ends."""
        with (self.own / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise _taken(self.path, f"a demo is running in {self.path}") from error
            yield


def open_demo(path: Path) -> DemoFolder:
    """The folder, new or from an earlier demo; only its mark is written."""
    renewed = path.is_dir() and (path / _OWN / _WRITTEN).is_file()
    empty = {_OWN, ".DS_Store"}  # the first is all that a demo leaves that is killed here
    if (
        not renewed
        and path.exists()
        and not (path.is_dir() and {one.name for one in path.iterdir()} <= empty)
    ):
        what = "a folder that the demo did not create" if path.is_dir() else "a file"
        raise _taken(path, f"{path} is {what}")
    demo = DemoFolder(path, renewed=renewed)
    try:
        if renewed:
            _check_unchanged(demo)
        else:
            demo.own.mkdir(parents=True, exist_ok=True)
            # From here on the folder is a demo's: one that ends at once is renewed, not refused.
            _write_sums(demo, {})
    except OSError as error:
        raise _unusable(path, error) from error
    return demo


def check_empty(storage: Location) -> None:
    """Refuse a storage with files: the demo replaces only the tables in its own folder."""
    if not storage.entries():
        return
    raise DemoFolderTakenError(
        f"{storage} has files already",
        facts=("the demo does not remove them", "nothing was changed"),
        remedies=(f"use another storage:   headrace demo --storage {shlex.quote(f'{storage}-2')}",),
        params={"path": str(storage)},
    )


def write_pipeline(demo: DemoFolder, files: Mapping[str, str]) -> None:
    """Write the pipeline, in place of an earlier demo's tables, topic and files. The processes of the earlier
    demo must have ended."""
    try:
        for old in (demo.path / _LAKE, demo.broker, demo.scratch):
            shutil.rmtree(old, ignore_errors=True)
        demo.driver_log.unlink(missing_ok=True)
        for name in _load_sums(demo):
            (demo.path / name).unlink(missing_ok=True)
        _write_sums(demo, {name: _sum(text.encode()) for name, text in files.items()})
        demo.scratch.mkdir()
        for name, text in files.items():
            file = demo.path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, text)
    except OSError as error:
        raise _unusable(demo.path, error) from error


def rewrite(demo: DemoFolder, name: str, before: str, after: str) -> None:
    """Replace a text in a file of the demo; the file still counts as the demo's own."""
    file = demo.path / name
    try:
        text, sums = file.read_text(encoding="utf-8").replace(before, after), _load_sums(demo)
        # A demo that is killed here leaves the text before.
        _write_sums(demo, {**sums, name: f"{sums[name]} {_sum(text.encode())}"})
        replace_file(file, text)
    except OSError as error:
        raise _unusable(demo.path, error) from error


def _load_sums(demo: DemoFolder) -> dict[str, str]:
    sums: dict[str, str] = json.loads((demo.own / _WRITTEN).read_text(encoding="utf-8"))
    return sums


def _write_sums(demo: DemoFolder, sums: Mapping[str, str]) -> None:
    replace_file(demo.own / _WRITTEN, json.dumps(sums, indent=2))


def _taken(path: Path, problem: str) -> DemoFolderTakenError:
    return DemoFolderTakenError(
        problem,
        facts=("nothing was changed",),
        remedies=(f"use another folder:   headrace demo --directory {shlex.quote(f'{path}-2')}",),
        params={"path": str(path)},
    )


def _unusable(path: Path, error: OSError) -> StorageUnwritableError:
    return StorageUnwritableError(
        f"{error.filename or path} cannot be read or written: {error.strerror}",
        remedies=("use a folder that you can write to:   headrace demo --directory ~/headrace-demo",),
        params={"path": str(path)},
    )


def _check_unchanged(demo: DemoFolder) -> None:
    """Refuse the folder of an earlier demo with files that the user has changed or added."""
    sums = _load_sums(demo)
    for file in sorted(path for path in demo.path.rglob("*") if path.is_file()):
        name = file.relative_to(demo.path)
        # Hidden files and folders are the demo's own, or belong to the user's tools.
        if name.parts[0] in (_LAKE, _EDITED) or any(
            part.startswith(".") or part == "__pycache__" for part in name.parts
        ):
            continue
        if _sum(file.read_bytes()) not in sums.get(name.as_posix(), ""):
            done = "changed" if name.as_posix() in sums else "added"
            raise _taken(demo.path, f"{file} was {done} after an earlier demo had written the folder")


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class TableWatch:
    def __init__(self, storage: Storage, *, streams: tuple[TableName, ...], view: TableName) -> None:
        self._storage = storage
        self._streams = streams
        self._view = view
        self._tables: dict[TableName, DeltaTable] = {}
        self._rows: dict[TableName, int] = dict.fromkeys(streams, 0)

    def look(self) -> Mapping[TableName, int]:
        """The rows of each streaming table now."""
        for name in self._streams:
            path = self._storage.table(name)
            if name in self._tables:
                self._tables[name].update_incremental()
            elif is_table(path):
                self._tables[name] = open_delta(path)
            else:
                continue
            self._rows[name] = self._tables[name].count()
        return dict(self._rows)

    def holds(self, *rows: int) -> bool:
        """Whether each streaming table had so many rows at the last call, and the view has read them all."""
        found = self._rows.values()
        return all(one >= least for one, least in zip(found, rows, strict=True)) and self._view_is_fresh()

    def _view_is_fresh(self) -> bool:
        path = self._storage.table(self._view)
        source = self._tables.get(self._streams[-1])
        for commit in newest_commits(path):
            if commit.metadata is not None and "inputs" in commit.metadata:
                seen = commit.metadata["inputs"].get(str(self._streams[-1]), {}).get("version", -1)
                return source is not None and bool(seen >= source.version())
        return False
