"""How many rows of a batch went where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from headrace.model.expectations import ExpectationCount


@dataclass(frozen=True, kw_only=True)
class BatchCounts:
    """The row counts of one batch, as its commit states them: input = accepted + quarantined + dropped.

    Args:
        input: Rows that the query returned.
        accepted: Rows that the target takes.
        quarantined: Rows that the quarantine table takes.
        dropped: Rows that an expectation drops.
        expectations: The rows that passed and failed each expectation; a row can fail several.

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
    expectations: tuple[ExpectationCount, ...] = ()

    def __post_init__(self) -> None:
        if self.input != self.accepted + self.quarantined + self.dropped:
            raise ValueError(f"row counts do not add up: {self}")

    def to_json(self) -> dict[str, Any]:
        """The counts as a commit's metadata holds them."""
        counts: dict[str, Any] = {name: getattr(self, name) for name in _ROWS}
        if self.expectations:
            counts[_EXPECTATIONS] = [one.to_json() for one in self.expectations]
        return counts


_EXPECTATIONS = "expectations"
_ROWS = tuple(one.name for one in fields(BatchCounts) if one.name != _EXPECTATIONS)


def sum_counts(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of two batches together, from the metadata of their commits; a missing count is 0."""
    summed: dict[str, Any] = {name: first.get(name, 0) + second.get(name, 0) for name in _ROWS}
    if listed := [*first.get(_EXPECTATIONS, ()), *second.get(_EXPECTATIONS, ())]:
        summed[_EXPECTATIONS] = sum_expectations(listed)
    return summed


def sum_expectations(counts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The counts of expectations, one for each dataset and name."""
    summed: dict[tuple[str, str], dict[str, Any]] = {}
    for one in counts:
        known = summed.setdefault((one["dataset"], one["name"]), {**one, "passed": 0, "failed": 0})
        known["passed"] += one["passed"]
        known["failed"] += one["failed"]
        known["action"] = one["action"]
    return list(summed.values())
