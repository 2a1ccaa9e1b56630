"""Writing small files so that a reader sees the old or the new one, whole."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
from pathlib import Path
from typing import Any, TextIO

from headrace.errors import StorageUnwritableError


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as JSON, atomically and durably.

    Raises:
        StorageUnwritableError: The folder cannot be written.
    """
    write_text(path, json.dumps(value))


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by a text, atomically and durably.

    Raises:
        StorageUnwritableError: The folder cannot be written.
    """
    staged = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with staged.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)
        raise unwritable(path, error) from error


def hold(stream: TextIO) -> TextIO:
    """Say by a lock that a file is being written; the kernel gives it back however this process ends."""
    # Where a file system has no locks, age and number protect the file.
    with contextlib.suppress(OSError):
        fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return stream


def is_held(file: Path) -> bool:
    """Whether a process is writing to a file, and says so by a lock."""
    try:
        with file.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def unwritable(path: Path, error: OSError) -> StorageUnwritableError:
    """The error for a path under the storage that the system refuses to write."""
    return StorageUnwritableError(
        f"the storage cannot be written: {path}",
        facts=(f"the system says: {error.strerror or error}",),
        remedies=("headrace doctor",),
        params={"path": str(path)},
    )
