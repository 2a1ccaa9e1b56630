"""Writes commands that change datasets, beside runs, to the event log."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.table_events import Operation, OperationProgressed
from headrace.storage.guarantee import check_guarantee

if TYPE_CHECKING:
    from headrace.plan.stages import PlannedFlow
    from headrace.run.context import UpdateContext
    from headrace.state.lease import Lease


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


@contextmanager
def held_flows(flows: Iterable[PlannedFlow], context: UpdateContext) -> Iterator[dict[str, Lease]]:
    storage = context.settings.storage
    check_guarantee(storage.root)
    with ExitStack() as held:
        leases = {}
        for flow in (one.flow for one in flows):
            lease = context.heart.acquire(storage.lease(flow.target, flow.name), flow.name, flow.location)
            held.callback(context.heart.release, lease)
            leases[flow.name] = lease
        yield leases


def _ended(started: OperationProgressed, began: float, **more: Any) -> OperationProgressed:
    return replace(started, at=datetime.now(UTC), duration_s=time.monotonic() - began, **more)
