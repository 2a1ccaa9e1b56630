"""The state of a flow (running, stopped or failed), from its lease and the event log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import SecondDriverError
from headrace.model.events import (
    BatchCommitted,
    Event,
    FlowFailed,
    FlowFinished,
    FlowReconnected,
    FlowReconnecting,
    FlowRetrying,
    FlowSkipped,
    FlowStarted,
    ViewFailed,
    ViewRefreshed,
    ViewSkipped,
    ViewUpToDate,
)
from headrace.model.names import TableName
from headrace.observe.events import event_file, list_updates, read_last_events
from headrace.storage.layout import Storage

FlowState = Literal["new", "running", "retrying", "reconnecting", "stopped", "failed", "skipped"]

_UPDATES = 5


@dataclass(frozen=True, kw_only=True)
class LastFailure:
    """The last failure of a flow or a view that no success has followed.

    Args:
        error: The error in the form of `HeadraceError.to_dict`; ``None`` if it was skipped.
        state: The state of the flow after it.
        dataset: The target of the flow, or the view itself.
        is_latest: Whether it happened in the newest update.
        reason: Why it was skipped.
    """

    error: Mapping[str, Any] | None
    state: Literal["failed", "retrying", "reconnecting", "skipped"]
    dataset: TableName
    is_latest: bool = False
    reason: str | None = None


def load_failures(storage: Storage) -> dict[str, LastFailure]:
    """The last failure of each flow or view, by the flow's or the dataset's name; from the last updates.

    An update that was refused because another process runs the flow says nothing about the flow: the
    events of that other process count.
    """
    settled: dict[str, LastFailure | None] = {}
    latest: str | None = None
    for update in reversed(list_updates(storage)[-_UPDATES:]):
        for event in reversed(read_last_events(event_file(storage, update))):
            if (
                isinstance(event, FlowFailed | ViewFailed)
                and event.error.get("code") == SecondDriverError.code
            ):
                continue
            name, failure = _outcome(event, is_latest=latest in (None, update))
            if name is not None:
                latest = latest or update
                settled.setdefault(name, failure)
    return {name: failure for name, failure in settled.items() if failure is not None}


_FAILURES: Mapping[type[Event], Literal["failed", "retrying", "reconnecting"]] = {
    FlowFailed: "failed",
    FlowRetrying: "retrying",
    FlowReconnecting: "reconnecting",
}


def _outcome(event: Event, *, is_latest: bool) -> tuple[str | None, LastFailure | None]:
    match event:
        case FlowFailed() | FlowRetrying() | FlowReconnecting():
            state = _FAILURES[type(event)]
            failure = LastFailure(error=event.error, state=state, dataset=event.dataset, is_latest=is_latest)
            return event.flow, failure
        case FlowStarted() | FlowFinished() | BatchCommitted() | FlowReconnected():
            return event.flow, None
        case ViewFailed():
            failure = LastFailure(
                error=event.error, state="failed", dataset=event.dataset, is_latest=is_latest
            )
            return str(event.dataset), failure
        case FlowSkipped() | ViewSkipped():
            name = event.flow if isinstance(event, FlowSkipped) else str(event.dataset)
            return name, LastFailure(
                error=None,
                state="skipped",
                dataset=event.dataset,
                is_latest=is_latest,
                reason=event.reason,
            )
        case ViewRefreshed() | ViewUpToDate():
            return str(event.dataset), None
        case _:
            return None, None
