"""A pipeline's files that are kept in a storage, on this machine: Python code is loaded from local files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from tempfile import NamedTemporaryFile

from headrace.runtime.places import cache_folder
from headrace.storage.location import Location

_FOLDER = "copies"


class WorkingCopy:
    """The folder itself on a local disk; a copy of it, for a folder in an object store.

    Args:
        folder: A folder in a storage with few small files.
    """

    def __init__(self, folder: Location) -> None:
        self._folder = folder
        self._is_copy = folder.files.scheme != "file"
        if not self._is_copy:
            self.root: Path = folder.local_path
            return
        self.root = cache_folder() / _FOLDER / hashlib.sha256(folder.path.encode()).hexdigest()[:20]
        self._fetch()

    def _fetch(self) -> None:
        found = {"/".join(path.below(self._folder)) for path, _ in self._folder.walk_sizes()}
        for name, data in self._folder.read_files(sorted(found)).items():
            file = self.root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.is_file() and file.read_bytes() == data:
                continue
            with NamedTemporaryFile(dir=self.root.parent, delete=False) as new:
                new.write(data)
            Path(new.name).replace(file)  # another process can be loading it
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
