"""Processes that never outlive the one that starts them, and such that always do."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_DIE_WITH_PARENT = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the starting process has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Asks the kernel to kill the program when the Python that started it is gone, however it went: a
driver that nobody controls must not go on to commit. The broken pipe on standard input does the
same elsewhere, only later."""

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
"""Gives the program to init, so that it neither ends with its starter nor stays behind as a zombie."""

_DETACH_TIMEOUT_S = 30.0
"""It takes milliseconds; this prevents waiting for ever where the wrapper dies between its steps."""


def start_bound(
    command: Sequence[str], log_file: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program that is killed when this process ends, even by SIGKILL.

    Its standard input is a pipe that this process holds; what it says is appended to the log file.

    Raises:
        OSError: It could not be started.
    """
    # Linux ties the parent's death to the starting thread, so that one must never end.
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


def start_detached(command: Sequence[str], log_file: Path) -> int:
    """Start a program that goes on after this process; its process id.

    Raises:
        OSError: It could not be started.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder, log_file.open("ab") as log:
        pid_file = Path(folder) / "pid"
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", _DETACH, str(pid_file), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        )
        deadline = time.monotonic() + _DETACH_TIMEOUT_S
        while not pid_file.exists():
            if time.monotonic() > deadline:
                raise OSError(f"{command[0]} was not started")
            time.sleep(0.005)
        return int(pid_file.read_text())


def end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Let a bound program go by closing its standard input; kill it when it is there after the time."""
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
