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


@dataclass(frozen=True)
class Drift:
    """What to do with a field that the schema does not have, and with a value of another type.

    ``evolve`` adds a column or widens its type, ``rescue`` keeps the value in `RESCUED`, ``quarantine`` sets
    the record apart, ``fail`` stops the flow. Without an action a value of another type is quarantined, and
    a field without a column is ignored.

    Args:
        default: The action for fields that `columns` does not have.
        columns: Actions by the name of the field.
    """

    default: DriftAction | None = None
    columns: Mapping[str, DriftAction] = field(default_factory=dict)

    def action(self, name: str) -> DriftAction | None:
        """The action for a field."""
        return self.columns.get(name, self.default)

    def has(self, action: DriftAction) -> bool:
        """Whether any field has an action."""
        return action == self.default or action in self.columns.values()

    @property
    def is_default(self) -> bool:
        return self.default is None and not self.columns
