"""One driver for a flow: a file with a heartbeat.

The lease is a courtesy, the commit is the fence: two drivers that both believe they hold it
still cannot commit a batch twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from headrace.errors import LeaseLostError, SecondDriverError
from headrace.state.files import unwritable, write_json

HEARTBEAT_S = 2.0
EXPIRES_S = 20.0
"""A driver that has not beaten for this long is taken to be gone."""
EXPIRES_VARIABLE = "HEADRACE_LEASE_EXPIRES_S"
"""Overrides `EXPIRES_S`, for whoever cannot wait so long."""


@dataclass(frozen=True)
class Lease:
    """A flow's lease as this process holds it."""

    path: Path
    owner: str

    @classmethod
    def acquire(cls, path: Path, flow: str) -> Lease:
        """Take the lease, or take it over from a driver that is gone.

        Raises:
            SecondDriverError: Another driver holds it.
            StorageUnwritableError: The lease cannot be written.
        """
        try:
            held = _load(path)
        except OSError as error:
            raise unwritable(path, error) from error
        expires_s = float(os.environ.get(EXPIRES_VARIABLE) or EXPIRES_S)
        if held is not None and _is_alive(held, expires_s):
            raise SecondDriverError(
                f"another process runs flow {flow}: pid {held.get('pid')} on {held.get('host')}",
                facts=("nothing was read or written",),
                remedies=("stop that process, or wait until it has ended",),
                params={"flow": flow, "pid": held.get("pid"), "host": held.get("host")},
            )
        lease = cls(path, uuid.uuid4().hex)
        if held is not None:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                json.dump(lease._record(), file)
        except FileExistsError as error:
            raise SecondDriverError(
                f"another process has just started flow {flow}",
                facts=("nothing was read or written",),
                remedies=("stop that process, or wait until it has ended",),
                params={"flow": flow},
            ) from error
        except OSError as error:
            raise unwritable(path, error) from error
        return lease

    def check(self, flow: str) -> None:
        """Make sure that nobody has taken the lease over.

        Raises:
            LeaseLostError: Somebody has.
        """
        held = _load(self.path)
        if held is None or held.get("owner") != self.owner:
            raise LeaseLostError(
                f"another process has taken over flow {flow} while this one was away",
                facts=("nothing was written since",),
                params={"flow": flow, "pid": None if held is None else held.get("pid")},
            )

    def beat(self) -> None:
        """Show that this driver lives; a lease that somebody took is left alone."""
        held = _load(self.path)
        if held is not None and held.get("owner") == self.owner:
            write_json(self.path, self._record())

    def release(self) -> None:
        held = _load(self.path)
        if held is not None and held.get("owner") == self.owner:
            self.path.unlink(missing_ok=True)

    def _record(self) -> dict[str, Any]:
        return {
            "owner": self.owner,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": psutil.Process().create_time(),
            "heartbeat": time.time(),
        }


class Heart:
    """Beats the leases of one driver from a thread of its own, so that a long batch keeps them."""

    def __init__(self, interval_s: float = HEARTBEAT_S) -> None:
        self._interval_s = interval_s
        self._leases: dict[Path, Lease] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-leases", daemon=True)
        self._thread.start()

    def add(self, lease: Lease) -> None:
        with self._lock:
            self._leases[lease.path] = lease

    def release(self, lease: Lease) -> None:
        with self._lock:
            self._leases.pop(lease.path, None)
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


def _load(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _is_alive(held: dict[str, Any], expires_s: float) -> bool:
    try:
        if time.time() - float(held["heartbeat"]) > expires_s:
            return False
        if held.get("host") != socket.gethostname():
            return True
        process = psutil.Process(int(held["pid"]))
        # A pid is used again: the time of creation tells the processes apart.
        return abs(process.create_time() - float(held["started"])) < 1.0
    except (psutil.NoSuchProcess, KeyError, TypeError, ValueError):
        return False
