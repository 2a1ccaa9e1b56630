"""The files by which commands find an engine: only their user can read them."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.runtime.places import ENGINE_VARIABLE, cache_folder, chosen_folder, replace_file

LOCK_FILE = "held"
"""The name of the file with a command's process id that an engine holds locked, one for each command."""


@dataclass(frozen=True)
class EngineRecord:
    key: str
    version: str
    pid: int  # the process id of its Python process
    jvm_pid: int
    socket: str
    secret: str
    log: str  # the file of Spark's messages

    def save(self) -> None:
        """Writes the record; a reader finds all of it or nothing."""
        replace_file(record_path(self.key), json.dumps(asdict(self)), is_private=True)

    def remove(self) -> None:
        if load_record(self.key) == self:
            record_path(self.key).unlink(missing_ok=True)


def engine_folder() -> Path:
    """Returns the folder of the records; makes it for this user alone."""
    folder = chosen_folder(ENGINE_VARIABLE) or cache_folder() / "engine"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def record_path(key: str) -> Path:
    return engine_folder() / f"{key}.json"


def load_record(key: str) -> EngineRecord | None:
    """Returns the record of an engine; None if there is none, or if another user has written it."""
    path = record_path(key)
    try:
        with path.open(encoding="utf-8") as handle:
            status = os.fstat(handle.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o077:
                return None
            return EngineRecord(**json.load(handle))
    except (OSError, ValueError, TypeError):
        return None


def load_records() -> Iterator[EngineRecord]:
    """Yields the records of all engines of this user; none if their folder cannot be made."""
    try:
        paths = sorted(engine_folder().glob("*.json"))
    except OSError:
        return
    for path in paths:
        if (record := load_record(path.stem)) is not None:
            yield record


@dataclass
class _Current:
    guard: Path | None = None
    pool: str | None = None


_current = _Current()


def set_attachment(guard: Path | None, pool: str | None = None) -> None:
    """Records what this process has in an engine; without arguments other than None, that it has nothing.
    `guard`: the file that the engine holds locked until all calls of this process have ended."""
    _current.guard, _current.pool = guard, pool


def find_guard() -> Path | None:
    """Returns the file that an engine holds locked until all calls of this process have ended."""
    return _current.guard


def pool_name(name: str) -> str:
    """Returns the name of a scheduler pool of this process; processes that share a JVM share no pool."""
    return name if _current.pool is None else f"{_current.pool}/{name}"


def is_held(guard: str) -> bool:
    try:
        with Path(guard).open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


_LONGEST = 1 << 20


class WireError(OSError):
    """The other side closed the connection, or sent something else than messages."""


class Wire:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._lines = connection.makefile("rb")

    def send(self, **message: Any) -> None:
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        line = self._lines.readline(_LONGEST)
        if not line.endswith(b"\n"):
            raise WireError("the connection was closed")
        try:
            message = json.loads(line)
        except ValueError as error:
            raise WireError("the other side sent something else than messages") from error
        if not isinstance(message, dict):
            raise WireError("the other side sent something else than messages")
        return message

    def close(self) -> None:
        self._lines.close()
        self.connection.close()
