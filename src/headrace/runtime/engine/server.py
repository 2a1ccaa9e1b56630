"""The process of an engine: keeps a JVM with Spark, gives each command a session, and cleans up after it.

A command connects to a local socket and holds the connection as long as it uses the JVM. The kernel closes
the connection when the command ends in any way.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from headrace.model.secrets import Redactor
from headrace.runtime import aot
from headrace.runtime.engine.client import stop_idle
from headrace.runtime.engine.jvm_client import JvmClient, find_shared_state, unpersist_all, used_heap
from headrace.runtime.engine.record import IDLE_VARIABLE, EngineRecord, Wire, load_record
from headrace.runtime.fetch import ensure_jars
from headrace.runtime.jars import find_java
from headrace.runtime.places import Scratch
from headrace.runtime.processes import is_running
from headrace.runtime.session import RunningSpark, open_spark
from headrace.runtime.storage_support import StorageSupport

IDLE_MINUTES = 15.0
MOST_IDLE = (
    2  # idle engines of a user: each holds about a gigabyte. The oldest one ends when one more is idle
)
MOST_CLIENTS = 4  # they share one heap; a further command starts a JVM of its own
_TICK_S = 0.5
_ANSWER_S = 5.0
_MEMORY_NEEDED = 512 << 20
_MEMORY_SHARE = 0.04  # with less free memory than both, an engine without commands ends
_GRACE_S = 2.0  # how long an idle engine waits for the next command of a script, even if memory is short

_REST_S = 5.0
"""How long an idle engine waits before it does work of its own, which would slow down the next command."""

_HEAP_SHARE = 0.6  # an engine that keeps more of its heap without a command ends: something leaks


@dataclass
class _Session:
    pid: int
    command: str
    number: int
    since: float = field(default_factory=time.time)
    is_ending: bool = False


class EngineServer:
    def __init__(self, running: RunningSpark, key: str) -> None:
        assert running.jvm_pid is not None
        self._running = running
        self._jvm = psutil.Process(running.jvm_pid)
        self._scratch = Scratch()
        self._folder = self._scratch.path
        self._project = Path.cwd()
        self._listener = socket.socket(socket.AF_UNIX)
        path = self._folder / "socket"
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._listener.settimeout(_TICK_S)
        self._sessions: dict[str, _Session] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._is_worn = False
        self._has_made_cache = False
        self._is_rested = True
        """Whether the work of an idle engine is done since its last command."""
        self._started = self._last_use = time.time()
        self._count = 0
        self._state = find_shared_state(running.spark)
        self.record = EngineRecord(
            key=key,
            version=version("headrace"),
            pid=os.getpid(),
            jvm_pid=running.jvm_pid,
            socket=str(path),
            secret=os.urandom(32).hex(),
            log=str(running.log_file),
        )

    def serve(self) -> None:
        self.record.save()
        try:
            while not self._is_over():
                with contextlib.suppress(TimeoutError):
                    connection, _ = self._listener.accept()
                    threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
        finally:
            self.record.remove()
            self._listener.close()
            self._running.stop()
            self._scratch.remove()

    def stop(self) -> None:
        self._stopping.set()

    def _is_over(self) -> bool:
        if self._stopping.is_set() or not self._jvm.is_running() or not is_running(self._jvm.pid):
            return True
        with self._lock:
            if self._sessions:
                return False
            if self._is_worn:
                self._stopping.set()
                return True
            idle_s = time.time() - self._last_use
            if idle_s > _REST_S and not self._is_rested:
                self._is_rested = True
                threading.Thread(target=self._rest, daemon=True).start()
            memory = psutil.virtual_memory()
            is_over = is_over_when_idle(idle_s, memory.available, memory.total, is_lost=self._is_lost())
            if is_over:
                # Under the lock: no command gets a session after this.
                self._stopping.set()
            return is_over

    def _is_lost(self) -> bool:
        """Whether no command can find this engine any more."""
        return load_record(self.record.key) != self.record or not self._project.is_dir()

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_ANSWER_S)
        wire = Wire(connection)
        with contextlib.suppress(OSError), contextlib.closing(wire):
            asked = wire.receive()
            if asked.get("secret") != self.record.secret:
                wire.send(ok=False, reason="the secret is wrong")
                return
            match asked.get("do"):
                case "attach":
                    self._attach(wire, asked)
                case "status":
                    wire.send(ok=True, **self._status())
                case "stop":
                    self.stop()
                    wire.send(ok=True)
                case "stop-idle":
                    wire.send(ok=self._stop_if_idle())
                case _:
                    wire.send(ok=False, reason="the request is unknown")

    def _stop_if_idle(self) -> bool:
        with self._lock:
            if not self._sessions:
                # Under the lock: no command gets a session after this.
                self._stopping.set()
            return self._stopping.is_set()

    def _attach(self, wire: Wire, asked: Mapping[str, Any]) -> None:
        pid = _peer(wire.connection) or int(asked["pid"])
        with self._registered(pid, str(asked["command"])) as tag:
            if tag is None:
                is_ending = self._stopping.is_set() or self._is_worn
                reason = "the engine is about to end" if is_ending else "the engine has no session left"
                wire.send(ok=False, is_ending=is_ending, reason=reason)
                return
            wire.send(ok=True, version=self.record.version)
            client = self._open(pid, tag, dict(asked["overrides"]))
            try:
                wire.send(
                    port=client.port, secret=client.secret, tag=tag, pool=client.pool, guard=str(client.guard)
                )
                _await_end(wire.connection, pid)
            finally:
                self._sessions[tag].is_ending = True
                client.end()
                self._check_state()

    def _open(self, pid: int, tag: str, overrides: Mapping[str, str]) -> JvmClient:
        number = self._sessions[tag].number
        try:
            return JvmClient(
                self._running.spark,
                self.record.jvm_pid,
                self._folder,
                tag,
                overrides,
                pid=pid,
                pool=f"headrace-{number}",
            )
        except Exception:
            # The next command would fail in the same way, and after it each other one.
            self._is_worn = True
            raise

    def _check_state(self) -> None:
        """Ends the engine after its last command if a command has changed what all commands share."""
        with self._lock:
            is_alone = len(self._sessions) == 1
        try:
            if is_alone:
                # Spark does not record which command has persisted an RDD.
                unpersist_all(self._running.spark)
            self._is_worn |= find_shared_state(self._running.spark) != self._state
        except Exception:
            # The JVM does not answer.
            self._is_worn = True

    def _rest(self) -> None:
        """Does what would slow down a command: ends the engines beyond those that may be idle, makes the
        start-up cache once, and looks for a memory leak."""
        with contextlib.suppress(OSError):
            stop_idle(MOST_IDLE)
        if not self._has_made_cache:
            self._has_made_cache = True
            aot.make_later(find_java(), ensure_jars("spark"))
        try:
            is_full = used_heap(self._running.spark) > _HEAP_SHARE
        except Exception:
            # The JVM does not answer.
            is_full = True
        with self._lock:
            # A command that has come meanwhile can need the memory.
            self._is_worn |= is_full and not self._sessions

    @contextlib.contextmanager
    def _registered(self, pid: int, command: str) -> Iterator[str | None]:
        with self._lock:
            if self._stopping.is_set() or self._is_worn or len(self._sessions) >= MOST_CLIENTS:
                tag = None
            else:
                self._count += 1
                tag = f"headrace-{os.getpid()}-{self._count}"
                # Spark's UI keeps the names of all pools, so that they must be few.
                used = {one.number for one in self._sessions.values()}
                number = min(set(range(1, MOST_CLIENTS + 1)) - used)
                self._sessions[tag] = _Session(pid, command, number)
        try:
            yield tag
        finally:
            if tag is not None:
                with self._lock:
                    del self._sessions[tag]
                    self._last_use = time.time()
                    self._is_rested = False

    def _status(self) -> dict[str, Any]:
        now = time.time()
        memory = psutil.Process().memory_info().rss + self._jvm.memory_info().rss
        with self._lock:
            return {
                "pid": self.record.pid,
                "jvm_pid": self.record.jvm_pid,
                "version": self.record.version,
                "folder": str(self._project),
                "log": self.record.log,
                "age_s": round(now - self._started, 1),
                "idle_s": 0.0 if self._sessions else round(now - self._last_use, 1),
                "memory_mb": memory >> 20,
                "commands": self._count,
                "sessions": [
                    {
                        "pid": one.pid,
                        "command": one.command,
                        "since_s": round(now - one.since, 1),
                        "state": "ending" if one.is_ending else "working",
                    }
                    for one in self._sessions.values()
                ],
            }


def _await_end(connection: socket.socket, pid: int) -> None:
    """Waits until a command closes the connection, or its process ends. A child process can keep the
    connection open, so the process is watched, too."""
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    watched = None
    with contextlib.suppress(OSError, AttributeError):
        watched = os.pidfd_open(pid)
        waiting.register(watched, select.POLLIN)
    try:
        waiting.poll()
    finally:
        if watched is not None:
            os.close(watched)


def _peer(connection: socket.socket) -> int | None:
    """Returns the process id at the other end, or None if the system does not provide it."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", found)[0]
    return pid or None


