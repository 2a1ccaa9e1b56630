"""The events of a pipeline: a list with filters, and one event with its details."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from starlette.exceptions import HTTPException

from headrace.dashboard.index import event_key, moment, placeholders
from headrace.dashboard.sample import allow, without_values
from headrace.dashboard.site import PipelineView, required
from headrace.observe.event_table import query_events, sql_text, sql_time

if TYPE_CHECKING:
    from starlette.requests import Request

_PAGE = 100
_SEARCHED = 20_000  # the newest events among which a text is searched
LEVELS = ("all", "metrics", "info", "warn", "error")
_HIDDEN = ("batch_steps", "dataset_definition", "flow_definition")
"""Types that the list leaves out, unless they are asked for: many, and of little news."""


def listing(view: PipelineView, request: Request) -> Mapping[str, Any]:
    """Events by the filters of the query, the newest first."""
    asked = request.query_params
    found = load_events(view, asked)
    return {
        "events": found[:_PAGE],
        "more": found[_PAGE - 1]["seq"] if len(found) > _PAGE else None,
        "levels": LEVELS,
        "types": _types(view),
    }


def load_events(view: PipelineView, asked: Mapping[str, str]) -> list[dict[str, Any]]:
    """One page of events and one event more, if there are others."""
    parts, values = ["pipeline = ?"], [view.name]
    columns = {"flow": "flow", "dataset": "dataset", "update": "upd", "type": "type", "batch": "batch"}
    for name, column in columns.items():
        if value := asked.get(name):
            parts.append(f"{column} = ?")
            values.append(value)
    level = asked.get("level", "all")
    if level in LEVELS[1:]:
        # `metrics` are the counts of batches alone; the others are levels with those above them.
        least = LEVELS.index(level)
        levels = [one.upper() for one in LEVELS[least : least + 1 if level == "metrics" else None]]
        parts.append(f"level IN ({placeholders(levels)})")
        values += levels
    if not asked.get("type"):
        parts.append(f"type NOT IN ({placeholders(_HIDDEN)})")
        values += _HIDDEN
    if (before := asked.get("before", "")).isdecimal():
        parts.append("seq < ?")
        values.append(before)
    query = "SELECT id, seq, at, type, level, flow, dataset, upd, batch, message FROM events"
    chosen = f"{query} WHERE {' AND '.join(parts)} ORDER BY seq DESC"
    if text := asked.get("text"):
        chosen = f"SELECT * FROM ({chosen} LIMIT {_SEARCHED}) WHERE instr(lower(message), lower(?)) > 0"
        values.append(text)
    return [_shown(row) for row in view.query(f"{chosen} LIMIT {_PAGE + 1}", *values)]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    id = row["id"].hex()
    return {**row, "id": id, "at": moment(row["at"])}


def _types(view: PipelineView) -> list[str]:
    sql = (
        "SELECT DISTINCT type FROM (SELECT type FROM events WHERE pipeline = ? ORDER BY seq DESC LIMIT 5000) "
        "ORDER BY 1"
    )
    return [row["type"] for row in view.query(sql, view.name)]


def page(view: PipelineView, request: Request) -> Mapping[str, Any]:
    """One event, with what the log says of it."""
    event, details = _load(view, request)
    shown = without_values(details)
    return {"event": event, "details": shown, "error": shown.get("error")}


def facts(view: PipelineView, request: Request) -> Mapping[str, Any]:
    """The facts of an error, which can quote rows, because somebody has asked."""
    allow(view)
    error = _load(view, request)[1].get("error")
    found = error.get("facts") if isinstance(error, Mapping) else None
    return {"facts": [str(one) for one in found or ()]}


def _load(view: PipelineView, request: Request) -> tuple[dict[str, Any], dict[str, Any]]:
    """An event with its details."""
    try:
        key = event_key(required(request, "id"))
    except ValueError as error:
        raise HTTPException(404, "The event log has no event with this id.") from error
    found = view.query("SELECT * FROM events WHERE id = ? AND pipeline = ?", key, view.name)
    if not found:
        raise HTTPException(404, "The event log has no event with this id.")
    event = _shown(found[0])
    text = event["details"] or _logged(view, request.query_params["id"], event)
    return event, {} if text is None else json.loads(text).get(event["type"], {})


def _logged(view: PipelineView, id: str, event: Mapping[str, Any]) -> str | None:
    """The details of a batch, which only the event log has."""
    at = sql_time(event["at"])
    sql = f"SELECT details FROM t WHERE timestamp = {at} AND id = {sql_text(str(UUID(id)))}"
    rows = query_events(view.settings.storage, sql)
    return str(rows[0]["details"]) if rows else None
