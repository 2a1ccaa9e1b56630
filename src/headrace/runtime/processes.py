"""Starts processes that end with this one, and processes that outlive it; checks whether a process runs."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

_DIE_WITH_PARENT = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the starting process has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Asks the kernel to kill the program when the Python process that started it ends in any way: a driver
without its Python process must not commit. On other systems, the broken pipe on standard input does the
same, only later."""

_DETACH = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
with open(sys.argv[1] + ".new", "w") as handle:
    handle.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Makes init the parent of the program, so that it does not end with its starter or become a zombie."""

_DETACH_TIMEOUT_S = 30.0
"""A start takes milliseconds. Without a limit, a wrapper that dies between its steps would be waited for
without end."""


def start_bound(
    command: Sequence[str], log_file: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a program that is killed when this process ends, even by SIGKILL. Its standard input is a pipe
    that this process holds. Its output is appended to the log file."""
    # Linux kills the program when the thread that started it ends, so that thread must not end before.
    outcome: list[subprocess.Popen[bytes] | BaseException] = []
    started = threading.Event()
    wrapper = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]

    def keep() -> None:
        try:
            with log_file.open("ab") as log:
                process = subprocess.Popen(
                    wrapper,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=None if environment is None else dict(environment),
                    # Ctrl-C is for Headrace, which then ends its programs in the right order.
                    start_new_session=True,
                )
            outcome.append(process)
        except BaseException as error:
            outcome.append(error)
            return
        finally:
            started.set()
        process.wait()
        _close_input(process)

    threading.Thread(target=keep, name="headrace-bound", daemon=True).start()
    started.wait()
    match outcome[0]:
        case subprocess.Popen() as process:
            return process
        case error:
            raise error


def start_detached(
    command: Sequence[str],
    log_file: Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> int:
    """Starts a program that goes on after this process, and returns its process id. `environment`: all of its
    variables; by default those of this process. `folder`: its working directory; by default that of this
    process, which may be removed meanwhile."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as answer, log_file.open("ab") as log:
        pid_file = Path(answer) / "pid"
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", _DETACH, str(pid_file), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=None if environment is None else dict(environment),
            cwd=folder,
            check=False,
        )
        deadline = time.monotonic() + _DETACH_TIMEOUT_S
        while not pid_file.exists():
            if time.monotonic() > deadline:
                raise OSError(f"{command[0]} was not started")
            time.sleep(0.005)
        return int(pid_file.read_text())


def end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Asks a bound program to end by closing its standard input; kills it after the timeout."""
    if timeout_s > 0:
        _close_input(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
    if process.poll() is None:
        process.kill()
        process.wait()
    _close_input(process)


def _close_input(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def is_running(pid: int) -> bool:
    """Whether a process runs; a process that has ended can still have an entry."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def await_end(pid: int, timeout_s: float) -> bool:
    """Waits until a process has ended, and returns whether it has. psutil would also wait until the parent of
    the process has removed its entry; in a container, that can take seconds."""
    if sys.platform == "linux":
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        except OSError:
            # An old kernel, or a container that forbids it.
            return _poll_end(pid, timeout_s)
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            return bool(poll.poll(timeout_s * 1000))
        finally:
            os.close(handle)
    return _poll_end(pid, timeout_s)


def _poll_end(pid: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while is_running(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def once(work: Callable[[], None]) -> Callable[[], None]:
    """A function whose first call does the work; further calls do nothing."""
    unused = threading.Lock()
    return lambda: work() if unused.acquire(blocking=False) else None


Handle = Callable[[int, Callable[[], object]], None]
"""Takes the number of a signal, and a function that does what the signal would have done otherwise."""


@contextmanager
def handling_signals(handle: Handle) -> Iterator[None]:
    """Call a function for SIGINT and SIGTERM, while the block runs in the main thread. `handle`: the
    function. It can interrupt the main thread anywhere."""
    if threading.current_thread() is not threading.main_thread():
        # Python allows signal handlers in the main thread only.
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def received(number: int, frame: FrameType | None) -> None:
        otherwise = before[signal.Signals(number)]
        handle(number, partial(otherwise, number, frame) if callable(otherwise) else lambda: None)

    for one in before:
        signal.signal(one, received)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@cache
def find_boot() -> str | None:
    """The id of the boot: processes with the same id share a monotonic clock. ``None`` if it is not known."""
    try:
        if sys.platform == "darwin":
            asked = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip() or None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{boot} {_namespace('time')}"


@cache
def find_pid_namespace() -> str:
    """The namespace of the process ids; each container has its own."""
    return _namespace("pid")


def _namespace(kind: str) -> str:
    # macOS has no namespaces, and old kernels have none of clocks.
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/self/ns/{kind}").readlink())
    return ""


def has_ended(pid: int, started: Any) -> bool:
    """Returns whether a process has ended that had this start. Process ids are used again."""
    found = find_start(pid)
    if found is not None:
        return bool(found != started)
    with contextlib.suppress(ProcessLookupError, OverflowError):
        try:
            os.kill(pid, 0)
        except PermissionError:
            # The process belongs to another user.
            return False
    return True


def find_start(pid: int) -> Any:
    """Returns when a process was started; ``None`` if it does not run, or is hidden."""
    if sys.platform == "darwin":
        import psutil

        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
        except psutil.Error:
            return None
    try:
        # The name of the program can have spaces. `psutil` adds the wall clock to the time since the boot.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        state, started = fields.split()[0], int(fields.split()[19])
    except (OSError, ValueError, LookupError):
        return None
    return None if state in "ZX" else started
