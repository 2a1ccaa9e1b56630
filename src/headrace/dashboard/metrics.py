"""The metrics of all pipelines of the storage, counted from the index of events since the dashboard began."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from headrace.dashboard.pipelines import OUTCOMES
from headrace.telemetry.metrics import CONTENT_TYPE, CommittedRows, Metrics

if TYPE_CHECKING:
    from headrace.dashboard.index import EventIndex
    from headrace.dashboard.watcher import Watcher

_LAST = "SELECT ifnull(max(rowid), 0) AS last FROM {}"
_EVENTS = (
    "SELECT rowid, pipeline, type, level, flow, dataset, details FROM events WHERE rowid > ? AND at >= ? "
    "AND (type IN ('retry', 'update_progress', 'operation_progress') OR "
    "(type = 'flow_progress' AND level = 'ERROR')) ORDER BY rowid"
)


@dataclass
class IndexMetrics:
    """Counts what the index gets. Events from before the first scrape are not counted, even if the index
    reads them later."""

    watcher: Watcher
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _read: dict[str, int] = field(default_factory=dict)  # the last row that was counted, by table

    def __post_init__(self) -> None:
        self._metrics = Metrics(lambda: self.watcher.statuses.values())
        self._made = -1  # the index that these rows belong to
        self._since = 0

    @property
    def index(self) -> EventIndex:
        return self.watcher.index

    def answer(self) -> Response:
        self.watcher.touch()
        self.watcher.is_ready.wait(1.0)
        with self._lock:
            self._count()
            return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE})

    def _count(self) -> None:
        if self._made != self.index.made:
            self._made = self.index.made
            self._read = {name: self._last(name) for name in ("batches", "events")}
            self._since = time.time_ns() // 1_000
            return
        for row in self._new("batches", "SELECT rowid, * FROM batches WHERE rowid > ? AND at >= ?"):
            self._metrics.count_commit(_committed(row))
        for row in self._new("events", _EVENTS):
            self._count_event(row)

    def _new(self, table: str, sql: str) -> list[dict[str, Any]]:
        last = self._last(table)
        found = self.index.query(
            f"SELECT * FROM ({sql}) WHERE rowid <= ?", self._read[table], self._since, last
        )
        self._read[table] = last
        return found

    def _last(self, table: str) -> int:
        return int(self.index.query(_LAST.format(table))[0]["last"])

    def _count_event(self, row: dict[str, Any]) -> None:
        pipeline, dataset, flow = row["pipeline"], row["dataset"], row["flow"]
        details = json.loads(row["details"])[row["type"]]
        match row["type"]:
            case "retry" if details.get("state") == "retrying":
                self._metrics.count_restart(pipeline, dataset, flow)
            case "flow_progress" if details.get("status") == "FAILED":
                self._metrics.count_failure(pipeline, dataset, flow)
            case "update_progress" if (outcome := OUTCOMES.get(details.get("state"))) is not None:
                self._metrics.count_update(pipeline, outcome)
            case "operation_progress" if details.get("status") != "STARTED":
                self._metrics.count_operation(pipeline, dataset, details["type"], details["status"])


def _committed(row: dict[str, Any]) -> CommittedRows:
    quality = {}
    if row["quality"] is not None:
        quality = json.loads(row["quality"])["flow_progress"]["data_quality"]
    duration_ms = row["duration_ms"]
    return CommittedRows(
        pipeline=row["pipeline"],
        dataset=row["dataset"],
        flow=row["flow"],
        rows=row["rows"],
        quarantined=row["quarantined"],
        dropped=row["dropped"],
        duration_s=None if duration_ms is None else duration_ms / 1000,
        latency_s=row["latency_s"],
        expectations=quality.get("expectations", ()),
    )