def _idle_limit_s() -> float:
    try:
        return 60 * float(os.environ.get(IDLE_VARIABLE) or IDLE_MINUTES)
    except ValueError:
        return 60 * IDLE_MINUTES


def is_over_when_idle(idle_s: float, available: int, total: int, *, is_lost: bool) -> bool:
    """Whether an idle engine ends now; memory in bytes. `is_lost`: no command can find it any more."""
    is_short = available < max(_MEMORY_NEEDED, _MEMORY_SHARE * total)
    return idle_s > _idle_limit_s() or (idle_s > _GRACE_S and (is_short or is_lost))


def main() -> None:
    """Runs an engine; the argument is the file of its settings, which is removed at once."""
    request = Path(sys.argv[1])
    asked = json.loads(request.read_text(encoding="utf-8"))
    request.unlink()
    running = open_spark(
        "headrace-engine",
        conf=asked["conf"],
        master=asked["master"],
        memory=asked["memory"],
        log_file=Path(asked["log"]),
        redactor=Redactor(asked["secrets"]),
        shared=False,
        storage=StorageSupport(tuple(asked["jar_sets"]), tuple(map(Path, asked["jars"]))),
    )
    try:
        server = EngineServer(running, asked["key"])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: server.stop())
        server.serve()
    finally:
        running.stop()


if __name__ == "__main__":
    main()
