"""How much one batch reads when the user sets no limit.

A stop waits for the current batch, and after a crash a flow reads one batch again: without a limit a
batch is as long as the backlog. No constant fits everybody: what takes seconds for records of 100 bytes
takes hours for records of 5 MB. So the first limit depends on the size of the records, and each further
limit on what the batches before it took.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, Final

from headrace.model.ranges import Position, SourceRange
from headrace.state.facts import SourceFacts

BATCH_S: Final = 10.0
"""Seconds that the rows of one batch of a backlog may take: longer batches gain nothing more, measured."""

_MOST_BYTES = 256 << 20
"""Bytes of any batch: of records before compression, of tables after it."""

_COLD_S = (30.0, 10.0)
"""Seconds that the first batches of a query may take for more than their rows: code that is not compiled
yet, classes that are not loaded, connections that are not open. 84 records have taken 29 s."""

_GROWTH = 4.0
_FAST_GROWTH = 10.0
"""How many times more the next batch may take, and how many after a batch far below `BATCH_S`."""

_REMEMBERED = 8
_SLOW = 1.5
"""How many times its budget a batch must take before the limit falls: durations vary."""

_FULL = 0.8
"""Part of its limit from which on a batch was cut by it."""

_APART = 1.5
"""Amounts must differ by this factor to show what is fixed cost and what is cost per row."""


@dataclass(frozen=True)
class Taken:
    amount: int  # records, bytes of a table, files or bytes of a folder; 0 where that is unknown
    duration_s: float
    record_bytes: float | None = None


@dataclass(frozen=True)
class BatchCost:
    """What a batch costs: ``fixed_s`` seconds, and ``unit_s`` seconds for each record, byte or file."""

    fixed_s: float
    unit_s: float


class AdaptiveLimit:
    def __init__(self, limit: int, least: int = 1) -> None:
        self.limit = limit
        self._least = least
        self._batches = 0
        self._warm: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)

    def next(self, taken: Taken) -> int:
        """What the next batch may take, after a batch has ended.

        A batch that ended before its limit shows the speed of the query and not that there is more to
        read: it never raises the limit.
        """
        wanted = float(self.limit)
        if taken.amount > 0:
            cold_s = _COLD_S[self._batches] if self._batches < len(_COLD_S) else 0.0
            if not cold_s:
                self._warm.append((taken.amount, taken.duration_s))
            self._batches += 1
            wanted = self._wanted(taken, cold_s)
        most = _MOST_BYTES / (taken.record_bytes or 1.0)
        return max(1, int(min(max(wanted, self._least), most)))

    def _wanted(self, taken: Taken, cold_s: float) -> float:
        cost = estimate_cost(self._warm)
        budget_s = max(BATCH_S, cost.fixed_s)
        rows_s = max(taken.duration_s - cold_s - cost.fixed_s, 0.001)
        is_slow = rows_s > _SLOW * budget_s
        is_cut = taken.amount >= _FULL * self.limit
        if not is_slow and (not is_cut or (cold_s and taken.duration_s > BATCH_S)):
            return self.limit
        if not is_slow:
            rows_s = max(taken.duration_s - cost.fixed_s, 0.001)
        growth = _FAST_GROWTH if taken.duration_s < BATCH_S / _FAST_GROWTH else _GROWTH
        most = growth * self.limit if is_cut else self.limit
        return min(budget_s / max(cost.unit_s, rows_s / taken.amount), most)


def estimate_cost(batches: Iterable[tuple[int, float]]) -> BatchCost:
    """The cost of a batch from the amounts and durations of several.

    The slope is the median over all pairs of batches, so that single slow batches do not count. Batches
    of one size do not show a fixed cost: all is taken for the cost of the rows.
    """
    found = sorted(batches)
    if not found:
        return BatchCost(0.0, 0.0)
    slopes = [
        (longer - shorter) / (more - less)
        for (less, shorter), (more, longer) in itertools.combinations(found, 2)
        if more >= _APART * less
    ]
    if not slopes:
        return BatchCost(0.0, median(duration / amount for amount, duration in found))
    unit_s = max(0.0, median(slopes))
    fixed_s = median(duration - unit_s * amount for amount, duration in found)
    return BatchCost(min(max(0.0, fixed_s), min(duration for _, duration in found)), unit_s)


class Meter(ABC):
    """Measures the batches of one source, to choose how much the next one may read."""

    counts_records: ClassVar[bool] = False
    """Whether limits are numbers of records, which are set when the query is built."""

    least: ClassVar[int] = 1
    """What every batch may read, unless its records are too large."""

    record_bytes: float | None = None
    """The mean size of a record, from a sample; ``None`` where there is none."""

    @abstractmethod
    def first_limit(self, facts: SourceFacts, position: Position | None) -> int:
        """How much the first batch may read."""

    @abstractmethod
    def taken(self, one: SourceRange, limit: int, duration_s: float) -> Taken:
        """What a batch has read."""
