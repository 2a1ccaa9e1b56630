"""How many processes share the tests of one run, and which tests each begins with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import psutil
from tools.choose_proofs import split

Item = TypeVar("Item")

_MEMORY = 4 << 30
"""What one process needs at most: 0.6 GB of its own, 1.7 GB for the JVM of its Spark session (a heap of
1.5 GB), 0.3 GB for its broker, and for a while 1.3 GB for the JVM and the Python of a command."""


def choose_workers(cores: int, free_memory: int) -> int:
    """Returns the number of test processes: three for two cores, since tests often wait, if memory allows."""
    return max(1, min(cores * 3 // 2, free_memory // _MEMORY))


def free_memory(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the memory that processes can still use: of the machine, or of a container with a limit."""
    free = psutil.virtual_memory().available
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return free if limit == "max" else min(free, int(limit) - int(used))
    except (OSError, ValueError):
        return free


def in_blocks(
    items: Sequence[Item], file_of: Callable[[Item], str | None], workers: int, seconds: Mapping[str, float]
) -> list[Item]:
    """Returns the tests in an order whose equal parts, one for each process, take about the same time.

    Each part begins with tests that need no Spark, whose file is ``None``: they run while the cache of its
    start is made. Files stay whole, because the tests of a file share what is slow to make, until a process
    is idle: it takes tests from the end of another's part.
    """
    quick = [item for item in items if file_of(item) is None]
    slow: dict[str, list[Item]] = {}
    for item in items:
        if (file := file_of(item)) is not None:
            slow.setdefault(file, []).append(item)
    ordered: list[Item] = []
    for number, files in enumerate(split(slow, seconds, workers)):
        block = [item for file in files for item in slow[file]]
        room = max(0, (len(items) - len(ordered)) // (workers - number) - len(block))
        ordered += [*quick[:room], *block]
        quick = quick[room:]
    return [*ordered, *quick]
