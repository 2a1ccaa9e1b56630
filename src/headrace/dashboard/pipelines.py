"""The first page: the pipelines of the storage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.dashboard.index import UPDATE_TYPES, moment
from headrace.dashboard.site import PipelineView, Site
from headrace.dashboard.texts import worst

if TYPE_CHECKING:
    from starlette.requests import Request

_DOTS = 20  # the last updates of a pipeline
_DAY_S, _HOUR_S = 86_400, 3_600
_KILLED = "broken off"  # its process has ended without an event
OUTCOMES = {"COMPLETED": "completed", "FAILED": "failed", "CANCELED": "stopped"}


@dataclass(frozen=True, kw_only=True)
class UpdateLine:
    """One update, from its first and its last event."""

    id: str
    mode: str | None = None
    began: datetime | None = None
    ended: datetime | None = None
    state: str = "running"

    @property
    def duration_s(self) -> float | None:
        if self.began is None or self.ended is None:
            return None
        return (self.ended - self.began).total_seconds()


def load_updates(view: PipelineView, limit: int = _DOTS) -> list[UpdateLine]:
    """The last updates of a pipeline, the newest first."""
    rows = view.query(
        "SELECT upd, type, at, details FROM events INDEXED BY updates WHERE pipeline = ? "
        f"AND {UPDATE_TYPES} ORDER BY seq DESC LIMIT ?",
        view.name,
        4 * limit,  # an update has at most three such events
    )
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        known = found.setdefault(row["upd"], {"state": None, "mode": None, "began": None, "ended": None})
        details = json.loads(row["details"])[row["type"]]
        if row["type"] == "create_update":
            known |= {"mode": str(details.get("mode", "")).lower(), "began": moment(row["at"])}
        elif details.get("state") in OUTCOMES:
            known |= {"state": OUTCOMES[details["state"]], "ended": moment(row["at"])}
    is_running = running(view)
    updates = [
        UpdateLine(**(known | {"id": id, "state": known["state"] or _KILLED})) for id, known in found.items()
    ]
    # Of the updates without an end, at most the newest one still runs; the others were killed.
    if updates and updates[0].state == _KILLED and is_running:
        first = updates[0]
        updates[0] = UpdateLine(id=first.id, mode=first.mode, began=first.began)
    return updates[:limit]


def running(view: PipelineView) -> bool:
    """Whether a process holds a flow or a view of the pipeline."""
    datasets = () if view.status is None else view.status.datasets
    flows = (flow.driver for one in datasets for flow in one.flows)
    views = (one.view.driver for one in datasets if one.view is not None)
    return any(driver is not None for driver in (*flows, *views))


def rejected_today(view: PipelineView) -> dict[str, int]:
    """The rows that were quarantined or dropped in the last 24 hours, by dataset."""
    since = datetime.now(UTC).timestamp() - _DAY_S
    hour = int(since // _HOUR_S) + 1  # the first whole one
    sql = (
        "SELECT dataset, sum(rejected) AS rows FROM (SELECT dataset, rejected FROM hours WHERE pipeline = ? "
        "AND hour >= ? UNION ALL SELECT dataset, quarantined + dropped FROM batches WHERE pipeline = ? "
        "AND at >= ? AND at < ?) GROUP BY 1"
    )
    part = (int(since * 1_000_000), hour * _HOUR_S * 1_000_000)
    return {row["dataset"]: row["rows"] for row in view.query(sql, view.name, hour, view.name, *part)}


def next_care(view: PipelineView) -> tuple[str, str | None] | None:
    """The first table whose maintenance is due, with its command; ``None`` if none is."""
    for name in view.datasets():
        health = view.site.watcher.health.get(name)
        for remark in health.remarks if health is not None else ():
            return f"{view.short(name)}: {remark.text}", remark.command
    return None


def describe(view: PipelineView) -> Mapping[str, Any]:
    """One line of the page."""
    status = view.status
    datasets = () if status is None else status.datasets
    flows = [flow for one in datasets for flow in one.flows if not one.orphaned]
    lags = [flow.lag for flow in flows if flow.lag is not None]
    return {
        "view": view,
        "state": state_of(view),
        "datasets": len(datasets),
        "updates": load_updates(view),
        "changed": max((one.changed for one in datasets if one.changed is not None), default=None),
        "lag": sum(lags) if lags else None,
        "rate": sum(flow.rate or 0 for flow in flows) if running(view) else None,
        "rejected": sum(rejected_today(view).values()),
        "alerts": view.site.watcher.alerts.get(view.name, ()),
        "care": next_care(view),
        "care_known": bool(view.site.watcher.health) or not datasets,
    }


def state_of(view: PipelineView) -> str | None:
    """The worst state of the flows and views; ``None`` while it is not known."""
    if view.status is None:
        return None
    return worst(_states(view)) or "new"


def _states(view: PipelineView) -> Iterator[str]:
    for one in () if view.status is None else view.status.datasets:
        if not one.orphaned:
            yield from one.states
            if one.problem is not None:
                yield "unreadable"


def page(site: Site, request: Request) -> Mapping[str, Any]:
    views = [PipelineView(site, name) for name in site.watcher.pipelines]
    return {"lines": [describe(one) for one in views]}
