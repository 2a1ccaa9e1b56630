"""Positions in a folder of files: entries of Spark's log of the files that it has taken in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.model.ranges import Position


@dataclass(frozen=True)
class FilePosition:
    """How far a folder was read."""

    entry: int  # the last entry of Spark's log whose files were read

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FilePosition:
        """The position in a line of Spark's offset log, or in a commit."""
        try:
            return cls(int(value["logOffset"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a position in a folder: {value!r}") from error

    def to_json(self) -> dict[str, Any]:
        return {"logOffset": self.entry}

    def continues(self, ended: Position) -> bool:
        return self == ended
