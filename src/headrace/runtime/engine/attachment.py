"""The engine that this process uses, if it uses one: a process has one Spark."""

from __future__ import annotations

import fcntl
from dataclasses import dataclass
from pathlib import Path


@dataclass
class _Current:
    guard: Path | None = None


_current = _Current()


def set_guard(guard: Path | None) -> None:
    """Records the file that an engine holds locked until all calls of this process have ended."""
    _current.guard = guard


def find_guard() -> Path | None:
    """Returns the file that an engine holds locked until all calls of this process have ended."""
    return _current.guard


def is_held(guard: str) -> bool:
    """Whether an engine holds this file locked."""
    try:
        with Path(guard).open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
