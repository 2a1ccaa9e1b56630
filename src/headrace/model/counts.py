"""How many rows of a batch went where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from headrace.model.declarations import ExpectationCount


@dataclass(frozen=True, kw_only=True)
class BadRecordCount:
    """How many records of a batch a reader has left out for one reason."""

    name: str  # the reason, such as ``RECORD_UNPARSEABLE``
    action: Literal["quarantine", "drop"]  # whether the records are in the quarantine table or dropped
    records: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


CountKind = Literal["append", "merge", "history", "send"]
"""What a batch does with its accepted rows."""


@dataclass(frozen=True, kw_only=True)
class RowChanges:
    """What the accepted change records of a batch did to the rows of their table."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    # Records without an effect of their own: a newer record of their key was there or came in the same batch,
    # their key had no row to delete, or they are truncates.
    superseded: int = 0
    # Rows that truncates deleted, and second rows of a key that were replaced with the first.
    truncated: int = 0


@dataclass(frozen=True, kw_only=True)
class HistoryChanges(RowChanges):
    """What the accepted change records of a batch did to the histories of their keys (SCD type 2).
    ``inserted`` records begin a row, ``updated`` ones give a row that an earlier record began its values, and
    ``deleted`` ones end a row."""

    rows_added: int = 0  # rows that the table has more; a record that splits a row adds two
    rows_changed: int = 0
    rows_removed: int = 0  # rows that the table has no more, since they were joined with others


@dataclass(frozen=True, kw_only=True)
class BatchCounts:
    """The row counts of one batch, as its commit states them: input = accepted + quarantined + dropped."""

    input: int  # rows that the query returned, and the records that readers have left out
    accepted: int
    quarantined: int = 0  # rows and records that the quarantine table takes
    dropped: int = 0  # rows that an expectation drops, and records that a reader skips
    # The rows that passed and failed each expectation; a row can fail several.
    expectations: tuple[ExpectationCount, ...] = ()
    bad_records: tuple[BadRecordCount, ...] = ()  # the records that readers have left out, by reason
    # Whether the accepted rows were appended, merged by key, added to the history of their key, or sent to
    # another system.
    kind: CountKind = "append"
    changes: RowChanges | None = None  # what the accepted rows did, if they were merged

    def __post_init__(self) -> None:
        if self.input != self.accepted + self.quarantined + self.dropped:
            raise ValueError(f"row counts do not add up: {self}")

    def to_json(self) -> dict[str, Any]:
        counts: dict[str, Any] = {name: getattr(self, name) for name in _ROWS}
        if self.kind != "append":
            counts[_KIND] = self.kind
        if self.changes is not None:
            counts |= asdict(self.changes)
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


_EXPECTATIONS, _BAD_RECORDS, _KIND = "expectations", "bad_records", "kind"
_ROWS = ("input", "accepted", "quarantined", "dropped")
_CHANGES = tuple(one.name for one in fields(HistoryChanges))


def sum_counts(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of two batches together, from the metadata of their commits; a missing count is 0."""
    summed: dict[str, Any] = {name: first.get(name, 0) + second.get(name, 0) for name in _ROWS}
    if kind := second.get(_KIND, first.get(_KIND)):
        summed[_KIND] = kind
    for name in _CHANGES:
        if name in first or name in second:
            summed[name] = first.get(name, 0) + second.get(name, 0)
    if listed := [*first.get(_EXPECTATIONS, ()), *second.get(_EXPECTATIONS, ())]:
        summed[_EXPECTATIONS] = sum_each(listed, ("dataset", "name"), ("passed", "failed"))
    if bad := [*first.get(_BAD_RECORDS, ()), *second.get(_BAD_RECORDS, ())]:
        summed[_BAD_RECORDS] = sum_each(bad, ("name", "action"), ("records",))
    return summed


def sum_each(
    counts: Iterable[Mapping[str, Any]], keys: tuple[str, ...], numbers: tuple[str, ...]
) -> list[dict[str, Any]]:
    """The counts with equal keys as one; its other values are those of the last."""
    summed: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in counts:
        key = tuple(one[name] for name in keys)
        known = summed.get(key, {})
        summed[key] = {**one, **{name: known.get(name, 0) + one[name] for name in numbers}}
    return list(summed.values())
