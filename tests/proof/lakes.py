"""The storage of a pipeline on this disk or in a bucket, and a write into it that a kill can meet."""

from __future__ import annotations

import ctypes
import os
import re
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from s3_proxy import S3Proxy
from waiting import DEADLINE_S

Wait = Callable[[], None]

_IN_CREATE = 0x100


class FolderWatch:
    """Tells of a new file in a folder within microseconds, so that a kill comes before its rename."""

    def __init__(self, folder: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.inotify_init1(os.O_NONBLOCK)
        assert self._libc.inotify_add_watch(self._file, str(folder).encode(), _IN_CREATE) >= 0

    def wait_for(self, part: bytes) -> None:
        """Wait for a new file whose name holds ``part``."""
        # `select` knows only the first 1,024 files of a process.
        waiting = select.poll()
        waiting.register(self._file, select.POLLIN)
        while True:
            ready = waiting.poll(DEADLINE_S * 1000)
            assert ready, f"no file like {part!r} was made"
            if part in os.read(self._file, 65536):
                return

    def close(self) -> None:
        os.close(self._file)


@dataclass(frozen=True)
class DiskLake:
    root: Path

    @contextmanager
    def writing(self, file: Path) -> Iterator[Wait]:
        """Wait for the moment in which a file is about to appear: its text is written under another name."""
        watch = FolderWatch(file.parent)
        try:
            yield lambda: watch.wait_for(file.name.encode())
        finally:
            watch.close()

    def has_begun(self, file: Path) -> bool:
        """Whether a write of the file has begun and has not ended."""
        return not file.exists() and any(file.parent.glob(f".{file.name}.*"))


@dataclass(frozen=True)
class BucketLake:
    root: Path
    proxy: S3Proxy

    @contextmanager
    def writing(self, file: Path) -> Iterator[Wait]:
        """Wait for the request that creates a file; the server gets it at the end of the block."""
        with self.proxy.fault("hold", "PUT", re.escape(_key(file)) + "$") as held:

            def wait() -> None:
                assert held.arrived.wait(DEADLINE_S), f"no request for {file}"

            yield wait

    def has_begun(self, file: Path) -> bool:
        """As for a local disk, after a wait for the request."""
        return not file.exists()


def _key(file: Path) -> str:
    return str(file).removeprefix("s3://")


Lake = DiskLake | BucketLake
