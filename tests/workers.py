"""How many processes share the tests of one run."""

from __future__ import annotations

from pathlib import Path

import psutil

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
