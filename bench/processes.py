"""Processes of the two sides: started, watched, ended by their own ids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

HEADRACE = (sys.executable, "-m", "headrace")
"""``headrace``, as the console script runs it."""

_STOP_TIMEOUT_S = 60.0


@contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process until the end of the block; asked by SIGINT, then killed with all that it started."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        family = _family(process.pid)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        _, alive = psutil.wait_procs(family, timeout=_STOP_TIMEOUT_S)
        for one in alive:
            one.kill()
        process.wait()


def timed(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> float:
    """Seconds from the command to its end; it must succeed."""
    began = time.monotonic()
    with log.open("ab") as file:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, **(environment or {})},
            check=False,
        )
    took = time.monotonic() - began
    if done.returncode != 0:
        raise SystemExit(f"{command} failed with {done.returncode}:\n{log.read_text()[-4000:]}")
    return took


def await_(
    condition: Callable[[], bool], timeout_s: float, what: str, process: subprocess.Popen[bytes]
) -> None:
    """Wait for a condition while the process lives."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if process.poll() is not None:
            raise SystemExit(f"the process ended with {process.returncode} while waiting for {what}")
        if time.monotonic() > deadline:
            raise SystemExit(f"gave up waiting for {what} after {timeout_s:.0f} s")
        # Seldom: what looks must not take the cores from what is measured.
        time.sleep(0.5)


def _family(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
