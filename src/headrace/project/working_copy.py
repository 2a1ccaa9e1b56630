"""Local copies of pipelines that are kept in a storage: Python loads code only from local files."""

from __future__ import annotations

import fcntl
import hashlib
import weakref
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import IO

from headrace.runtime.places import cache_folder
from headrace.storage.location import Location

_FOLDER = "copies"


class WorkingCopy:
    """The folder itself on a local disk, else a copy of it, which no other process uses while this object
    exists."""

    def __init__(self, folder: Location) -> None:
        self._folder = folder
        self._is_copy = not folder.is_local
        if not self._is_copy:
            self.root: Path = folder.local_path
            return
        mark = hashlib.sha256(folder.path.encode()).hexdigest()[:20]
        self.root, held = _take_free(cache_folder() / _FOLDER / mark)
        weakref.finalize(self, held.close)
        self._fetch()

    def _fetch(self) -> None:
        found = {"/".join(path.below(self._folder)) for path, _ in self._folder.walk_states()}
        for name, data in self._folder.read_files(sorted(found)).items():
            file = self.root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        for file in self.root.rglob("*"):
            if file.is_file() and file.relative_to(self.root).as_posix() not in found:
                file.unlink()

    def keep(self, written: Iterable[Path], removed: Iterable[Path]) -> None:
        """Let the storage have the files as they are here, after some were written and others removed."""
        if not self._is_copy:
            return
        for file in written:
            (self._folder / self._name(file)).replace(file.read_text(encoding="utf-8"))
        self._folder.delete_files([self._name(file) for file in removed])

    def _name(self, file: Path) -> str:
        return file.relative_to(self.root).as_posix()


def _take_free(folder: Path) -> tuple[Path, IO[str]]:
    """Return the first subfolder that no process uses, and its lock. Commands that run one after another use
    the same subfolder, so the file paths in their messages stay valid after they have ended."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        held = (folder / f"{number}.lock").open("w")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.close()
            continue
        return folder / str(number), held
    raise AssertionError("numbers do not end")
