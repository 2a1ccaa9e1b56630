"""The counts of temporary views' expectations, for each query that reads the views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from headrace.contracts.expectations import read_counts
from headrace.model.counts import BatchCounts
from headrace.model.declarations import ExpectationCount, TemporaryView
from headrace.run.narrowing import RaisingRecord
from headrace.run.split import RefreshSplit, Split
from headrace.sinks.target import BatchStamp, RefreshStamp, SplitRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ViewCountingSplit:
    """A split that adds the counts of temporary views to those of each batch."""

    def __init__(self, split: Split, views: Sequence[TemporaryView], session: SparkSession) -> None:
        self._split = split
        self._views = views
        self._session = session

    def begin(self, rows: DataFrame, stamp: BatchStamp, raising: Sequence[RaisingRecord] = ()) -> SplitRows:
        """Split a batch. Rows of a batch that was narrowed come from another query, which does not count."""
        split = self._split.begin(rows, stamp, raising)
        if raising:
            return split

        def read() -> tuple[ExpectationCount, ...]:
            query: Any = next(one for one in self._session.streams.active if one.name == stamp.flow)
            execution = query._jsq.streamingQuery().lastExecution()
            return read_counts(execution.observedMetrics(), self._views)

        return _with_counts(split, read)


class ViewCountingRefreshSplit:
    """A split that adds the counts of temporary views to those of each refresh.

    Spark keeps the rows meanwhile, as for the expectations of the materialized view itself.
    """

    def __init__(self, split: RefreshSplit, views: Sequence[TemporaryView]) -> None:
        self._split = split
        self._views = views

    def begin(self, rows: DataFrame, stamp: RefreshStamp) -> SplitRows:
        """Split the rows of a refresh."""
        split = self._split.begin(rows, stamp)
        kept = split.keep()
        return _with_counts(
            split, lambda: read_counts(kept._jdf.queryExecution().observedMetrics(), self._views)
        )


def _with_counts(split: SplitRows, read: Callable[[], tuple[ExpectationCount, ...]]) -> SplitRows:
    """Add the counts of temporary views to those of a split, after the rows were computed once."""
    # Spark counts a second computation, such as that of the rejected rows, too.
    once, settle, counts = cache(read), split.settle, split.counts

    def settle_after_counts() -> None:
        once()
        settle()

    def with_views(accepted: int) -> BatchCounts:
        found = counts(accepted)
        return replace(found, expectations=(*found.expectations, *once()))

    split.settle, split.counts = settle_after_counts, with_views
    return split
