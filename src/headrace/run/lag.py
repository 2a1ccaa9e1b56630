"""How far a flow is behind its sources, in records; asked now and then, for a person to look at."""

from __future__ import annotations

import time

from headrace.model.ranges import SourceRange
from headrace.sources.registry import kind_of
from headrace.sources.systems import Systems

_INTERVAL_S = 1.0
"""Least seconds between two measurements: a batch must not wait for them."""


class LagGauge:
    """Measures the records that a flow's sources hold beyond its last batch.

    Args:
        systems: The systems of the sources.
    """

    def __init__(self, systems: Systems) -> None:
        self._systems = systems
        self._measured_s = 0.0

    def measure(self, ranges: tuple[SourceRange, ...]) -> int | None:
        """The lag behind the ends of ranges; ``None`` where it was measured just now, or is not known."""
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
