"""How many processes share the tests of one run."""

from __future__ import annotations

_MEMORY = 4 << 30
"""One process needs a Spark session, a broker, and for a while the JVM of a command that a test starts."""


def choose_workers(cores: int, free_memory: int) -> int:
    """Returns the number of test processes: three for two cores, since tests often wait, if memory allows."""
    return max(1, min(cores * 3 // 2, free_memory // _MEMORY))
