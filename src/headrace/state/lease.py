"""One process for each flow: a lease names the process, and each process has one heartbeat file.

The lease only avoids needless work. If two processes hold it at once, the commit's transaction id still
keeps a batch from being committed twice. No wall clock is read: clocks of two machines differ, and jump.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

from headrace import errors
from headrace.errors import ONE_PROCESS, STORE_FAILURES, HeadraceError, SourceLocation
from headrace.model.names import TableName
from headrace.runtime.engine.record import find_guard, is_held
from headrace.runtime.processes import find_boot, find_pid_namespace, find_start, has_ended
from headrace.storage.guarantee import check_guarantee
from headrace.storage.layout import Storage
from headrace.storage.location import Location

VIEW = "view"
"""The name under which the refreshes of a view have their lease."""
HEARTBEATS = "processes"
"""The folder of the heartbeats, beside the leases."""
EXPIRES_VARIABLE = "HEADRACE_LEASE_EXPIRES_S"
"""The environment variable that overrides `Files.silence_s`."""

_BEATS = 10
"""How often a process beats before it counts as ended."""
_POLL_S = 0.05
_STORE_POLL_S = 1.0
"""In an object store, where each look has a price."""
_RELEASED = b'{"released": true}'
"""The content of a lease in an object store that nobody holds."""
_CALLS_S = 60.0
"""A dead driver's last calls in the JVM of an engine can be a commit; a start waits for them so long."""
_WRITING_S = 0.5
"""Where a file system has no hard links, a reader can see a lease before it is written to its end."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Driver:
    pid: int | None  # ``None`` if the lease cannot be read
    host: str | None
    is_here: bool = False  # whether its process id is one of this boot and of this container
    is_certain: bool = True  # false if the lease cannot be read, or no heartbeat was seen so far

    def __str__(self) -> str:
        return "an unknown process" if self.pid is None else f"pid {self.pid} on {self.host}"


class _UnreadableError(Exception):
    """A lease is no record of a process."""


@dataclass(frozen=True, kw_only=True)
class _Record:
    owner: str
    host: str
    pid: int
    started: Any = None
    boot: str | None = None
    pid_namespace: str | None = None
    process: str | None = None  # ``None`` in a lease of earlier versions, which holds its own heartbeat
    guard: str | None = None

    @classmethod
    def parse(cls, held: bytes) -> Self:
        try:
            value = json.loads(held)
            names = ("started", "boot", "pid_namespace", "process", "guard")
            given = {name: value.get(name) for name in names}
            return cls(owner=str(value["owner"]), host=str(value["host"]), pid=int(value["pid"]), **given)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _UnreadableError from error

    @property
    def is_same_boot(self) -> bool:
        return self.boot is not None and self.boot == find_boot()

    @property
    def is_here(self) -> bool:
        return self.is_same_boot and self.pid_namespace == find_pid_namespace()

    @property
    def is_alive(self) -> bool:
        """Whether the process may run, if it is one of this boot and pid namespace."""
        return not has_ended(self.pid, self.started)

    @property
    def has_calls(self) -> bool:
        """Whether an engine of this machine still runs calls of the process: it holds a lock on a file."""
        return self.guard is not None and self.is_here and is_held(self.guard)

    def beat(self, lease: Location) -> Location:
        if self.process is None:
            return lease
        return lease.parent / HEARTBEATS / f"{self.process}.json"

    def driver(self, *, is_certain: bool = True) -> Driver:
        return Driver(pid=self.pid, host=self.host, is_here=self.is_here, is_certain=is_certain)


_Verdict = Literal["running", "ended", "ending", "unknown"]
"""``ending``: the process has ended, and an engine still runs its calls."""


@dataclass
class _Seen:
    beat: bytes | None
    since: float  # on the monotonic clock of this process
    has_changed: bool = False


class Observer:
    """Finds out whether the processes of leases run, and remembers the heartbeats that it has seen. It looks
    at given leases at once, so that one wait is enough for the heartbeats of all their processes."""

    def __init__(self, leases: Iterable[Location] = ()) -> None:
        self._seen: dict[Location, _Seen] = {}
        for lease in leases:
            with contextlib.suppress(OSError, _UnreadableError):
                self.judge(lease, _Record.parse(lease.read_bytes()))

    def find(self, location: Location) -> Driver | None:
        """The process that holds a lease; ``None`` if nobody does, or if the process has ended.

        Waits for a heartbeat of a process whose last one cannot be dated: of another machine, or boot.
        """
        while True:
            try:
                held = location.read_bytes()
                if held == _RELEASED:
                    return None
                record = _Record.parse(held)
            except FileNotFoundError:
                return None
            except STORE_FAILURES:
                raise
            except (OSError, _UnreadableError):
                return Driver(pid=None, host=None, is_certain=False)
            verdict = self.judge(location, record)
            if verdict == "ended":
                return None
            if verdict != "unknown":
                return record.driver()
            seen = self._seen.get(record.beat(location))
            if seen is None or time.monotonic() - seen.since > 2 * expires_s(location) / _BEATS:
                return record.driver(is_certain=False)
            time.sleep(_poll_s(location))

    def judge(self, location: Location, record: _Record) -> _Verdict:
        """Whether the process of a lease runs, as far as one look tells."""
        if record.has_calls:
            return "running" if record.is_alive else "ending"
        if record.is_here and not record.is_alive:
            return "ended"
        file = record.beat(location)
        try:
            beat = file.read_bytes()
        except FileNotFoundError:
            beat = None
        except STORE_FAILURES:
            raise
        except OSError:
            return "unknown"
        limit_s, now = expires_s(location), time.monotonic()
        if record.is_same_boot and (at := _beaten_at(beat)) is not None:
            return "running" if now - at < limit_s else "ended"
        seen = self._seen.get(file)
        if seen is None or seen.beat != beat:
            seen = self._seen[file] = _Seen(beat, now, has_changed=seen is not None)
        if now - seen.since >= limit_s:
            return "ended"
        return "running" if seen.has_changed else "unknown"


def find_driver(location: Location, observer: Observer | None = None) -> Driver | None:
    """Return the process that holds a lease; ``None`` if nobody does, or if the process has ended."""
    return (observer or Observer()).find(location)


@dataclass(frozen=True)
class Lease:
    """A flow's lease, held by this process."""

    location: Location
    owner: str

    def check(self, flow: str) -> None:
        held = _read(self.location)
        if not self._owns(held):
            pid = None
            with contextlib.suppress(_UnreadableError):
                pid = None if held is None else _Record.parse(held).pid
            raise errors.LeaseLostError(
                f"another process has taken over flow {flow} while this process did not respond",
                facts=("this process has written nothing since then",),
                remedies=(ONE_PROCESS,),
                params={"flow": flow, "pid": pid},
            )

    def release(self) -> None:
        """Release the lease, unless another process has taken it."""
        held = _read(self.location)
        if held is None or not self._owns(held):
            return
        if self.location.is_local:
            self.location.delete()
        else:
            # A store has no conditional deletion: a slow one would delete the lease of the next process.
            self.location.swap(held, _RELEASED.decode())

    def _owns(self, held: bytes | None) -> bool:
        try:
            return held is not None and _Record.parse(held).owner == self.owner
        except _UnreadableError:
            return False


