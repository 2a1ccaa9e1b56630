"""The sums of the producer, computed without Spark and Delta: the tables must have the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

Key = tuple[str, str]
"""A name and an ISO date."""


@dataclass(frozen=True)
class Entry:
    """The sales of one name on one date."""

    count: int
    sales: Decimal


@dataclass
class SalesLedger:
    """Counts and exact sums of the records that the broker has acknowledged.

    Only the producer's thread writes it; figures may be read meanwhile, sums after it has ended.
    """

    records: int = 0
    sales: Decimal = Decimal(0)
    _entries: dict[Key, Entry] = field(default_factory=dict)
    _ends: dict[int, int] = field(default_factory=dict)

    def add(self, name: str, date: str, sales: Decimal, *, partition: int, offset: int) -> None:
        """Add one acknowledged record."""
        before = self._entries.get((name, date), Entry(0, Decimal(0)))
        self._entries[(name, date)] = Entry(before.count + 1, before.sales + sales)
        self._ends[partition] = max(self._ends.get(partition, 0), offset + 1)
        self.records += 1
        self.sales += sales

    @property
    def entries(self) -> Mapping[Key, Entry]:
        """What each name and date must come to."""
        return dict(self._entries)

    @property
    def ends(self) -> Mapping[int, int]:
        """For each partition, the offset after the last acknowledged record."""
        return dict(self._ends)

    @property
    def dates(self) -> int:
        return len({date for _, date in self._entries})

    @property
    def names(self) -> int:
        return len({name for name, _ in self._entries})
