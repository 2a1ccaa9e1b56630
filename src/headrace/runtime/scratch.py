"""Folders that are worth nothing once their process is gone, however it went."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from pathlib import Path
from typing import IO

_PREFIX = "headrace-spark-"
_LOCK = "held"


class Scratch:
    """A temporary folder of this process; the next one to be made removes what killed processes left.

    A lock tells whether the owner is alive: process ids mean nothing between containers that
    share a temporary folder.
    """

    def __init__(self) -> None:
        _remove_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._held: IO[str] = (self.path / _LOCK).open("w")
        fcntl.flock(self._held, fcntl.LOCK_EX)

    def folder(self, name: str) -> Path:
        """A folder in it, made where it is missing."""
        path = self.path / name
        path.mkdir(exist_ok=True)
        return path

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._held.close()


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            with (folder / _LOCK).open("r+") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            # Held by its owner, another user's, or gone meanwhile.
            continue
