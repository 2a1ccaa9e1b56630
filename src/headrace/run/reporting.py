"""What follows a commit: events, lag, limits. It never fails a flow."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_LOG = logging.getLogger(__name__)


@contextmanager
def logged_only(what: str) -> Iterator[None]:
    """Log an error in the block as a warning, and go on.

    A flow that failed after its commit would replay the batch at each start, and fail again.

    Args:
        what: What the block reports, such as ``flow orders: the lag after batch 7``.
    """
    try:
        yield
    except Exception:
        _LOG.warning("%s could not be reported", what, exc_info=True)
