"""How many rows of a batch went where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class BatchCounts:
    """The row counts of one batch, as its commit states them: input = accepted + quarantined + dropped.

    Args:
        input: Rows that the query returned.
        accepted: Rows that the target takes.
        quarantined: Rows that the quarantine table takes.
        dropped: Rows that an expectation drops.
        expectations: Rows that do not meet an expectation, by its name; a row can be in several.

    Raises:
        ValueError: The counts do not add up.

    Example:
        >>> BatchCounts(input=7, accepted=5, quarantined=2).to_json()
        {'input': 7, 'accepted': 5, 'quarantined': 2, 'dropped': 0}
    """

    input: int
    accepted: int
    quarantined: int = 0
    dropped: int = 0
    expectations: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.input != self.accepted + self.quarantined + self.dropped:
            raise ValueError(f"row counts do not add up: {self}")

    def to_json(self) -> dict[str, Any]:
        counts: dict[str, Any] = {name: getattr(self, name) for name in _ROWS}
        return {**counts, **({_EXPECTATIONS: dict(self.expectations)} if self.expectations else {})}


_EXPECTATIONS = "expectations"
_ROWS = tuple(one.name for one in fields(BatchCounts) if one.name != _EXPECTATIONS)


def sum_counts(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of two batches together, from the metadata of their commits; a missing count is 0."""
    summed: dict[str, Any] = {name: first.get(name, 0) + second.get(name, 0) for name in _ROWS}
    one, other = first.get(_EXPECTATIONS, {}), second.get(_EXPECTATIONS, {})
    if one or other:
        summed[_EXPECTATIONS] = {
            name: one.get(name, 0) + other.get(name, 0) for name in dict.fromkeys([*one, *other])
        }
    return summed
