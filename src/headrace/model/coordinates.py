"""Coordinates: the ordered, named, typed parts that identify a record in a kind of source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

PartType = Literal["STRING", "INT", "BIGINT"]
"""The SQL type of a part: names, the number of a partition, and the number of a record."""


@dataclass(frozen=True)
class CoordinatePart:
    name: str
    type: PartType


@dataclass(frozen=True)
class RecordCoordinates:
    """The parts that identify a record: a name (STRING), at most one partition (INT), and the record's number
    (BIGINT). Records of one name and partition are ordered by their numbers."""

    parts: tuple[CoordinatePart, ...]
    before_number: str = ""  # the words before the number; by default the name of its part

    def __post_init__(self) -> None:
        types = [part.type for part in self.parts]
        if types not in (["STRING", "BIGINT"], ["STRING", "INT", "BIGINT"]):
            raise ValueError(
                f"coordinates are one STRING, then INT or nothing, then BIGINT, not {types}: "
                "a kind with several names joins them into one"
            )

    @classmethod
    def of(cls, before_number: str = "", **types: PartType) -> RecordCoordinates:
        """Coordinates of part names with their types, in order."""
        return cls(tuple(CoordinatePart(name, kind) for name, kind in types.items()), before_number)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

    @property
    def source(self) -> str:
        return self.parts[0].name

    @property
    def partition(self) -> str | None:
        return next((part.name for part in self.parts if part.type == "INT"), None)

    @property
    def number(self) -> str:
        return self.parts[-1].name

    @property
    def types(self) -> dict[str, PartType]:
        return {part.name: part.type for part in self.parts}

    def describe(self, values: Mapping[str, Any]) -> str:
        """The coordinates of a record in words, such as ``orders/0 offset 7``; empty if it has none."""
        *above, number = (values.get(name) for name in self.names)
        if None in above:
            return ""
        place = "/".join(map(str, above))
        return place if number is None else f"{place}{self.before_number or f' {self.number}'} {number}"
