"""The split of a batch's rows by their expectations: to the target, to the quarantine, or dropped.

Every row goes exactly one way. The counts come from the job that writes the accepted rows; the rejected
rows are computed a second time, and only if there are any.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from headrace.contracts.conditions import check_columns, count_failed, failed_counts, is_passed
from headrace.contracts.rejected import REASONS
from headrace.model.counts import BatchCounts
from headrace.model.declarations import Action, Expectation, ExpectationCount
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, Observation, SparkSession

_INPUT, _QUARANTINED, _DROPPED, _STOPPING = "input", "quarantined", "dropped", "stopping"


class RowSplit:
    """The rows of one batch, split.

    Example:
        >>> split = RowSplit(with_checks(rows, expectations), expectations, "orders")  # doctest: +SKIP
        >>> split.accepted.write.save(path)                                            # doctest: +SKIP
        >>> split.counts(accepted=97).quarantined                                      # doctest: +SKIP
        3
    """

    def __init__(
        self, rows: DataFrame, expectations: Sequence[Expectation], dataset: str, *, is_counted: bool = False
    ) -> None:
        self._rows = rows
        self._is_counted = is_counted
        self._expectations = tuple(expectations)
        self._dataset = dataset
        self._observation: Observation | None = None

    @property
    def session(self) -> SparkSession:
        """The batch's own session."""
        return self._rows.sparkSession

    @cached_property
    def accepted(self) -> DataFrame:
        """The rows for the target. Whatever computes them also counts; it must compute them all, once."""
        if not self._expectations and not self._is_counted:
            return self._rows
        from pyspark.sql import Observation

        self._observation = Observation()
        observed = self._rows.observe(self._observation, *self._aggregates())
        return self._without_checks(observed.where(self._passes("drop", "quarantine", "fail")))

    @property
    def quarantined(self) -> DataFrame:
        """The rows for the quarantine, with the column ``reasons``: the expectations that they fail."""
        return self._failing("quarantine")

    @property
    def stopping(self) -> DataFrame:
        """The rows that stop the flow, with the column ``reasons``."""
        return self._failing("fail")

    @property
    def stopping_rows(self) -> int:
        """How many rows stop the flow; after `accepted` has been computed."""
        return int(self._seen[_STOPPING])

    @property
    def quarantined_rows(self) -> int:
        """How many rows go to the quarantine; after `accepted` has been computed."""
        return int(self._seen[_QUARANTINED])

    @property
    def rejected_rows(self) -> tuple[int, int]:
        """How many rows are quarantined or dropped, and how many there are; after `accepted` was computed."""
        seen = self._seen
        return int(seen[_QUARANTINED] + seen[_DROPPED]), int(seen[_INPUT])

    @property
    def stopping_expectations(self) -> tuple[Expectation, ...]:
        """The expectations that stop the flow; after `accepted` has been computed."""
        if self._observation is None:
            return ()
        counts = failed_counts(self._seen, len(self._expectations))
        return tuple(
            one
            for one, failed in zip(self._expectations, counts, strict=True)
            if one.action == "fail" and failed
        )

    def counts(self, accepted: int) -> BatchCounts:
        """The batch's counts; after `accepted` has been computed."""
        if self._observation is None:
            return BatchCounts(input=accepted, accepted=accepted)
        seen = self._seen
        return BatchCounts(
            input=seen[_INPUT],
            accepted=accepted,
            quarantined=seen[_QUARANTINED],
            dropped=seen[_DROPPED],
            expectations=tuple(
                ExpectationCount(
                    name=one.name,
                    dataset=self._dataset,
                    action=one.action,
                    passed=seen[_INPUT] - failed,
                    failed=failed,
                )
                for one, failed in zip(
                    self._expectations, failed_counts(seen, len(self._expectations)), strict=True
                )
            ),
        )

    @property
    def _seen(self) -> Mapping[str, int]:
        """The counts by name; 0 for a name that was not counted."""
        observation = self._observation
        # Spark counts nothing if it knows before the job that there are no rows.
        is_counted = observation is not None and observation._jo.getRow().length() > 0
        return defaultdict(int, observation.get if observation is not None and is_counted else {})

    def _aggregates(self) -> list[Column]:
        stopping = ~self._passes("fail")
        quarantined = ~self._passes("quarantine")
        dropped = ~self._passes("drop")
        counts = {
            "fail": F.count_if(stopping).alias(_STOPPING),
            "quarantine": F.count_if(~stopping & quarantined).alias(_QUARANTINED),
            "drop": F.count_if(~stopping & ~quarantined & dropped).alias(_DROPPED),
        }
        # Each aggregate costs time for each row.
        actions = {one.action for one in self._expectations}
        return [
            F.count(F.lit(1)).alias(_INPUT),
            *(count for action, count in counts.items() if action in actions),
            *count_failed(len(self._expectations)),
        ]

    def _passes(self, *actions: Action) -> Column:
        """Whether a row passes all expectations with these actions."""
        return is_passed(*(n for n, one in enumerate(self._expectations) if one.action in actions))

    def _failing(self, action: Action) -> DataFrame:
        reasons: list[Any] = [
            F.when(~is_passed(n), F.lit(one.name)) for n, one in enumerate(self._expectations)
        ]
        before = ("fail",) if action == "quarantine" else ()
        failing = self._rows.where(self._passes(*before) & ~self._passes(action))
        listed = F.filter(F.array(*reasons), lambda name: name.isNotNull()).cast("array<string>")
        return self._without_checks(failing.withColumn(REASONS, listed))

    def _without_checks(self, rows: DataFrame) -> DataFrame:
        return rows.drop(*check_columns(len(self._expectations)))
