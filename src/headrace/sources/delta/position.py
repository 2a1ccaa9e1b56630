"""Positions in a Delta table that is read as a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.model.ranges import Position


@dataclass(frozen=True, kw_only=True)
class DeltaPosition:
    """How far a table was read."""

    table_id: str
    version: int
    index: int  # the last file of it that was read; negative before the first one
    # Whether the files are those of the snapshot that the stream starts with, and not those that the
    # version added
    is_snapshot: bool = False
    format: int | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DeltaPosition:
        """The position in a line of Spark's offset log, or in a commit."""
        try:
            return cls(
                table_id=str(value["reservoirId"]),
                version=int(value["reservoirVersion"]),
                index=int(value["index"]),
                is_snapshot=bool(value.get("isStartingVersion", False)),
                format=value.get("sourceVersion"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a position in a Delta table: {value!r}") from error

    def to_json(self) -> dict[str, Any]:
        # Spark compares positions as text; this is Delta's order.
        return {
            **({} if self.format is None else {"sourceVersion": self.format}),
            "reservoirId": self.table_id,
            "reservoirVersion": self.version,
            "index": self.index,
            "isStartingVersion": self.is_snapshot,
        }

    def continues(self, ended: Position) -> bool:
        return self == ended

    @property
    def last_version(self) -> int:
        """The last version of which anything was read."""
        return self.version - 1 if self.index < 0 else self.version

    @property
    def first_commit(self) -> int:
        """The first version from here on that is read as a commit, and not as a snapshot."""
        return self.version + 1 if self.is_snapshot else self.version
