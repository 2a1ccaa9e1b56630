"""The split of a batch's rows by their expectations: to the target, to the quarantine, or dropped.

Every row goes exactly one way. The counts come from the job that writes the accepted rows; the rejected
rows are computed a second time, and only if there are any.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from headrace.contracts.conditions import check_name
from headrace.contracts.rejected import REASONS
from headrace.model.counts import BatchCounts
from headrace.model.expectations import Action, Expectation, ExpectationCount

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

_INPUT, _QUARANTINED, _DROPPED, _STOPPING = "input", "quarantined", "dropped", "stopping"


class RowSplit:
    """The rows of one batch, split.

    Args:
        rows: The rows, with the columns of `with_checks`.
        expectations: The expectations, in the same order.
        dataset: The dataset that declares them.
        is_counted: Whether to count the rows also without expectations.

    Example:
        >>> split = RowSplit(with_checks(rows, expectations), expectations, "orders")  # doctest: +SKIP
        >>> split.accepted.write.save(path)                                            # doctest: +SKIP
        >>> split.counts(accepted=97).quarantined                                      # doctest: +SKIP
        3
    """

    def __init__(
        self,
        rows: DataFrame,
        expectations: Sequence[Expectation],
        dataset: str,
        *,
        is_counted: bool = False,
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
        return 0 if self._observation is None else int(self._observation.get[_STOPPING])

    @property
    def quarantined_rows(self) -> int:
        """How many rows go to the quarantine; after `accepted` has been computed."""
        return 0 if self._observation is None else int(self._observation.get[_QUARANTINED])

    @property
    def rejected_rows(self) -> tuple[int, int]:
        """How many rows are quarantined or dropped, and how many there are; after `accepted` was computed."""
        if self._observation is None:
            return 0, 0
        seen = self._observation.get
        return int(seen[_QUARANTINED] + seen[_DROPPED]), int(seen[_INPUT])

    @property
    def stopping_expectations(self) -> tuple[Expectation, ...]:
        """The expectations that stop the flow; after `accepted` has been computed."""
        if self._observation is None:
            return ()
        seen = self._observation.get
        return tuple(
            one
            for index, one in enumerate(self._expectations)
            if one.action == "fail" and seen[check_name(index)]
        )

    def counts(self, accepted: int) -> BatchCounts:
        """The batch's counts; after `accepted` has been computed.

        Args:
            accepted: How many rows the target's writer has counted.
        """
        if self._observation is None:
            return BatchCounts(input=accepted, accepted=accepted)
        seen = self._observation.get
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
                    passed=seen[_INPUT] - seen[check_name(index)],
                    failed=seen[check_name(index)],
                )
                for index, one in enumerate(self._expectations)
            ),
        )

    def _aggregates(self) -> list[Column]:
        from pyspark.sql import functions as F

        stopping = ~self._passes("fail")
        quarantined = ~self._passes("quarantine")
        dropped = ~self._passes("drop")
        return [
            F.count(F.lit(1)).alias(_INPUT),
            F.count_if(stopping).alias(_STOPPING),
            F.count_if(~stopping & quarantined).alias(_QUARANTINED),
            F.count_if(~stopping & ~quarantined & dropped).alias(_DROPPED),
            *(F.count_if(~F.col(check_name(n))).alias(check_name(n)) for n in range(len(self._expectations))),
        ]

    def _passes(self, *actions: Action) -> Column:
        """Whether a row passes all expectations with these actions."""
        from pyspark.sql import functions as F

        checks = [F.col(check_name(n)) for n, one in enumerate(self._expectations) if one.action in actions]
        return reduce(and_, checks, F.lit(True))

    def _failing(self, action: Action) -> DataFrame:
        from pyspark.sql import functions as F

        reasons: list[Any] = [
            F.when(~F.col(check_name(n)), F.lit(one.name)) for n, one in enumerate(self._expectations)
        ]
        before = ("fail",) if action == "quarantine" else ()
        failing = self._rows.where(self._passes(*before) & ~self._passes(action))
        listed = F.filter(F.array(*reasons), lambda name: name.isNotNull()).cast("array<string>")
        return self._without_checks(failing.withColumn(REASONS, listed))

    def _without_checks(self, rows: DataFrame) -> DataFrame:
        return rows.drop(*(check_name(index) for index in range(len(self._expectations))))
