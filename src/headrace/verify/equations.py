"""The row equations of a batch, by the kind of its flow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from headrace.model.texts import counted

FlowKind = Literal["append", "merge", "history", "send"]
"""What a commit's metadata names as ``kind``; a commit that names none is an append."""


@dataclass(frozen=True)
class Equation:
    total: str
    terms: tuple[str, ...]

    def holds(self, counts: Mapping[str, int]) -> bool:
        return counts[self.total] == sum(counts[term] for term in self.terms)

    def text(self, counts: Mapping[str, int]) -> str:
        """``12 in = 10 accepted + 2 quarantined + 0 dropped``; with ``≠`` where it does not hold."""
        terms = " + ".join(f"{counts[term]:,} {term}" for term in self.terms)
        total = "in" if self.total == "input" else self.total
        return f"{counts[self.total]:,} {total} {'=' if self.holds(counts) else '≠'} {terms}"


_INPUT = Equation("input", ("accepted", "quarantined", "dropped"))
_BY_KEY = Equation("accepted", ("inserted", "updated", "deleted", "superseded"))
_EQUATIONS: Mapping[FlowKind, tuple[Equation, ...]] = {
    "append": (_INPUT,),
    "send": (_INPUT,),
    "merge": (_INPUT, _BY_KEY),
    "history": (_INPUT, _BY_KEY),
}
"""What must hold for each batch of a flow."""

_ADDED: Mapping[FlowKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "append": (("accepted",), ()),
    "send": ((), ()),
    "merge": (("inserted",), ("deleted", "truncated")),
    "history": (("rows_added",), ("rows_removed",)),
}
"""The counts by which the table has grown, less those by which it has shrunk."""

_WORDS = {"truncated": "truncated", "rows_added": "added", "rows_removed": "removed"}
"""Counts of rows, which are in no equation of records."""


@dataclass(frozen=True)
class RowCounts:
    kind: FlowKind
    by_name: Mapping[str, int]

    @classmethod
    def parse(cls, metadata: Mapping[str, Any]) -> Self:
        """Read the counts of a commit; missing counts are 0."""
        kind = metadata.get("kind", "append")
        if kind not in get_args(FlowKind):
            raise ValueError(f"unknown kind of flow: {kind!r}")
        names = {name for one in _EQUATIONS[kind] for name in (one.total, *one.terms)}
        names |= {name for part in _ADDED[kind] for name in part}
        return cls(kind, {name: int(metadata.get(name, 0)) for name in sorted(names)})

    def plus(self, other: RowCounts, sign: int = 1) -> RowCounts:
        """The sums of two batches of one flow; with ``sign=-1`` the differences."""
        names = sorted({*self.by_name, *other.by_name})
        sums = {name: self.by_name.get(name, 0) + sign * other.by_name.get(name, 0) for name in names}
        # A sum begins with no batch, whose kind is that of an append.
        return RowCounts(other.kind if self.kind == "append" else self.kind, sums)

    @property
    def by_key(self) -> bool:
        """Whether change records were applied by key, so that a batch can remove rows."""
        return self.kind in ("merge", "history")

    @property
    def added(self) -> int:
        """By how many rows the table has grown; a merge can also make it smaller."""
        plus, minus = _ADDED[self.kind]
        return sum(self.by_name[name] for name in plus) - sum(self.by_name[name] for name in minus)

    @property
    def quarantined(self) -> int:
        return self.by_name["quarantined"]

    @property
    def dropped(self) -> int:
        return self.by_name["dropped"]

    @property
    def broken(self) -> list[str]:
        return [one.text(self.by_name) for one in _EQUATIONS[self.kind] if not one.holds(self.by_name)]

    @property
    def text(self) -> str:
        texts = [one.text(self.by_name) for one in _EQUATIONS[self.kind]]
        rows = ((self.by_name.get(name, 0), did) for name, did in _WORDS.items())
        return ", ".join([*texts, *(f"{counted(number, 'row')} {did}" for number, did in rows if number)])
