"""The row equations of a batch, by the kind of its flow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, assert_never, get_args

FlowKind = Literal["append"]
"""What a commit's metadata names as ``kind``; a commit that names none is an append."""


@dataclass(frozen=True)
class Equation:
    """One count of a batch is the sum of others."""

    total: str
    terms: tuple[str, ...]

    def holds(self, counts: Mapping[str, int]) -> bool:
        return counts[self.total] == sum(counts[term] for term in self.terms)

    def text(self, counts: Mapping[str, int]) -> str:
        """``12 in = 10 accepted + 2 quarantined + 0 dropped``; with ``≠`` where it does not hold."""
        terms = " + ".join(f"{counts[term]:,} {term}" for term in self.terms)
        total = "in" if self.total == "input" else self.total
        return f"{counts[self.total]:,} {total} {'=' if self.holds(counts) else '≠'} {terms}"


@dataclass(frozen=True)
class RowCounts:
    """The rows of one batch, or of several, as their commits count them."""

    kind: FlowKind
    by_name: Mapping[str, int]

    @classmethod
    def parse(cls, metadata: Mapping[str, Any]) -> Self:
        """Read the counts of a commit; those that it does not name are 0.

        Raises:
            ValueError: The kind is unknown, or a count is not a number.
        """
        kind = metadata.get("kind", "append")
        if kind not in get_args(FlowKind):
            raise ValueError(f"unknown kind of flow: {kind!r}")
        names = {name for one in equations_of(kind) for name in (one.total, *one.terms)}
        return cls(kind, {name: int(metadata.get(name, 0)) for name in sorted(names)})

    def plus(self, other: RowCounts, sign: int = 1) -> RowCounts:
        """The sums of two batches of one flow; with ``sign=-1`` the differences."""
        sums = {name: number + sign * other.by_name.get(name, 0) for name, number in self.by_name.items()}
        return RowCounts(self.kind, sums)

    @property
    def added(self) -> int:
        """The rows that the batch adds to its table."""
        match self.kind:
            case "append":
                return self.by_name["accepted"]
            case _:
                assert_never(self.kind)

    @property
    def quarantined(self) -> int:
        return self.by_name["quarantined"]

    @property
    def dropped(self) -> int:
        return self.by_name["dropped"]

    @property
    def broken(self) -> list[str]:
        """The equations that do not hold."""
        return [one.text(self.by_name) for one in equations_of(self.kind) if not one.holds(self.by_name)]

    @property
    def text(self) -> str:
        return ", ".join(one.text(self.by_name) for one in equations_of(self.kind))


def equations_of(kind: FlowKind) -> tuple[Equation, ...]:
    """What must hold for each batch of a flow of this kind."""
    match kind:
        case "append":
            return (Equation("input", ("accepted", "quarantined", "dropped")),)
        case _:
            assert_never(kind)
