"""Points at which a test can pause the process, to kill it there, or let the work fail.

``HEADRACE_PAUSE_AT=<point>:<batch>:<folder>`` makes the process write ``<folder>/<point>`` when it
reaches that point in that batch, and wait as long as the file is there. ``HEADRACE_FAIL_AT=<point>:<batch>``
raises an error there, once. ``<point>`` may name a flow: ``flow/point``. Unset, nothing happens.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

from headrace.errors import FlowFailedError

Point = Literal[
    "batch-start",
    "before-commit",
    "after-commit",
    "after-batch",
    "replay-marked",
    "replay-committed",
    "schema-added",
    "column-changed",
    "generation-opened",
    "rows-fenced",
    "tombstones-dropped",
    "flow-renamed",
    "checkpoints-copied",
    "rows-erased",
]
VARIABLE = "HEADRACE_PAUSE_AT"
FAIL_VARIABLE = "HEADRACE_FAIL_AT"


def reach(point: Point, flow: str, batch: int) -> None:
    """Pause or fail here if an environment variable names this point."""
    names = {f"{point}:{batch}", f"{flow}/{point}:{batch}"}
    if os.environ.get(FAIL_VARIABLE) in names:
        del os.environ[FAIL_VARIABLE]
        raise FlowFailedError(f"a test has ended {flow} in batch {batch}, at {point}")
    where, _, folder = os.environ.get(VARIABLE, "").rpartition(":")
    if where not in names:
        return
    marker = Path(folder) / point
    marker.write_text(str(os.getpid()), encoding="utf-8")
    while marker.exists():
        time.sleep(0.01)