class Heart:
    """Holds leases of this process, and writes their heartbeat in a thread, also during long batches."""

    def __init__(self) -> None:
        self._process = uuid.uuid4().hex
        self._number = 0
        self._observer = Observer()
        self._leases: dict[Location, Lease] = {}
        self._unclear: set[str] = set()
        """The owners of leases that this process has tried to take or to release, without an answer of the
        store. No flow of this process uses such a lease."""
        self._holders: dict[Location, int] = {}
        """How many leases each heartbeat file serves."""
        self._ended: set[Location] = set()
        """The heartbeat files of processes whose leases were taken over."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def acquire(self, location: Location, flow: str, declared: SourceLocation | None = None) -> Lease:
        """Take a lease if it is free, or if its process has ended; keep it until `release`. `declared`: the
        declaration of the flow, for errors."""
        beat = self._beat_of(location)
        with self._lock:
            if beat not in self._holders:
                self._write(beat)
            self._holders[beat] = self._holders.get(beat, 0) + 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, args=(location,), name="headrace-leases", daemon=True
                )
                self._thread.start()
        lease = Lease(location, uuid.uuid4().hex)
        try:
            self._take(lease, flow)
        except BaseException as error:
            self._unclear.add(lease.owner)
            self._leave(beat)
            if isinstance(error, errors.SecondDriverError | errors.LeaseUnreadableError):
                raise error.with_location(declared) from error.__cause__
            raise
        with self._lock:
            unreleased = self._leases.pop(location, None)
            self._leases[location] = lease
        if unreleased is not None:
            self._leave(beat)
        return lease

    def check(self, location: Location, flow: str) -> None:
        self._leases[location].check(flow)

    def release(self, lease: Lease) -> bool:
        """Release a lease, and return whether that is done; else `stop` tries it again, and this process can
        acquire the lease anew."""
        try:
            lease.release()
        except (OSError, errors.StorageUnwritableError) as error:
            _LOG.warning("the lease %s was not released: %s", lease.location, error)
            self._unclear.add(lease.owner)
            return False
        self._forget(lease)
        return True

    def stop(self) -> None:
        """Release all leases. One that cannot be released expires with the heartbeat of this process."""
        # The heart still beats: a store that is slow can take longer than a lease lives.
        for lease in list(self._leases.values()):
            if not self.release(lease):
                self._forget(lease)
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for beat in self._ended:
            _discard(beat)

    def _forget(self, lease: Lease) -> None:
        with self._lock:
            known = self._leases.pop(lease.location, None)
        if known is not None:
            self._leave(self._beat_of(lease.location))

    def _take(self, lease: Lease, flow: str) -> None:
        location = lease.location
        try:
            held = self._await_end(location, flow)
        except HeadraceError:
            raise
        except OSError as error:
            raise _unreadable(location, flow, f"the system's error: {error.strerror or error}") from error
        record = self._record(lease)
        if not (location.create(record) if held is None else location.swap(held, record)):
            raise _second(location, flow, None)
        if held not in (None, _RELEASED) and (file := _Record.parse(held).beat(location)) != location:
            self._ended.add(file)

    def _await_end(self, location: Location, flow: str) -> bytes | None:
        """Wait until it is certain that no process holds a lease; return the text of the lease."""
        began, is_announced = time.monotonic(), False
        while True:
            waited_s = time.monotonic() - began
            held = _read(location)
            if held in (None, _RELEASED):
                return held
            try:
                record = _Record.parse(held)
            except _UnreadableError:
                if waited_s > _WRITING_S:
                    raise _unreadable(location, flow, "the file is damaged") from None
                time.sleep(_poll_s(location))
                continue
            if record.owner in self._unclear:
                return held
            verdict = self._observer.judge(location, record)
            if verdict == "ended":
                return held
            if verdict == "running" or (verdict == "ending" and waited_s > _CALLS_S):
                raise _second(location, flow, record)
            limit_s = expires_s(location)
            if verdict == "unknown" and waited_s > limit_s + _WRITING_S:
                file = record.beat(location)
                raise _unreadable(location, flow, f"the heartbeat of its process cannot be read: {file}")
            if verdict == "unknown" and waited_s > 2 * limit_s / _BEATS and not is_announced:
                is_announced = True
                _LOG.warning(
                    "flow %s was run by %s; waiting up to %.0f s for a heartbeat of that process",
                    *(flow, record.driver(), limit_s),
                )
            time.sleep(_poll_s(location))

    def _record(self, lease: Lease) -> str:
        record = {
            "owner": lease.owner,
            "process": self._process,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": find_start(os.getpid()),
            "boot": find_boot(),
            "pid_namespace": find_pid_namespace(),
        }
        if (guard := find_guard()) is not None:
            record["guard"] = str(guard)
        return json.dumps(record)

    def _beat_of(self, location: Location) -> Location:
        return location.parent / HEARTBEATS / f"{self._process}.json"

    def _write(self, beat: Location) -> None:
        self._number += 1
        beat.replace_json({"beat": self._number, "monotonic": time.monotonic()})

    def _leave(self, beat: Location) -> None:
        with self._lock:
            self._holders[beat] -= 1
            if not self._holders[beat]:
                del self._holders[beat]
                _discard(beat)

    def _run(self, location: Location) -> None:
        while not self._stop.wait(expires_s(location) / _BEATS):
            self.beat()

    def beat(self) -> None:
        with self._lock:
            for beat in self._holders:
                # A heartbeat that cannot be written lets the leases expire: the fence holds.
                with contextlib.suppress(Exception):
                    self._write(beat)


def expires_s(location: Location) -> float:
    """Seconds without a heartbeat after which a process counts as ended."""
    return float(os.environ.get(EXPIRES_VARIABLE) or location.files.silence_s)


def _poll_s(location: Location) -> float:
    return _POLL_S if location.is_local else min(_STORE_POLL_S, expires_s(location) / _BEATS)


def is_free(location: Location) -> bool:
    """Whether no process has the lease, alive or ended."""
    return _read(location) in (None, _RELEASED)


def _second(location: Location, flow: str, record: _Record | None) -> errors.SecondDriverError:
    summary = f"another process has just started flow {flow}"
    remedies = ["stop that process, or wait until it has ended; then run again:   headrace run"]
    if record is not None:
        summary = f"another process runs flow {flow}: {record.driver()}"
        if record.has_calls:
            remedies.append("if it has ended, its engine still works for it:   headrace engine stop")
    return errors.SecondDriverError(
        summary,
        facts=(f"its lease: {location}", "nothing was read or written"),
        remedies=remedies,
        params={
            "flow": flow,
            "lease": str(location),
            "pid": None if record is None else record.pid,
            "host": None if record is None else record.host,
        },
    )


def _unreadable(location: Location, flow: str, problem: str) -> errors.LeaseUnreadableError:
    return errors.LeaseUnreadableError(
        f"the lease of flow {flow} cannot be used",
        facts=(
            f"{location}: {problem}",
            "so it is not known whether another process runs the flow; nothing was read or written",
        ),
        remedies=(
            "look for a run of this pipeline, on each machine that uses the storage:   pgrep -af headrace",
            f"if there is none, remove the lease:   {location.remove_command}",
            "then run again:   headrace run",
        ),
        params={"flow": flow, "lease": str(location)},
    )


def _discard(beat: Location) -> None:
    """Delete a heartbeat file that no process needs any more; if it stays, it only takes space."""
    with contextlib.suppress(OSError, errors.StorageUnwritableError):
        beat.delete()


def _read(location: Location) -> bytes | None:
    try:
        return location.read_bytes()
    except FileNotFoundError:
        return None


def _beaten_at(beat: bytes | None) -> float | None:
    """The time of a heartbeat on the monotonic clock of its machine."""
    try:
        at = json.loads(beat or b"")["monotonic"]
    except (ValueError, LookupError, TypeError):
        return None
    return float(at) if isinstance(at, int | float) and at <= time.monotonic() else None


@contextmanager
def held_leases(storage: Storage, names: Iterable[TableName]) -> Iterator[None]:
    """Hold the leases of all flows of tables, and of views, for the block.

    Raises:
        StorageUnsafeError: The storage does not keep two writers apart.
    """
    check_guarantee(storage.root)
    with Heart() as heart:
        for name in names:
            # A view has no checkpoint.
            for flow in storage.checkpoints(name).list_folders() or (VIEW,):
                heart.acquire(storage.lease(name, flow), str(name) if flow == VIEW else flow)
        yield
