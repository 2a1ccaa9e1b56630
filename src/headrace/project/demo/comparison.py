"""Compares gold with the producer's ledger: all rows, to the cent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from headrace.project.demo.ledger import Entry, Key


@dataclass(frozen=True)
class ComparedRow:
    """One name and date of both sides; ``None`` if a side does not have it."""

    name: str
    date: str
    gold: Entry | None
    ledger: Entry | None

    @property
    def equal(self) -> bool:
        return self.gold == self.ledger


@dataclass(frozen=True)
class Comparison:
    """All rows of both sides, by date and name."""

    rows: tuple[ComparedRow, ...]
    doubled: tuple[Key, ...] = ()
    """Keys that gold holds in more than one row."""

    @property
    def differences(self) -> tuple[ComparedRow, ...]:
        return tuple(row for row in self.rows if not row.equal)

    @property
    def equal(self) -> bool:
        return bool(self.rows) and not self.differences and not self.doubled

    @property
    def total(self) -> Decimal:
        """The sum of gold."""
        return sum((row.gold.sales for row in self.rows if row.gold is not None), Decimal(0))


def load_gold(table: Path) -> list[dict[str, Any]]:
    """The rows of the table, read without Spark."""
    import pyarrow
    from deltalake import DeltaTable, QueryBuilder

    query = QueryBuilder().register("gold", DeltaTable(table))
    found = query.execute('SELECT name, date, sales, "count" FROM gold').read_all()
    rows: list[dict[str, Any]] = pyarrow.table(found).to_pylist()
    return rows


def compare(gold: Iterable[Mapping[str, Any]], ledger: Mapping[Key, Entry]) -> Comparison:
    """Compare both sides.

    Args:
        gold: Rows with ``name``, ``date``, ``sales`` and ``count``.
    """
    found: dict[Key, Entry] = {}
    doubled: list[Key] = []
    for row in gold:
        key = (str(row["name"]), str(row["date"]))
        if key in found:
            doubled.append(key)
        found[key] = Entry(int(row["count"]), Decimal(row["sales"]))
    keys = sorted(found.keys() | ledger.keys(), key=lambda key: (key[1], key[0]))
    rows = (ComparedRow(name, date, found.get((name, date)), ledger.get((name, date))) for name, date in keys)
    return Comparison(tuple(rows), tuple(doubled))
