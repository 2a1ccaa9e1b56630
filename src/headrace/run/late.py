"""Rows that a stateful query drops because they are older than its watermark: counted and reported."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.state.ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_LOG = logging.getLogger(__name__)


class LateRows:
    """Counts the late rows that a query reports.

    Args:
        stateful: Whether the query is stateful; only a stateful query drops late rows.
    """

    def __init__(
        self, *, stateful: bool, ledger: Ledger, checkpoint: str, report: Callable[[int, int], None]
    ) -> None:
        self._stateful = stateful
        self._ledger = ledger
        self._checkpoint = checkpoint
        self._report = report
        self._looked_at = ""
        self._counted = -1
        self.rows = 0

    def look(self, query: StreamingQuery) -> None:
        """Count the late rows that Spark has reported since the last call."""
        if not self._stateful:
            return
        newest = query.lastProgress
        if newest is None or newest["timestamp"] == self._looked_at:
            return
        self._looked_at = newest["timestamp"]
        for report in query.recentProgress:
            batch = int(report["batchId"])
            if batch > self._counted and (rows := _dropped(report)) > 0:
                self._count(batch, rows)

    def _count(self, batch: int, rows: int) -> None:
        self._counted = batch
        try:
            if not self._ledger.record_late(self._checkpoint, batch, rows):
                return
        except HeadraceError as error:
            _LOG.warning("the late rows of flow %s were not recorded: %s", self._ledger.flow, error)
        self.rows += rows
        self._report(batch, rows)


def _dropped(report: Any) -> int:
    return sum(int(one.get("numRowsDroppedByWatermark", 0)) for one in report["stateOperators"])
