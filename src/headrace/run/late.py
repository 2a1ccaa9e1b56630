"""Rows that a stateful query drops because they come behind its watermark: counted, never silent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.model.events import LateRowsDropped
from headrace.plan.stages import PlannedFlow
from headrace.run.context import UpdateContext
from headrace.state.ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_LOG = logging.getLogger(__name__)


class LateRows:
    """Follows what a query reports of its batches.

    Args:
        planned: The flow.
        context: The update.
        checkpoint: The checkpoint's id.
    """

    def __init__(self, planned: PlannedFlow, context: UpdateContext, checkpoint: str) -> None:
        self._planned = planned
        self._context = context
        self._checkpoint = checkpoint
        self._looked_at = ""
        self._counted = -1
        self.rows = 0

    def look(self, query: StreamingQuery) -> None:
        """Count what has been reported since the last look; costs nothing where no state is kept."""
        if not self._planned.stateful:
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
        flow, context = self._planned.flow, self._context
        self._counted = batch
        ledger = Ledger(context.settings.storage.ledger(flow.target, flow.name), flow.target, flow.name)
        try:
            if not ledger.record_late(self._checkpoint, batch, rows):
                return
        except HeadraceError as error:
            _LOG.warning("late rows of flow %s were not written down: %s", flow.name, error)
        self.rows += rows
        context.emit(
            LateRowsDropped(
                update=context.update, flow=flow.name, dataset=flow.target, batch=batch, rows=rows
            )
        )


def _dropped(report: Any) -> int:
    return sum(int(one.get("numRowsDroppedByWatermark", 0)) for one in report["stateOperators"])
