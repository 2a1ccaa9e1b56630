"""The columns and operations of change records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

SEQUENCE: Final = "_sequence"
"""The column of the table with the sequence of each row: ``value``, and the place of its record in the source
(``partition``, ``source``, ``position``)."""

COLUMN_SEQUENCES: Final = "_sequences"
"""The column with the sequence of each column that keeps its value where a record has NULL
(``ignore_null_updates``); NULL where it is that of the row."""

START: Final = "__START_AT"
END: Final = "__END_AT"
"""The columns of a table with histories (SCD type 2): the sequence with which a row begins, and that of the
next row or of the delete; NULL for the current row."""

KEPT_PROPERTY: Final = "pipelines.cdc.tombstoneGCThresholdInSeconds"
"""The table property with the time for which tombstones and hidden events are kept, in seconds."""

FEED_COLUMNS: Final = ("_change_type", "_commit_version", "_commit_timestamp")
"""The columns of a change feed that the table does not have."""

OPERATION: Final = "_cdc_operation"
"""The column of a change record with its operation; the table does not have this column."""

DuplicateKeys = Literal["fail", "replace"]
"""What a flow does with a record whose key has several rows in the table."""

UPSERT: Final = "upsert"
DELETE: Final = "delete"
TRUNCATE: Final = "truncate"


@dataclass(frozen=True, kw_only=True)
class ChosenColumns:
    included: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        return self.included or self.excluded

    def of(self, columns: Iterable[str]) -> list[str]:
        left_out = {name.casefold() for name in self.excluded}
        wanted = None if self.included is None else {name.casefold() for name in self.included}
        return [
            name
            for name in columns
            if name.casefold() not in left_out and (wanted is None or name.casefold() in wanted)
        ]

    def text(self, verb: str) -> str:
        """``, <verb> a, b``, ``, <verb> all but a, b``, or nothing for all columns."""
        if self.included is not None:
            return f", {verb} {', '.join(self.included)}"
        return f", {verb} all but {', '.join(self.excluded)}" if self.excluded else ""


ALL_COLUMNS: Final = ChosenColumns()
