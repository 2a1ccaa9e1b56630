"""Peak memory of trees of processes, shared pages counted once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

import psutil

_INTERVAL_S = 0.5
_STARTING_S = 1.0


class TreeMemory:
    """Samples the proportional set size of processes and all that they start.

    Args:
        roots: Gives the process ids to start from, asked anew for each sample.
    """

    def __init__(self, roots: Callable[[], Iterable[int]]) -> None:
        self._roots = roots
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="memory")
        self.peak_mb = 0
        self.parts: dict[str, int] = {}
        """The processes at the peak, by what they are."""

    def __enter__(self) -> TreeMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def reset(self) -> None:
        self.peak_mb, self.parts = 0, {}

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            parts: dict[str, int] = {}
            for process in self._family():
                try:
                    if _is_starting(process):
                        continue
                    size = process.memory_full_info().pss >> 20
                    parts[f"{_kind(process)} {process.pid}"] = size
                except psutil.Error:
                    continue
            total = sum(parts.values())
            if total > self.peak_mb:
                self.peak_mb, self.parts = total, parts

    def _family(self) -> set[psutil.Process]:
        family: set[psutil.Process] = set()
        for pid in self._roots():
            try:
                root = psutil.Process(pid)
                family |= {root, *root.children(recursive=True)}
            except psutil.Error:
                continue
        return family


def _is_starting(process: psutil.Process) -> bool:
    """Whether a process has just been forked, to become another one: its memory is its parent's."""
    parent = process.parent()
    is_young = time.time() - process.create_time() < _STARTING_S
    return is_young and parent is not None and process.cmdline() == parent.cmdline()


def _kind(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    if "kafka.Kafka" in command:
        return "broker"
    if "SparkSubmit" in command:
        return "spark"
    return process.name()
