"""Expectations: conditions that the rows of a dataset should fulfil."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, assert_never

from headrace.errors import SourceLocation

Action = Literal["warn", "drop", "quarantine", "fail"]
"""What happens to a row that fails: it is kept and counted, dropped, moved to the quarantine table, or it
stops the flow."""

NullRule = Literal["pass", "fail"]
"""Whether a condition that is NULL for a row counts as passed."""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A condition on the rows of one dataset."""

    name: str
    condition: Any  # SQL text, or a ``pyspark.sql.Column``
    text: str  # the condition in SQL, for people; a Column is known only while Spark runs
    action: Action
    location: SourceLocation
    nulls: NullRule | None = None  # whether NULL passes; ``None`` takes the pipeline's rule

    @property
    def rejects(self) -> bool:
        """Whether a row that fails is kept out of the dataset."""
        return self.action != "warn"


@dataclass(frozen=True, kw_only=True)
class DatasetCheck:
    """A check of a whole table or materialized view, after each batch or refresh.

    Args:
        kind: ``unique``: no two rows have equal keys. ``row_count``: the dataset has as many rows as another.
            ``fresh``: the newest value of a column is recent.
    """

    kind: Literal["unique", "row_count", "fresh"]
    columns: tuple[str, ...] = ()
    like: str = ""
    within_s: float = 0.0  # the maximum age of the newest value in seconds
    fails: bool  # whether the flow stops; otherwise the check only warns
    location: SourceLocation

    @property
    def name(self) -> str:
        """The check for a person."""
        match self.kind:
            case "unique":
                return f"unique {', '.join(self.columns)}"
            case "row_count":
                return f"as many rows as {self.like}"
            case "fresh":
                return f"{self.columns[0]} within {self.within_s:g} s"
            case _:
                assert_never(self.kind)


@dataclass(frozen=True, kw_only=True)
class ExpectationCount:
    """How many rows of a batch passed and failed one expectation."""

    name: str
    dataset: str  # the dataset that declares it: the flow's target, or a temporary view that it reads
    action: Action
    passed: int
    failed: int

    def to_json(self) -> dict[str, Any]:
        """The count as a batch's commit holds it."""
        return {
            "name": self.name,
            "dataset": self.dataset,
            "action": self.action,
            "passed": self.passed,
            "failed": self.failed,
        }
