"""Writes commands that change datasets, beside runs, to the event log."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from headrace.errors import HeadraceError
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.table_events import Operation, OperationProgressed


def new_update() -> str:
    """An id that begins with the time, so that later updates sort behind."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"


@contextmanager
def logged_operation(
    settings: ProjectSettings, update: str, operation: Operation, datasets: Sequence[TableName]
) -> Iterator[dict[str, Any]]:
    """Write the start and the end of the block to the event log, once for each dataset. Yield the details of
    the end, for the block to fill: JSON values."""
    from headrace.observe.event_log import EventLog

    outcome: dict[str, Any] = {}
    events = [
        OperationProgressed(update=update, dataset=name, operation=operation, status="STARTED")
        for name in datasets
    ]
    with EventLog(settings.storage, settings.name, update, redactor=settings.redactor) as log:
        for one in events:
            log(one)
        began = time.monotonic()
        try:
            yield outcome
        except Exception as error:
            shown = error.to_dict() if isinstance(error, HeadraceError) else {"summary": str(error)}
            for one in events:
                log(_ended(one, began, status="FAILED", error=shown))
            raise
        for one in events:
            log(_ended(one, began, status="COMPLETED", outcome=outcome))


def _ended(started: OperationProgressed, began: float, **more: Any) -> OperationProgressed:
    return replace(started, at=datetime.now(UTC), duration_s=time.monotonic() - began, **more)
