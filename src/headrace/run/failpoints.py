"""Points at which a test can pause the process, to kill it there.

``HEADRACE_PAUSE_AT=<point>:<batch>:<folder>`` makes the process write ``<folder>/<point>`` when it
reaches that point in that batch, and wait as long as the file is there. Unset, nothing happens.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

Point = Literal[
    "batch-start",
    "before-commit",
    "after-commit",
    "after-batch",
    "replay-marked",
    "replay-committed",
    "schema-added",
    "column-changed",
]
VARIABLE = "HEADRACE_PAUSE_AT"


def reach(point: Point, flow: str, batch: int) -> None:
    """Pause here if the environment variable names this point; ``<point>`` may name a flow:
    ``flow/point``."""
    asked = os.environ.get(VARIABLE)
    if asked is None:
        return
    where, number, folder = asked.split(":", 2)
    if where not in (point, f"{flow}/{point}") or int(number) != batch:
        return
    marker = Path(folder) / point
    marker.write_text(str(os.getpid()), encoding="utf-8")
    while marker.exists():
        time.sleep(0.01)
