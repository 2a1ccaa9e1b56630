"""Ends an embedded broker that no program uses any more: a process beside the broker, which ends with it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from headrace.errors import UsageError
from headrace.model.kafka_settings import KafkaConnection
from headrace.runtime.broker_record import BrokerRecord
from headrace.runtime.places import is_locked
from headrace.runtime.processes import await_end

VARIABLE = "HEADRACE_BROKER_IDLE"
_DEFAULT_MINUTES = 30.0
_LOOK_S = 5.0
_STOP_S = 20.0

_USED = "used"
"""The file whose time changes when a command uses the broker; runs hold it locked as long as they take."""

LOCK = ".lock"
"""The file that is locked while the broker is started or stopped."""


def idle_minutes() -> float:
    """The minutes without clients after which a broker ends; 0: never."""
    text = os.environ.get(VARIABLE, "")
    with contextlib.suppress(ValueError):
        minutes = float(text or _DEFAULT_MINUTES)
        if 0 <= minutes < float("inf"):
            return minutes
    raise UsageError(
        f"{VARIABLE}={text} is not a number of minutes",
        remedies=[f"set it to minutes, such as {VARIABLE}=30, or to 0: the broker then never ends by itself"],
        params={"variable": VARIABLE, "value": text},
    )


def note_use(folder: Path) -> None:
    """Begins the idle time of a broker again."""
    with contextlib.suppress(OSError):
        (folder / _USED).touch()


@contextmanager
def keeping_alive(connection: KafkaConnection) -> Iterator[None]:
    """Keeps the embedded broker of a connection from ending, also while flows neither read nor write: a
    producer of Spark closes its connections after some minutes."""
    with contextlib.ExitStack() as stack:
        if connection.broker is not None:
            with contextlib.suppress(OSError):
                handle = stack.enter_context((connection.broker / _USED).open("a+"))
                fcntl.flock(handle, fcntl.LOCK_SH)
        yield


class Watch:
    def __init__(self, folder: Path, process: psutil.Process, port: int, idle_s: float) -> None:
        self._folder = folder
        self._process = process
        self._port = port
        self._idle_s = idle_s
        self._used: float | None = None
        self._last_use = time.monotonic()

    def run(self) -> None:
        while not await_end(self._process.pid, min(_LOOK_S, self._idle_s / 4)):
            record = BrokerRecord.load(self._folder)
            if not (record is not None and record.broker.pid == self._process.pid):
                # The folder was moved or deleted: commands would not find this broker again.
                self._end()
            elif self.is_used():
                self._last_use = time.monotonic()
            elif time.monotonic() - self._last_use >= self._idle_s:
                self._end_unused()

    def _end_unused(self) -> None:
        with contextlib.suppress(OSError), (self._folder / LOCK).open("w") as lock:
            # A command that begins to use the broker holds the lock.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.is_used():
                self._last_use = time.monotonic()
            else:
                self._end()

    def _end(self) -> None:
        with contextlib.suppress(psutil.Error):
            self._process.terminate()
            if not await_end(self._process.pid, _STOP_S):
                self._process.kill()

    def is_used(self) -> bool:
        before = self._used
        with contextlib.suppress(OSError):
            self._used = (self._folder / _USED).stat().st_mtime
        return self._used != before or is_locked(self._folder / _USED) or self._has_clients()

    def _has_clients(self) -> bool:
        try:
            found = self._process.net_connections("tcp")
        except psutil.NoSuchProcess:
            return False
        except psutil.Error:
            # Without an answer, no broker is ended.
            return True
        own = {one.laddr.port for one in found}
        return any(
            one.status == psutil.CONN_ESTABLISHED
            and one.laddr.port == self._port
            and one.raddr.port not in own
            for one in found
        )


def main() -> None:
    """``python -m headrace.runtime.broker_watch FOLDER PID PORT SECONDS``."""
    folder, pid, port, idle_s = sys.argv[1:]
    with contextlib.suppress(psutil.NoSuchProcess):
        Watch(Path(folder), psutil.Process(int(pid)), int(port), float(idle_s)).run()


if __name__ == "__main__":
    main()
