"""What a reader does with records that differ from its schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

DriftAction = Literal["evolve", "rescue", "quarantine", "fail"]

EVERY_COLUMN = "*"
"""The key of the default among actions by column."""

RESCUED = "_rescued_data"
"""The column with the fields of a record that have no column, or a value of another type, as JSON."""


def field_name(name: str) -> str:
    """A field within a dotted name; a name that has a dot itself is quoted, as in Spark."""
    return f"`{name}`" if "." in name else name


@dataclass(frozen=True)
class Drift:
    """What to do with a field that the schema does not have, and with a value of another type.

    ``evolve`` adds a column for a new field, and quarantines records with a value of another type; ``rescue``
    keeps the value in `RESCUED`, ``quarantine`` sets the record apart, ``fail`` stops the flow. Without an
    action a record with a value of another type is quarantined, and a field without a column is ignored.

    Args:
        columns: Actions by the dotted name of the field. An action for an object is also that for its fields
            that have none of their own.
    """

    default: DriftAction | None = None
    columns: Mapping[str, DriftAction] = field(default_factory=dict)

    def own(self, path: str, name: str) -> DriftAction | None:
        """The action of one field; ``path`` is the dotted name of its object and a dot, or empty."""
        return self.columns.get(f"{path}{field_name(name)}") or (None if path else self.columns.get(name))

    def has(self, action: DriftAction) -> bool:
        """Whether any field has an action."""
        return action == self.default or action in self.columns.values()

    @property
    def is_default(self) -> bool:
        return self.default is None and not self.columns
