"""The state of a running update, built from its events; pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from headrace.model import events
from headrace.model.event_forms import Event, FlowEvent, State
from headrace.model.names import TableName

WINDOW = timedelta(seconds=10)
"""The time over which rates and latencies are computed."""


@dataclass(frozen=True)
class Commit:
    at: datetime
    rows: int
    duration_s: float
    latency_s: float | None
    # Whether it has records that were produced before the update started: their age is not a latency.
    is_backlog: bool = False


@dataclass(frozen=True)
class BoardRow:
    name: str
    kind: Literal["flow", "view"]
    started: datetime | None = None
    state: State = "waiting"
    rows: int = 0  # rows that the flow has committed in this update, or that the view holds
    lag: int | None = None
    batch: int | None = None  # the number of the batch under way or last done
    batch_s: float | None = None  # how long the last batch or refresh took
    version: int | None = None
    committed: datetime | None = None
    recent: tuple[Commit, ...] = ()  # the commits of the last seconds
    late: int = 0  # rows that its query left out in this update because they came too late
    quarantined: int = 0
    reconnecting: datetime | None = None  # since when the broker does not answer
    # Why it failed or is being retried, as `HeadraceError.to_dict` gives it.
    error: Mapping[str, Any] | None = None

    @property
    def is_waiting_for_broker(self) -> bool:
        """Whether the flow runs and the broker does not answer."""
        return self.reconnecting is not None and self.state in ("starting", "running", "retrying")

    def rate(self, now: datetime) -> float | None:
        """Rows per second over the last seconds; ``None`` before the first commit."""
        if self.kind == "view" or self.committed is None:
            return None
        commits = [commit for commit in self.recent if commit.at > now - WINDOW]
        if not commits:
            return 0.0
        began = min(commit.at - timedelta(seconds=commit.duration_s) for commit in commits)
        return sum(commit.rows for commit in commits) / max((now - began).total_seconds(), 0.001)

    def latency_p50(self) -> float | None:
        """The median latency of the last commits; ``None`` while a backlog is read."""
        known = [one.latency_s for one in self.recent if one.latency_s is not None and not one.is_backlog]
        return statistics.median(known) if known else None

    def backlog_age(self) -> float | None:
        """The age of the records of the last commit, if it read a backlog."""
        last = self.recent[-1] if self.recent else None
        return last.latency_s if last is not None and last.is_backlog else None


@dataclass(frozen=True)
class Board:
    default_schema: str = "default"  # left out of the names of datasets, as users leave it out
    pipeline: str = ""
    mode: str = ""
    rows: Mapping[str, BoardRow] = field(default_factory=dict)
    outcome: str | None = None
    duration_s: float | None = None

    def name_of(self, dataset: TableName) -> str:
        return dataset.within(self.default_schema)

    def with_event(self, event: Event) -> Board:
        match event:
            case events.UpdateStarted():
                rows = {flow: BoardRow(flow, "flow", event.at) for flow in event.flows}
                rows |= {
                    self.name_of(view): BoardRow(self.name_of(view), "view", event.at) for view in event.views
                }
                return replace(self, pipeline=event.pipeline, mode=event.mode, rows=rows, outcome=None)
            case events.UpdateFinished():
                return replace(self, outcome=event.outcome, duration_s=event.duration_s)
            case events.BatchCommitted():
                return self._with_commit(event)
            case events.LateRowsDropped():
                return self._with(event, late=self._row(event).late + event.rows)
            case events.FlowReconnecting():
                return self._with(event, reconnecting=event.at, error=event.error)
            case events.FlowReconnected():
                return self._with(event, reconnecting=None, error=None)
            case events.FlowFinished():
                return self._with(event, state=event.outcome, rows=event.rows, error=None)
            case events.BatchStarted() | events.BatchReplayed():
                return self._with(event, state=event.state, batch=event.batch, error=None)
            case events.ViewRefreshed():
                return self._with(
                    event,
                    state=event.state,
                    rows=event.rows,
                    batch_s=event.duration_s,
                    version=event.version,
                    committed=event.at,
                    error=None,
                )
            case FlowEvent() | events.ViewEvent() if event.state is not None:
                return self._with(event, state=event.state, error=getattr(event, "error", None))
            case _:
                return self

    def _with_commit(self, event: events.BatchCommitted) -> Board:
        row = self._row(event)
        latency, is_backlog = None, False
        if event.latency_s is not None:
            latency = event.mean_latency_s
            produced = event.at.timestamp() - max(event.latency_s)
            is_backlog = row.started is not None and produced < row.started.timestamp()
        commit = Commit(event.at, event.rows, event.duration_s or 0.0, latency, is_backlog)
        return self._with(
            event,
            state=event.state,
            rows=row.rows + event.rows,
            quarantined=row.quarantined + event.quarantined,
            lag=event.lag if event.lag is not None else row.lag,
            batch=event.batch,
            batch_s=event.duration_s,
            version=event.version,
            committed=event.at,
            reconnecting=None,
            recent=(*(one for one in row.recent if one.at > event.at - WINDOW), commit),
            error=None,
        )

    def _row(self, event: FlowEvent | events.ViewEvent) -> BoardRow:
        if isinstance(event, events.ViewEvent):
            new = BoardRow(self.name_of(event.dataset), "view")
        else:
            new = BoardRow(event.flow, "flow")
        return self.rows.get(new.name, new)

    def _with(self, event: FlowEvent | events.ViewEvent, **changes: Any) -> Board:
        row = self._row(event)
        return replace(self, rows={**self.rows, row.name: replace(row, **changes)})
