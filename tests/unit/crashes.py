"""Work on a storage that a process does not end: it crashes before a given write."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from headrace.storage.location import Files, Location

_WRITES = ("create", "replace", "swap", "delete", "copy")

EACH_STEP = pytest.mark.parametrize(
    "location", ["local", "memory", pytest.param("s3", marks=pytest.mark.proof)], indirect=True
)
"""For tests of many steps: in a bucket they take so long that they are proofs."""


class CrashError(Exception):
    """The process ends here."""


class CrashingFiles:
    """The files of a storage, until a number of writes is done.

    A folder is deleted file by file, as object stores do it.
    """

    def __init__(self, files: Files, writes: int) -> None:
        self._files = files
        self._left = writes

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._files, name)
        return self._counted(method) if name in _WRITES else method

    def delete_folder(self, path: str) -> None:
        for file in list(Location(path, self._files).walk()):
            self._counted(self._files.delete)(file.path)
        self._files.delete_folder(path)

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any) -> Any:
            if not self._left:
                raise CrashError
            self._left -= 1
            return method(*arguments)

        return write


def crash_before_each_write(
    location: Location, prepare: Callable[[Location], None], work: Callable[[Location], object]
) -> list[Location]:
    """Prepare a folder for each write of some work, and end the work before that write; return the folders.

    The work ends well in the last one.
    """
    folders = []
    for writes in itertools.count():
        folders.append(location / f"crash-{writes}")
        prepare(folders[-1])
        try:
            work(Location(folders[-1].path, CrashingFiles(location.files, writes)))
        except CrashError:
            continue
        return folders
    raise AssertionError
