"""The files of a storage for a command that only reads: each listing and each small file is read once."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO

from headrace.model.folders import Entry
from headrace.storage.location import Files, Item, Result


class ReadOnceFiles:
    """Remembers each listing, and each small object that was read, until `forget`. A file that a listing
    lacks does not exist.

    No write is possible: a run, and what keeps two writers apart, read the storage itself.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self.scheme, self.silence_s = files.scheme, files.silence_s
        self.walk, self.look, self.resolve = files.walk, files.look, files.resolve
        self.forget()

    def forget(self) -> None:
        """Read everything again from now on."""
        self._listings: dict[str, dict[str, Entry]] = {}  # by the path of the folder, and by name
        self._contents: dict[str, bytes | None] = {}  # ``None`` for a missing file
        self._known: dict[str, bool] = {}  # whether there is a file or a folder at a path

    @property
    def table_options(self) -> Mapping[str, str]:
        return self._files.table_options

    def open(self, path: str) -> BinaryIO:
        if path not in self._contents and self._is_listed(path) is not False:
            try:
                file = self._files.open(path)
            except FileNotFoundError:
                self._contents.setdefault(path, None)
            else:
                if not isinstance(file, io.BytesIO):
                    return file
                # Other threads read at the same time: all of them get what the first one has read.
                self._contents.setdefault(path, file.getvalue())
        data = self._contents.get(path)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return io.BytesIO(data)

    def gather(self, look: Callable[[Item], Result], items: Iterable[Item]) -> Sequence[Result]:
        return self._files.gather(look, items)

    def exists(self, path: str) -> bool:
        if self._listings.get(path):
            return True
        listed = self._is_listed(path)
        if listed is None and path not in self._known:
            self._known[path] = self._files.exists(path)
        return self._known[path] if listed is None else listed

    def entries(self, folder: str) -> Sequence[Entry]:
        if folder not in self._listings:
            listed = {entry.name: entry for entry in self._files.entries(folder)}
            self._listings.setdefault(folder, listed)
        return list(self._listings[folder].values())

    def _is_listed(self, path: str) -> bool | None:
        """Whether the listing of its folder has a path; ``None`` if the folder was not listed."""
        folder, _, name = path.rpartition("/")
        held = self._listings.get(folder)
        return None if held is None else name in held

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a command that only reads has written a file")

    create = replace = add = write = swap = delete = delete_all = delete_folder = _refuse
    make_folder = copy = find_unsafe = free_bytes = _refuse
