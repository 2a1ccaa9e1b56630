"""The engine that this process uses, if it uses one: a process has one Spark."""

from __future__ import annotations

import fcntl
from dataclasses import dataclass
from pathlib import Path


@dataclass
class _Current:
    guard: Path | None = None
    pool: str | None = None


_current = _Current()


def set_attachment(guard: Path | None, pool: str | None = None) -> None:
    """Records what this process has in an engine; without arguments other than None, that it has nothing.

    Args:
        guard: The file that the engine holds locked until all calls of this process have ended.
    """
    _current.guard, _current.pool = guard, pool


def find_guard() -> Path | None:
    """Returns the file that an engine holds locked until all calls of this process have ended."""
    return _current.guard


def pool_name(name: str) -> str:
    """Returns the name of a scheduler pool of this process; processes that share a JVM share no pool."""
    return name if _current.pool is None else f"{_current.pool}/{name}"


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
