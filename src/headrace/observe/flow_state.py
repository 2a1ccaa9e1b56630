"""Whether a flow runs, has been stopped, or has failed: from its lease and from the event log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.model.events import (
    BatchCommitted,
    Event,
    FlowFailed,
    FlowFinished,
    FlowRetrying,
    FlowStarted,
    ViewFailed,
    ViewRefreshed,
    ViewUpToDate,
)
from headrace.model.names import TableName
from headrace.observe.events import event_file, list_updates, read_last_events
from headrace.storage.layout import Storage

FlowState = Literal["new", "running", "retrying", "stopped", "failed"]

_UPDATES = 5


@dataclass(frozen=True, kw_only=True)
class LastFailure:
    """What last went wrong with a flow or a view, and was not followed by success.

    Args:
        error: As `HeadraceError.to_dict` gives it.
        final: Whether it was given up.
        dataset: What it feeds, or the view itself.
        is_latest: Whether it happened in the newest update.
    """

    error: Mapping[str, Any]
    final: bool
    dataset: TableName
    is_latest: bool = False


def load_troubles(storage: Storage) -> dict[str, LastFailure]:
    """What troubles each flow or view, by the flow's or the dataset's name; from the last updates."""
    settled: dict[str, LastFailure | None] = {}
    updates = list_updates(storage)[-_UPDATES:]
    for update in reversed(updates):
        for event in reversed(read_last_events(event_file(storage, update))):
            name, trouble = _outcome(event, is_latest=update == updates[-1])
            if name is not None:
                settled.setdefault(name, trouble)
    return {name: trouble for name, trouble in settled.items() if trouble is not None}


def _outcome(event: Event, *, is_latest: bool) -> tuple[str | None, LastFailure | None]:
    match event:
        case FlowFailed() | FlowRetrying():
            final = isinstance(event, FlowFailed)
            trouble = LastFailure(error=event.error, final=final, dataset=event.dataset, is_latest=is_latest)
            return event.flow, trouble
        case FlowStarted() | FlowFinished() | BatchCommitted():
            return event.flow, None
        case ViewFailed():
            trouble = LastFailure(error=event.error, final=True, dataset=event.dataset, is_latest=is_latest)
            return str(event.dataset), trouble
        case ViewRefreshed() | ViewUpToDate():
            return str(event.dataset), None
        case _:
            return None, None
