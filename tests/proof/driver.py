"""The real process: `headrace run` of a pipeline, held still at a point of the protocol and killed there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import psutil

from headrace.run.failpoints import VARIABLE, Point
from landing import Site
from proof.shop import Shop
from waiting import DEADLINE_S, until

Victim = Literal["python", "jvm", "both"]


@dataclass
class Driver:
    """A running `headrace run`.

    Args:
        process: Its Python.
        markers: The folder where it says that it holds still.
        output: What it wrote.
        has_jvm: Whether its JVM is its own, and not that of an engine.
    """

    process: subprocess.Popen[bytes]
    markers: Path
    output: Path
    has_jvm: bool = True

    @cached_property
    def jvm(self) -> psutil.Process:
        # A process that the JVM is about to start looks like the JVM itself; the eldest is the JVM.
        return min(self.jvms(), key=lambda one: one.create_time())

    def jvms(self) -> list[psutil.Process]:
        """The processes that are Spark's JVM, or that it is about to start."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [one for one in children if any("SparkSubmit" in part for part in _command(one))]

    def wait_at(self, point: Point) -> None:
        """Wait until it holds still there."""
        marker = self.markers / point
        until(lambda: marker.exists() or self.process.poll() is not None, f"it reaches {point}")
        assert self.process.poll() is None, self.said()
        assert not self.has_jvm or self.jvm.is_running()

    def go_on(self, point: Point) -> None:
        (self.markers / point).unlink()

    def stand_still(self) -> None:
        """Stop Python and the JVM, as a machine that sleeps does."""
        for pid in (self.process.pid, self.jvm.pid):
            os.kill(pid, signal.SIGSTOP)

    def wake(self) -> None:
        for pid in (self.process.pid, self.jvm.pid):
            os.kill(pid, signal.SIGCONT)

    def kill(self, victim: Victim) -> None:
        """Send SIGKILL, the JVM first: it is what commits."""
        if not self.has_jvm:
            assert victim == "python"
            self.process.kill()
            return
        for pid in {
            "python": [self.process.pid],
            "jvm": [self.jvm.pid],
            "both": [self.jvm.pid, self.process.pid],
        }[victim]:
            os.kill(pid, signal.SIGKILL)

    def wait_until_gone(self) -> None:
        """Wait for Python and the JVM: whichever is left alone must end by itself, for nobody controls it."""
        for marker in self.markers.iterdir():
            marker.unlink()
        self.process.wait(DEADLINE_S)
        if self.has_jvm:
            until(lambda: _is_gone(self.jvm), "the orphan JVM ends by itself")

    def end(self) -> int:
        """Wait until it ends by itself."""
        return self.process.wait(DEADLINE_S)

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            if self.has_jvm and self.jvms():
                self.wake()
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(DEADLINE_S)


def _is_gone(process: psutil.Process) -> bool:
    """Whether it has ended, even where nobody has asked for its exit code."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def start(
    shop: Shop | Site,
    *arguments: str,
    pause: tuple[str, int] | None = None,
    verb: tuple[str, ...] = ("run",),
    name: str = "",
) -> Driver:
    """Start `headrace run` in the pipeline's folder; ``pause`` names a point, with its flow, and a batch.

    A ``name`` tells two drivers of one folder apart.
    """
    markers = shop.root / f"markers{name}"
    markers.mkdir(exist_ok=True)
    output = shop.root / f"output{name}.txt"
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    if pause is not None:
        environment[VARIABLE] = f"{pause[0]}:{pause[1]}:{markers}"
    command = [str(Path(sys.executable).with_name("headrace")), *verb, *arguments]
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=shop.root, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    return Driver(process, markers, output, has_jvm=environment.get("HEADRACE_ENGINE") == "off")


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
