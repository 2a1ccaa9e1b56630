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
    """A condition on the rows of one dataset.

    Args:
        name: Its name, unique in the dataset.
        condition: SQL text, or a ``pyspark.sql.Column``.
        text: The condition in SQL, for people; a Column is known only while Spark runs.
        action: What happens to rows that fail.
        location: The line that declares it.
        nulls: Whether NULL passes; ``None`` takes the pipeline's rule.
    """

    name: str
    condition: Any
    text: str
    action: Action
    location: SourceLocation
    nulls: NullRule | None = None

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
        columns: The keys, or the column with a time.
        like: The other dataset.
        within_s: The maximum age of the newest value in seconds.
        fails: Whether the flow stops; otherwise the check only warns.
        location: The line that declares it.
    """

    kind: Literal["unique", "row_count", "fresh"]
    columns: tuple[str, ...] = ()
    like: str = ""
    within_s: float = 0.0
    fails: bool
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
    """How many rows of a batch passed and failed one expectation.

    Args:
        name: The expectation.
        dataset: The dataset that declares it: the flow's target, or a temporary view that it reads.
        action: What happened to the rows that failed.
    """

    name: str
    dataset: str
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
