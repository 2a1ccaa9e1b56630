"""Lets the JVM release what Python no longer uses."""

from __future__ import annotations

import gc
import threading
import time

_PAUSE_S = 10.0
_SHARE = 0.01

_looking = threading.Lock()
_next_s = time.monotonic() + _PAUSE_S


def release_unused() -> None:
    """Free objects of the JVM that Python no longer uses: plans, broadcast tables, snapshots.

    An object of py4j whose methods were called refers to itself, so only Python's garbage collector frees it,
    and until then the JVM keeps its part. The collector looks at all objects only after many new ones in
    Python, which says nothing about the JVM: its heap can be full long before.

    Call it after each piece of work that a command can repeat for days. It looks every ten seconds at most,
    for a hundredth of the time at most, and never in a command that is shorter.
    """
    global _next_s
    if time.monotonic() < _next_s or not _looking.acquire(blocking=False):
        return
    try:
        started_s = time.monotonic()
        gc.collect()
        ended_s = time.monotonic()
        _next_s = ended_s + max(_PAUSE_S, (ended_s - started_s) / _SHARE)
    finally:
        _looking.release()
