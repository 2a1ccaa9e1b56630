"""The updates of a pipeline: a list, one with its batches and errors, and two side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from headrace.dashboard.code import Excerpt, find_excerpt
from headrace.dashboard.events import load_events
from headrace.dashboard.index import moment, placeholders
from headrace.dashboard.pipelines import UpdateLine, load_updates
from headrace.dashboard.sample import without_values
from headrace.dashboard.site import PipelineView, required

if TYPE_CHECKING:
    from starlette.requests import Request

_LISTED = 60
_BARS = 600  # the newest batches of an update that the chart shows
_ERRORS = 20
_UNFINISHED = ("running", "starting", "queued", "idle")  # states of flows whose process still works
_ENDS = ("COMPLETED", "FAILED", "STOPPED", "SKIPPED", "IDLE", "RUNNING", "STARTING", "QUEUED")


@dataclass(frozen=True, kw_only=True)
class FlowLine:
    """The batches of a flow in an update, as sums."""

    flow: str
    dataset: str | None
    state: str
    batches: int = 0
    rows: int = 0
    rejected: int = 0
    busy_ms: int = 0
    slowest_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class ErrorLine:
    id: str
    at: datetime | None
    flow: str | None
    message: str
    error: Mapping[str, Any]
    excerpt: Excerpt | None


def listing(view: PipelineView, request: Request) -> Mapping[str, Any]:
    updates = load_updates(view, _LISTED)
    sums = {
        row["upd"]: row
        for row in view.query(
            "SELECT upd, sum(rows) AS rows, sum(rejected) AS rejected, sum(batches) AS batches FROM flows "
            f"WHERE upd IN ({placeholders(updates) or 'NULL'}) GROUP BY upd",
            *(one.id for one in updates),
        )
    }
    return {"updates": updates, "sums": sums}


def page(view: PipelineView, request: Request) -> Mapping[str, Any]:
    """One update, or two side by side."""
    id, other = required(request, "id"), request.query_params.get("with")
    chosen = [_load(view, one) for one in (id, *([other] if other else []))]
    return {
        "updates": chosen,
        "update": chosen[0]["line"],
        "events": load_events(view, {"update": id, "level": "info"})[:30],
        "others": [one for one in load_updates(view, _LISTED) if one.id != id],
    }


def _load(view: PipelineView, id: str) -> Mapping[str, Any]:
    line = next((one for one in load_updates(view, 500) if one.id == id), None)
    rows = view.query(
        "SELECT min(at) AS began, max(at) AS ended FROM events WHERE upd = ? AND pipeline = ?", id, view.name
    )
    if rows[0]["began"] is None:
        raise HTTPException(404, "The event log has no update with this id.")
    began, ended = moment(rows[0]["began"]), moment(rows[0]["ended"])
    line = line or UpdateLine(id=id, began=began, ended=ended, state="operation")
    flows = load_flows(view, id)
    if line.state != "running":
        flows = [replace(one, state="broken off") if one.state in _UNFINISHED else one for one in flows]
    return {"line": line, "began": began, "ended": ended, "flows": flows, "errors": load_errors(view, id)}


def load_flows(view: PipelineView, id: str) -> list[FlowLine]:
    """The flows and views of an update with their counts, in the order of their beginning."""
    states: dict[str, tuple[str, str | None]] = {}
    rows = view.query(
        "SELECT flow, dataset, details FROM events WHERE upd = ? AND pipeline = ? AND type = 'flow_progress' "
        "AND (level <> 'METRICS' OR batch IS NULL) ORDER BY seq",
        id,
        view.name,
    )
    for row in rows:
        # The counts of a refresh are the end of a view; the index keeps their details elsewhere.
        text = row["details"]
        status = "COMPLETED" if text is None else json.loads(text)["flow_progress"].get("status")
        if status in _ENDS:
            states[row["flow"]] = status.lower(), row["dataset"]
    sums = view.query("SELECT * FROM flows WHERE upd = ?", id)
    found = {row["flow"]: row for row in sums}
    for name in found.keys() - states.keys():
        states[name] = "completed", found[name]["dataset"]
    return [
        FlowLine(
            flow=name,
            dataset=dataset,
            state="up to date" if state == "completed" else state,
            **{
                key: found.get(name, {}).get(key) or 0
                for key in ("batches", "rows", "rejected", "busy_ms", "slowest_ms")
            },
        )
        for name, (state, dataset) in states.items()
    ]


def load_errors(view: PipelineView, id: str) -> list[ErrorLine]:
    """The newest errors of an update, each once, with their places in the code."""
    rows = view.query(
        "SELECT id, at, type, flow, message, details FROM events WHERE upd = ? AND pipeline = ? "
        "AND level IN ('ERROR', 'WARN') ORDER BY seq DESC LIMIT ?",
        id,
        view.name,
        10 * _ERRORS,
    )
    found: dict[tuple[Any, ...], ErrorLine] = {}
    for row in rows:
        error = json.loads(row["details"])[row["type"]].get("error")
        if isinstance(error, Mapping) and row["type"] != "refusal":
            line = ErrorLine(
                id=row["id"].hex(),
                at=moment(row["at"]),
                flow=row["flow"],
                message=row["message"],
                error=without_values(error),
                excerpt=find_excerpt(view, error.get("location")),
            )
            found.setdefault((row["flow"], error.get("code"), error.get("summary")), line)
    return list(found.values())[:_ERRORS]


def gantt(view: PipelineView, request: Request) -> Mapping[str, Any]:
    """The batches and refreshes of an update as bars, by flow."""
    id = required(request, "id")
    rows = view.query(
        "SELECT at, flow, batch, dataset, version, rows, quarantined + dropped AS rejected, duration_ms "
        "FROM batches WHERE upd = ? AND pipeline = ? ORDER BY at DESC LIMIT ?",
        id,
        view.name,
        _BARS,
    )[::-1]
    lines = load_flows(view, id)
    span = view.query("SELECT min(at) AS began, max(at) AS ended FROM events WHERE upd = ?", id)[0]
    first = min((row["at"] - 1000 * (row["duration_ms"] or 0) for row in rows), default=span["began"] or 0)
    began = first if len(rows) == _BARS else min(first, span["began"] or first)
    bars = [
        {
            "flow": row["flow"],
            "from": (row["at"] - began) / 1000 - (row["duration_ms"] or 0),
            "ms": row["duration_ms"] or 0,
            **{name: row[name] for name in ("batch", "dataset", "version", "rows", "rejected")},
        }
        for row in rows
    ]
    ended = max(span["ended"] or began, began)
    return {
        "flows": [one.flow for one in lines],
        "names": [view.short(one.flow) if one.flow == one.dataset else one.flow for one in lines],
        "states": [one.state for one in lines],
        "bars": bars,
        "ms": (ended - began) / 1000,
        "began": began / 1_000_000,
    }
