"""Reads the event log, without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, get_args

from headrace.errors import TableUnreadableError, first_line
from headrace.model.event_forms import Row
from headrace.model.names import TableName
from headrace.observe.event_table import EventTable, sql_text, sql_time
from headrace.observe.read import fields_to_json
from headrace.storage.layout import Storage
from headrace.storage.log_damage import find_damage
from headrace.storage.table_log import newest_version

EventLevel = Literal["metrics", "info", "warn", "error"]

_LEVELS: tuple[EventLevel, ...] = get_args(EventLevel)
_POLL_S = 0.25
_LATE_US = 3_600_000_000  # how much older an event may be than the newest one when it is written


@dataclass(frozen=True, kw_only=True)
class LoggedEvent:
    id: str
    at: datetime
    type: str  # the type, such as ``flow_progress``
    level: str  # ``METRICS`` for the counts of a batch, else ``INFO``, ``WARN`` or ``ERROR``
    flow: str | None
    dataset: str | None
    update: str | None  # the update's id; `None` for the counts of a batch whose update is not known any more
    batch: int | None  # the number of the batch, if it is about one
    message: str
    details: dict[str, Any]
    sequence: int

    def __repr__(self) -> str:
        return f"<LoggedEvent {self.at:%Y-%m-%d %H:%M:%S} {self.level} {self.message}>"

    def to_json(self) -> dict[str, Any]:
        """The event as JSON values."""
        found = fields_to_json(self)
        del found["sequence"]
        at, kind = self.at.isoformat(timespec="milliseconds"), found.pop("type")
        del found["at"]
        return {"id": found.pop("id"), "at": at, "event_type": kind, **found}


@dataclass(frozen=True, kw_only=True)
class EventFilter:
    pipeline: str
    schema: str
    flow: str | None = None  # the flow, the view or the table that they are about; by default all
    level: EventLevel = "metrics"
    since: datetime | None = None
    after: int | None = None

    def to_sql(self) -> str:
        parts = [f"origin['pipeline_name'] = {sql_text(self.pipeline)}"]
        if self.flow is not None:
            name = sql_text(str(TableName.parse(self.flow, self.schema)))
            parts.append(f"(origin['flow_name'] = {sql_text(self.flow)} OR origin['dataset_name'] = {name})")
        levels = ", ".join(sql_text(one.upper()) for one in _LEVELS[_LEVELS.index(self.level) :])
        parts.append(f"level IN ({levels})")
        if self.since is not None:
            parts.append(f"timestamp >= {sql_time(self.since)}")
        if self.after is not None:
            parts.append(f"sequence['control_plane_seq_no'] > {self.after}")
        return " AND ".join(parts)


def read_events(storage: Storage, chosen: EventFilter, limit: int | None = None) -> tuple[LoggedEvent, ...]:
    """The events of a storage, oldest first; with a limit, the newest ones."""
    query = (
        "SELECT id, sequence['control_plane_seq_no'] AS sequence, timestamp AS at, event_type, level, "
        "message, details, "
        "origin['flow_name'] AS flow, origin['dataset_name'] AS dataset, origin['update_id'] AS update, "
        f"origin['batch_id'] AS batch FROM t WHERE {chosen.to_sql()} ORDER BY sequence DESC"
    )
    if limit is not None:
        query += f" LIMIT {limit}"
    return tuple(_event(row) for row in reversed(query_events(storage, query)))


def query_events(storage: Storage, query: str) -> list[Row]:
    """The rows of a SQL query over the event log ``t``; none if there is no log yet."""
    try:
        return EventTable(storage.events).query(query)
    except Exception as error:  # DataFusion's own errors have no class.
        raise find_damage(storage.events) or TableUnreadableError(
            "the event log cannot be read",
            facts=(f"its table: {storage.events}", first_line(error)),
            remedies=("check the machine:   headrace doctor",),
            params={"path": str(storage.events)},
        ) from error


def follow_events(storage: Storage, chosen: EventFilter, limit: int | None = None) -> Iterator[LoggedEvent]:
    """The events of a storage, and then the new events, without end. Several processes write the log, so an
    event can be written after newer events; an event that is more than an hour late is left out."""
    seen: dict[str, int] = {}
    version, newest = newest_version(storage.events), 0
    for event in read_events(storage, chosen, 1):
        newest = event.sequence
    # Events beyond the limit are not new. Events that are written meanwhile are in the second answer only.
    for event in read_events(storage, replace(chosen, after=newest - _LATE_US)):
        seen[event.id] = event.sequence
    for event in read_events(storage, chosen, limit):
        seen[event.id] = event.sequence
        yield event
    while True:
        time.sleep(_POLL_S)
        if (found := newest_version(storage.events)) == version:
            continue
        version, newest = found, max(seen.values(), default=0)
        seen = {id: sequence for id, sequence in seen.items() if sequence > newest - _LATE_US}
        for event in read_events(storage, replace(chosen, after=newest - _LATE_US)):
            if event.id not in seen:
                seen[event.id] = event.sequence
                yield event


def _event(row: Row) -> LoggedEvent:
    type = row.pop("event_type")
    details = json.loads(row.pop("details"))[type]
    return LoggedEvent(**row, type=type, details=details)
