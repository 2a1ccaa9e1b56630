"""One driver for a flow: a file with a heartbeat.

The lease only avoids needless work. If two drivers hold it at once, the commit's transaction id still
keeps a batch from being committed twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from headrace.errors import LeaseLostError, SecondDriverError
from headrace.model.names import TableName
from headrace.runtime.engine.record import find_guard, is_held
from headrace.storage.layout import Storage
from headrace.storage.location import Location

HEARTBEAT_S = 2.0
EXPIRES_S = 20.0
"""A driver without a heartbeat for this long has ended."""
VIEW = "view"
"""The name under which the refreshes of a view have their lease."""
EXPIRES_VARIABLE = "HEADRACE_LEASE_EXPIRES_S"
"""The environment variable that overrides `EXPIRES_S`."""

_CALLS_S = 60.0
"""A dead driver's last calls in the JVM of an engine can be a commit; a start waits for them so long."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The process that holds a lease."""

    pid: int
    host: str


def find_driver(location: Location) -> Driver | None:
    """Return the live process that holds a lease, or ``None``."""
    try:
        return _driver_of(location.read_bytes())
    except OSError:
        return None


@dataclass(frozen=True)
class Lease:
    """A flow's lease, held by this process."""

    location: Location
    owner: str

    @classmethod
    def acquire(cls, location: Location, flow: str) -> Lease:
        """Take the lease if it is free, or if its driver has ended.

        Raises:
            SecondDriverError: Another driver holds it.
            StorageUnwritableError: The lease cannot be written.
        """
        lease = cls(location, uuid.uuid4().hex)
        try:
            held = _await_calls(location)
        except OSError as error:
            raise location.unwritable(error) from error
        driver = None if held is None else _driver_of(held)
        if driver is None and (
            location.create(lease._record()) if held is None else location.swap(held, lease._record())
        ):
            return lease
        summary = f"another process has just started flow {flow}"
        if driver is not None:
            summary = f"another process runs flow {flow}: pid {driver.pid} on {driver.host}"
        remedies = ["stop that process, or wait until it has ended"]
        if driver is not None and driver.host != socket.gethostname():
            # A clock that was set back makes the last heartbeat lie in the future, and the lease stays.
            remedies.append(f"if it has ended on {driver.host} and the lease stays, remove {location}")
        if held is not None and _has_calls(_parse(held)):
            remedies.append("if it has ended, its engine still works for it:   headrace engine stop")
        raise SecondDriverError(
            summary,
            facts=("nothing was read or written",),
            remedies=remedies,
            params={
                "flow": flow,
                "pid": None if driver is None else driver.pid,
                "host": None if driver is None else driver.host,
            },
        )

    def check(self, flow: str) -> None:
        """Check that no other process has taken the lease.

        Raises:
            LeaseLostError: Another process has.
        """
        held = _read(self.location)
        if not self._owns(held):
            driver = None if held is None else _driver_of(held)
            raise LeaseLostError(
                f"another process has taken over flow {flow} while this process did not respond",
                facts=("this process has written nothing since then",),
                params={"flow": flow, "pid": None if driver is None else driver.pid},
            )

    def beat(self) -> None:
        """Write a new heartbeat, unless another process has taken the lease."""
        held = _read(self.location)
        if held is not None and self._owns(held):
            self.location.swap(held, self._record())

    def release(self) -> None:
        """Release the lease, unless another process has taken it."""
        if self._owns(_read(self.location)):
            self.location.delete()

    def _owns(self, held: bytes | None) -> bool:
        return held is not None and _parse(held).get("owner") == self.owner

    def _record(self) -> str:
        record = {
            "owner": self.owner,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": psutil.Process().create_time(),
            "heartbeat": time.time(),
        }
        if (guard := find_guard()) is not None:
            record["guard"] = str(guard)
        return json.dumps(record)


class Heart:
    """Renews the leases of one driver in a thread of its own, also during long batches."""

    def __init__(self, interval_s: float = HEARTBEAT_S) -> None:
        self._interval_s = interval_s
        self._leases: dict[Location, Lease] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-leases", daemon=True)
        self._thread.start()

    def acquire(self, location: Location, flow: str) -> Lease:
        """Take a lease and keep it until `release`.

        Raises:
            SecondDriverError: Another driver holds it.
            StorageUnwritableError: The lease cannot be written.
        """
        lease = Lease.acquire(location, flow)
        with self._lock:
            self._leases[lease.location] = lease
        return lease

    def release(self, lease: Lease) -> None:
        with self._lock:
            self._leases.pop(lease.location, None)
            lease.release()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        for lease in list(self._leases.values()):
            self.release(lease)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            with self._lock:
                for lease in self._leases.values():
                    # A heartbeat that cannot be written lets the lease expire: the fence holds.
                    with contextlib.suppress(Exception):
                        lease.beat()


def has_driver(storage: Storage, name: TableName) -> bool:
    """Whether a live process holds the lease of a flow of a table, or of a view."""
    flows = storage.checkpoints(name).list_folders() or (VIEW,)
    return any(find_driver(storage.lease(name, flow)) is not None for flow in flows)


@contextlib.contextmanager
def held_leases(storage: Storage, names: Iterable[TableName]) -> Iterator[None]:
    """Hold the leases of all flows of tables, and of views, for the block.

    Raises:
        SecondDriverError: Another process runs one of the flows.
    """
    heart = Heart()
    try:
        for name in names:
            # A view has no checkpoint.
            for flow in storage.checkpoints(name).list_folders() or (VIEW,):
                heart.acquire(storage.lease(name, flow), str(name) if flow == VIEW else flow)
        yield
    finally:
        heart.stop()


def _read(location: Location) -> bytes | None:
    try:
        return location.read_bytes()
    except FileNotFoundError:
        return None


def _await_calls(location: Location) -> bytes | None:
    """Read a lease; if its driver has ended, wait until the JVM has ended its calls."""
    deadline = time.monotonic() + _CALLS_S
    while True:
        held = _read(location)
        record = {} if held is None else _parse(held)
        if not _has_calls(record) or _is_alive(record) or time.monotonic() > deadline:
            return held
        time.sleep(0.02)


def _has_calls(record: Mapping[str, Any]) -> bool:
    """Whether an engine of this machine still runs calls of a driver: it holds a lock on a file."""
    guard = record.get("guard")
    return isinstance(guard, str) and record.get("host") == socket.gethostname() and is_held(guard)


def _is_alive(record: Mapping[str, Any]) -> bool:
    """Whether the process of this machine that has written a lease still runs."""
    # The system reuses process ids: the time of creation tells the processes apart.
    try:
        created = psutil.Process(int(record["pid"])).create_time()
        return abs(created - float(record["started"])) < 1.0
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False


def _parse(held: bytes) -> dict[str, Any]:
    try:
        value = json.loads(held)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _driver_of(held: bytes) -> Driver | None:
    """The process that has written a lease; ``None`` if it has ended, or if the lease cannot be read."""
    record = _parse(held)
    try:
        driver = Driver(pid=int(record["pid"]), host=str(record["host"]))
        if _has_calls(record):
            return driver
        expires_s = float(os.environ.get(EXPIRES_VARIABLE) or EXPIRES_S)
        if time.time() - float(record["heartbeat"]) > expires_s:
            return None
        if driver.host != socket.gethostname():
            return driver
        return driver if _is_alive(record) else None
    except (KeyError, TypeError, ValueError):
        return None
