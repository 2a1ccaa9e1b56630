"""Measures how many records a flow is behind its sources, at intervals."""

from __future__ import annotations

import time

from headrace.model.ranges import SourceRange
from headrace.sources.registry import kind_of
from headrace.sources.systems import Systems

_INTERVAL_S = 1.0
"""Minimum seconds between two measurements, so that they do not delay batches."""


class LagGauge:
    """Measures the records that a flow's sources hold beyond its last batch.

    Args:
        systems: The systems of the sources.
    """

    def __init__(self, systems: Systems) -> None:
        self._systems = systems
        self._measured_s = 0.0

    def measure(self, ranges: tuple[SourceRange, ...]) -> int | None:
        """The lag behind the ends of ranges; ``None`` if it was measured just before, or is not known."""
        if time.monotonic() - self._measured_s < _INTERVAL_S:
            return None
        self._measured_s = time.monotonic()
        total = 0
        for one in ranges:
            lag = kind_of(one.kind).lag(one, self._systems, None)
            if lag is None:
                return None
            total += lag.count
        return total if ranges else None
