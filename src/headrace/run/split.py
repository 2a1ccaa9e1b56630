"""The split of a batch's rows: to the target, to the quarantine, or dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.sinks.target import BatchStamp, SplitRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Split(Protocol):
    """Splits the rows of each batch of a flow."""

    def begin(self, rows: DataFrame, stamp: BatchStamp) -> SplitRows:
        """Split a batch that the flow's target does not hold yet.

        A split that rejects rows holds a target of its own for them. It commits them here, before the flow's
        target commits the batch. After a crash in between the batch comes again with the same stamp, and its
        rejected rows replace the ones before.

        Returns:
            The rows for the flow's target, and the batch's counts. The caller closes it after the commit.
        """
        ...


class AcceptAll:
    """Gives the target every row: the flow's table has no expectations."""

    def begin(self, rows: DataFrame, stamp: BatchStamp) -> SplitRows:
        return SplitRows(accepted=rows)
