"""The one place where tests poll: until something holds, and no longer than a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 300.0
"""Far beyond what anything takes here on a loaded machine."""

_POLL_S = 0.01


def until(holds: Callable[[], bool], what: str, limit_s: float = DEADLINE_S) -> None:
    """Poll until something holds; fail once the limit has passed.

    Args:
        holds: What to ask again and again.
        what: What is waited for, named in the failure.
        limit_s: After how many seconds the test fails.
    """
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"this did not happen within {limit_s:g} s: {what}"
        time.sleep(_POLL_S)
