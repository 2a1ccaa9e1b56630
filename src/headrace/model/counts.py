"""How many rows of a batch went where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from headrace.model.expectations import ExpectationCount


@dataclass(frozen=True, kw_only=True)
class BadRecordCount:
    """How many records of a batch a reader has left out for one reason.

    Args:
        name: The reason, such as ``RECORD_UNPARSEABLE``.
        action: Whether the records are in the quarantine table or dropped.
    """

    name: str
    action: Literal["quarantine", "drop"]
    records: int

    def to_json(self) -> dict[str, Any]:
        """The count as a commit's metadata holds it."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class BatchCounts:
    """The row counts of one batch, as its commit states them: input = accepted + quarantined + dropped.

    Args:
        input: Rows that the query returned, and the records that readers have left out.
        accepted: Rows that the target takes.
        quarantined: Rows and records that the quarantine table takes.
        dropped: Rows that an expectation drops, and records that a reader skips.
        expectations: The rows that passed and failed each expectation; a row can fail several.
        bad_records: The records that readers have left out, by reason.

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
    bad_records: tuple[BadRecordCount, ...] = ()

    def __post_init__(self) -> None:
        if self.input != self.accepted + self.quarantined + self.dropped:
            raise ValueError(f"row counts do not add up: {self}")

    def to_json(self) -> dict[str, Any]:
        """The counts as a commit's metadata holds them."""
        counts: dict[str, Any] = {name: getattr(self, name) for name in _ROWS}
        if self.expectations:
            counts[_EXPECTATIONS] = [one.to_json() for one in self.expectations]
        if self.bad_records:
            counts[_BAD_RECORDS] = [one.to_json() for one in self.bad_records]
        return counts

    def with_bad_records(self, found: Iterable[BadRecordCount]) -> BatchCounts:
        """The counts together with records that readers have left out."""
        added = tuple(found)
        quarantined = sum(one.records for one in added if one.action == "quarantine")
        dropped = sum(one.records for one in added if one.action == "drop")
        return replace(
            self,
            input=self.input + quarantined + dropped,
            quarantined=self.quarantined + quarantined,
            dropped=self.dropped + dropped,
            bad_records=(*self.bad_records, *added),
        )


_EXPECTATIONS, _BAD_RECORDS = "expectations", "bad_records"
_ROWS = tuple(one.name for one in fields(BatchCounts) if one.name not in (_EXPECTATIONS, _BAD_RECORDS))


def sum_counts(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of two batches together, from the metadata of their commits; a missing count is 0."""
    summed: dict[str, Any] = {name: first.get(name, 0) + second.get(name, 0) for name in _ROWS}
    if listed := [*first.get(_EXPECTATIONS, ()), *second.get(_EXPECTATIONS, ())]:
        summed[_EXPECTATIONS] = sum_expectations(listed)
    if bad := [*first.get(_BAD_RECORDS, ()), *second.get(_BAD_RECORDS, ())]:
        summed[_BAD_RECORDS] = sum_bad_records(bad)
    return summed


def sum_bad_records(counts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The counts of bad records, one for each reason and action."""
    summed: dict[tuple[str, str], dict[str, Any]] = {}
    for one in counts:
        known = summed.setdefault((one["name"], one["action"]), {**one, "records": 0})
        known["records"] += one["records"]
    return list(summed.values())


def sum_expectations(counts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The counts of expectations, one for each dataset and name."""
    summed: dict[tuple[str, str], dict[str, Any]] = {}
    for one in counts:
        known = summed.setdefault((one["dataset"], one["name"]), {**one, "passed": 0, "failed": 0})
        known["passed"] += one["passed"]
        known["failed"] += one["failed"]
        known["action"] = one["action"]
    return list(summed.values())
