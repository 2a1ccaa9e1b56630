"""What measures the batches of a source, to choose how much the next one may read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from headrace.model.ranges import Position, SourceRange
from headrace.sources.limits import Taken
from headrace.state.facts import SourceFacts


class Meter(ABC):
    """Measures the batches of one source, to choose how much the next one may read."""

    counts_records: ClassVar[bool] = False
    """Whether limits are numbers of records, which are set when the query is built."""

    least: ClassVar[int] = 1
    """What every batch may read, unless its records are too large."""

    @property
    def record_bytes(self) -> float | None:
        """The mean size of a record, from a sample; ``None`` where there is none."""
        return None

    @abstractmethod
    def first_limit(self, facts: SourceFacts, position: Position | None) -> int:
        """How much the first batch may read."""

    @abstractmethod
    def taken(self, one: SourceRange, limit: int, duration_s: float) -> Taken:
        """What a batch has read."""

    def close(self) -> None:
        """Close connections."""
        return
