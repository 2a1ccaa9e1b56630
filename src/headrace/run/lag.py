"""Measures how much a flow is behind its sources, at intervals."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.model.events import Backlog
from headrace.model.ranges import SourceRange
from headrace.sources.answers import Lag
from headrace.sources.registry import kind_of
from headrace.sources.systems import Systems
from headrace.storage.location import Location

_INTERVAL_S = 1.0
"""Minimum seconds between two measurements, so that they do not delay batches."""

_SHARE = 0.02
"""The highest share of the time that measurements take: the list of a large folder takes seconds."""


class LagGauge:
    """Measures what a flow's sources hold beyond its last batch.

    Args:
        record_bytes: The mean size of a record of a source, by the source's index; ``None`` if unknown.
    """

    def __init__(
        self, systems: Systems, checkpoint: Location, record_bytes: Callable[[int], float | None]
    ) -> None:
        self._systems = systems
        self._checkpoint = checkpoint
        self._record_bytes = record_bytes
        self._next_s = 0.0

    def measure(self, ranges: tuple[SourceRange, ...]) -> Backlog:
        """The backlog behind the ends of ranges; it is not known if it was measured just before."""
        began = time.monotonic()
        if began < self._next_s:
            return Backlog()
        found = [(one, kind_of(one.kind).lag(one, self._systems, self._checkpoint)) for one in ranges]
        ended = time.monotonic()
        self._next_s = ended + max(_INTERVAL_S, (ended - began) / _SHARE)
        records = [None if lag is None or lag.counts_files else lag.count for _, lag in found]
        sizes = [None if lag is None else self._size(one, lag) for one, lag in found]
        return Backlog(records=_total(records), size_bytes=_total(sizes))

    def _size(self, one: SourceRange, lag: Lag) -> int | None:
        if lag.size_bytes is not None or not lag.count:
            return lag.size_bytes or 0
        mean = self._record_bytes(one.index)
        return None if mean is None else round(lag.count * mean)


def _total(counts: list[int | None]) -> int | None:
    """The sum; ``None`` if there is nothing to add, or a count is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None
