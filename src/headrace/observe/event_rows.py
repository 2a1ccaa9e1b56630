"""The rows of the event log: what happens in an update, in the shape of the event log of Lakeflow."""

from __future__ import annotations

import json
import platform
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, assert_never

from headrace.errors import HeadraceError, RefusedError
from headrace.model import events
from headrace.model.declarations import MaterializedView, StreamingTable, TemporaryView
from headrace.model.event_columns import Row
from headrace.model.events import Event
from headrace.model.names import TableName
from headrace.observe.batch_facts import NAMESPACE, BatchFacts
from headrace.plan.stages import Plan, PlannedFlow, PlannedRefresh

Level = Literal["INFO", "WARN", "ERROR", "METRICS"]

STABLE = ("create_update", "flow_definition", "dataset_definition", "flow_progress", "update_progress")
"""The event types whose details do not change; the others are ``EVOLVING``."""

_FINISHED: Mapping[str, str] = {"drained": "COMPLETED", "up to date": "COMPLETED", "stopped": "STOPPED"}
_UPDATE_STATES: Mapping[str, str] = {"completed": "COMPLETED", "failed": "FAILED", "stopped": "CANCELED"}


def _codes(kind: type[HeadraceError]) -> Iterator[str]:
    for below in kind.__subclasses__():
        yield below.code
        yield from _codes(below)


_REFUSALS = frozenset(_codes(RefusedError))


@dataclass(frozen=True)
class Origin:
    """What writes events."""

    pipeline: str
    storage: str
    update: str | None

    def to_row(self, **more: Any) -> Row:
        """The column ``origin`` of a row."""
        return {
            "pipeline_id": str(uuid.uuid5(NAMESPACE, f"{self.storage}/{self.pipeline}")),
            "pipeline_name": self.pipeline,
            "update_id": self.update,
            "host": platform.node(),
            **more,
        }


@dataclass
class RowBuilder:
    """Builds the rows of one update from its events."""

    origin: Origin
    plan: Plan | None = None  # the plan of the update, for the definitions of flows and datasets
    _last_us: int = 0
    _number: int = 0
    _running: set[str] = field(default_factory=set)
    _not_indexed: set[str] = field(default_factory=set)

    def rows(self, event: Event) -> list[Row]:
        """The rows of an event; none for events that the log does not keep."""
        match event:
            case events.UpdateStarted():
                return list(self._started(event))
            case events.UpdateFinished():
                state = _UPDATE_STATES[event.outcome]
                level: Level = "ERROR" if event.outcome == "failed" else "INFO"
                details = {"state": state, "duration_ms": round(event.duration_s * 1000)}
                text = f"Update {event.update} is {state}."
                return [self._row(event.at, "update_progress", details, text, level=level)]
            case events.LateRowsDropped():
                details = {"reason": "later than the watermark", "rows": event.rows, "batch": event.batch}
                text = f"Flow '{event.flow}' dropped {event.rows} rows later than the watermark."
                return [self._flow_row(event, details, text, kind="loss", level="WARN", batch=event.batch)]
            case events.SchemaDrifted():
                done = "became columns" if event.added else "have no column"
                text = f"Fields of the records of '{event.flow}' {done}: {', '.join(event.fields)}."
                details = {
                    "fields": list(event.fields),
                    "added": event.added,
                    "schema": event.number,
                    "example": dict(event.example),
                    "batch": event.batch,
                }
                level = "INFO" if event.added else "WARN"
                return [self._flow_row(event, details, text, kind="drift", level=level, batch=event.batch)]
            case events.LookFailed():
                details = {"look": event.what, "attempt": event.attempt, "wait_s": event.wait_s}
                text = f"The storage did not answer ({event.what}): {_headline(event.error)}"
                origin = {"flow_name": event.flow}
                return [
                    self._row(
                        event.at, "storage", details, text, level="WARN", origin=origin, error=event.error
                    )
                ]
            case events.SnapshotSkipped():
                details = {"version": event.version, "reason": event.reason}
                text = f"Flow '{event.flow}' has skipped the snapshot {event.version}: {event.reason}."
                return [self._flow_row(event, details, text, kind="snapshot", level="WARN")]
            case events.DatasetChecked():
                details = {"check": event.check, "passed": event.passed, "fact": event.fact}
                outcome, level = ("passed", "INFO") if event.passed else ("FAILED", "WARN")
                text = f"Check '{event.check}' of '{event.dataset}' has {outcome}: {event.fact}."
                return [self._flow_row(event, details, text, kind="dataset_check", level=level)]
            case events.ForeignCommitSeen():
                details = {
                    "version": event.version,
                    "operation": event.operation,
                    "engine": event.engine,
                    **({"undone": list(event.undone)} if event.undone else {}),
                }
                text = f"Another writer has committed version {event.version} of '{event.dataset}'."
                text += f" {event.remedy}" if event.remedy else ""
                origin = {"dataset_name": str(event.dataset)}
                return [self._row(event.at, "foreign_commit", details, text, level="WARN", origin=origin)]
            case events.OperationProgressed():
                return [self._operation(event)]
            case events.FlowEvent():
                return self._flow_rows(event)
            case events.ViewEvent():
                return self._view_rows(event)
            case _:
                return []

    def batch_row(self, at: datetime, facts: BatchFacts, update: str | None) -> Row:
        """The row of a committed batch or refresh."""
        status = "COMPLETED" if facts.batch is None else "RUNNING"
        what = "a refresh" if facts.batch is None else f"batch {facts.batch}"
        row = self._row(
            at,
            "flow_progress",
            facts.details(status),
            f"Flow '{facts.flow}' has committed {what} to '{facts.dataset}': {facts.rows_text}.",
            level="METRICS",
            origin={
                "update_id": update,
                "dataset_name": str(facts.dataset),
                "flow_name": facts.flow,
                "batch_id": facts.batch,
            },
        )
        return {**row, "id": facts.id}

    def idle_row(self, at: datetime, flow: str, dataset: TableName) -> Row:
        """The row of a flow that waits for new records."""
        self._running.discard(flow)
        origin = {"flow_name": flow, "dataset_name": str(dataset)}
        return self._row(at, "flow_progress", {"status": "IDLE"}, f"Flow '{flow}' is IDLE.", origin=origin)

    def maintenance_row(self, at: datetime, details: Mapping[str, Any], text: str) -> Row:
        """The row of a maintenance of the event log itself."""
        return self._row(at, "maintenance", details, text)

    def _operation(self, event: events.OperationProgressed) -> Row:
        """The row of a command that has begun or ended."""
        details: Row = {"type": event.operation, "status": event.status, **event.outcome}
        if event.duration_s is not None:
            details["duration_ms"] = round(event.duration_s * 1000)
        if event.error is not None:
            details["error"] = event.error
        verb = "is" if event.status == "STARTED" else "has"
        text = f"{event.operation} of '{event.dataset}' {verb} {event.status}"
        text += "." if event.error is None else f": {_headline(event.error)}"
        return self._row(
            event.at,
            "operation_progress",
            details,
            text,
            level="INFO" if event.error is None else "ERROR",
            origin={"dataset_name": str(event.dataset)},
            error=event.error,
        )

    def _started(self, event: events.UpdateStarted) -> Iterator[Row]:
        mode = event.mode.upper()
        text = f"Update {event.update} of pipeline '{event.pipeline}' was created."
        yield self._row(event.at, "create_update", {"cause": "RUN", "mode": mode}, text)
        if self.plan is not None:
            for kind, details, origin in find_definitions(self.plan):
                name = origin.get("flow_name") or origin["dataset_name"]
                text = f"{kind.partition('_')[0].capitalize()} '{name}' is defined."
                yield self._row(event.at, kind, details, text, origin=origin)
        yield self._row(
            event.at, "update_progress", {"state": "RUNNING"}, f"Update {event.update} is RUNNING."
        )
        targets = {} if self.plan is None else {one.flow.name: one.flow.target for one in self.plan.flows}
        queued = [(flow, targets.get(flow)) for flow in event.flows] + [(str(v), v) for v in event.views]
        for flow, dataset in queued:
            origin = {"flow_name": flow, "dataset_name": None if dataset is None else str(dataset)}
            details = {"status": "QUEUED"}
            yield self._row(event.at, "flow_progress", details, f"Flow '{flow}' is QUEUED.", origin=origin)

    def _flow_rows(self, event: events.FlowEvent) -> list[Row]:
        details: Row
        name = event.flow
        match event:
            case events.FlowStarted():
                self._running.discard(name)
                details = {"status": "STARTING", "checkpoint": event.checkpoint}
                return [self._flow_row(event, details, f"Flow '{name}' is STARTING.")]
            case events.BatchStarted():
                return [] if name in self._running else [self._run(event)]
            case events.BatchReplayed():
                details = {"status": "RUNNING", "replayed": True}
                text = f"Batch {event.batch} of flow '{name}' was in the table already."
                return [self._flow_row(event, details, text, batch=event.batch)]
            case events.BatchCommitted():
                before = [] if name in self._running else [self._run(event)]
                row = self.batch_row(event.at, BatchFacts.of(event), event.update)
                return [*before, row, *self._without_index(event)]
            case events.FlowFinished():
                status = _FINISHED[event.outcome]
                details = {"status": status, "outcome": event.outcome, "batches": event.batches}
                verb = "has" if status == "COMPLETED" else "is"
                return [self._flow_row(event, details, f"Flow '{name}' {verb} {status}.")]
            case _:
                return self._trouble(event)

    def _without_index(self, event: events.BatchCommitted) -> list[Row]:
        """Why a flow applies changes without the index of the keys, once for each flow."""
        reason = event.without_index
        if reason is None or event.flow in self._not_indexed:
            return []
        self._not_indexed.add(event.flow)
        text = f"Flow '{event.flow}' applies changes without the index of the keys: {reason}."
        return [self._flow_row(event, {"reason": reason}, text, kind="planning_information", level="WARN")]

    def _run(self, event: events.BatchStarted | events.BatchCommitted) -> Row:
        self._running.add(event.flow)
        return self._flow_row(event, {"status": "RUNNING"}, f"Flow '{event.flow}' is RUNNING.")

    def _trouble(self, event: events.FlowEvent) -> list[Row]:
        details: Row
        name = event.flow
        self._running.discard(name)
        match event:
            case events.FlowFailed():
                return self._failed(event, name)
            case events.FlowSkipped():
                details = {"status": "SKIPPED", "reason": event.reason}
                text = f"Flow '{name}' is SKIPPED: {event.reason}."
                return [self._flow_row(event, details, text, level="WARN")]
            case events.FlowRetrying():
                details = {
                    "state": "retrying",
                    "attempt": event.attempt,
                    "wait_seconds": event.wait_s,
                    "error": event.error,
                }
                text = f"Flow '{name}' is retried: {_headline(event.error)}"
            case events.FlowReconnecting():
                details = {"state": "reconnecting", "error": event.error}
                text = f"Flow '{name}' waits for a broker: {_headline(event.error)}"
            case events.FlowReconnected():
                details = {"state": "reconnected"}
                return [self._flow_row(event, details, f"Flow '{name}' has a broker again.", kind="retry")]
            case _:
                return []
        return [self._flow_row(event, details, text, kind="retry", level="WARN", error=event.error)]

    def _failed(self, event: events.FlowFailed | events.ViewFailed, flow: str) -> list[Row]:
        origin = {"flow_name": flow, "dataset_name": str(event.dataset)}
        details = {"status": "FAILED", "error": event.error}
        text = f"Flow '{flow}' has FAILED: {_headline(event.error)}"
        found = [
            self._row(
                event.at, "flow_progress", details, text, level="ERROR", origin=origin, error=event.error
            )
        ]
        if event.error.get("code") in _REFUSALS:
            details, text = {"error": event.error}, _headline(event.error)
            found.append(self._row(event.at, "refusal", details, text, level="ERROR", origin=origin))
        return found

    def _view_rows(self, event: events.ViewEvent) -> list[Row]:
        details: Row
        name = str(event.dataset)
        origin = {"flow_name": name, "dataset_name": name}
        level: Level = "INFO"
        technique: str | None = None
        match event:
            case events.ViewRefreshing():
                running = self._row(
                    event.at,
                    "flow_progress",
                    {"status": "RUNNING"},
                    f"Flow '{name}' is RUNNING.",
                    origin=origin,
                )
                return [self._planned(event, "MAINTENANCE_TYPE_COMPLETE_RECOMPUTE", origin), running]
            case events.ViewUpToDate():
                details = {"status": "COMPLETED", "outcome": "up to date"}
                text = f"Flow '{name}' has COMPLETED: it is up to date."
                technique = "MAINTENANCE_TYPE_NO_OP"
            case events.ViewSkipped():
                level, details = "WARN", {"status": "SKIPPED", "reason": event.reason}
                text = f"Flow '{name}' is SKIPPED: {event.reason}."
            case events.ViewFailed():
                return self._failed(event, name)
            case events.ViewRefreshed():
                return [self.batch_row(event.at, BatchFacts.of(event), event.update)]
            case _:
                return []
        planned = [] if technique is None else [self._planned(event, technique, origin)]
        return [*planned, self._row(event.at, "flow_progress", details, text, level=level, origin=origin)]

    def _planned(
        self,
        event: events.ViewRefreshing | events.ViewUpToDate | events.ViewSkipped,
        technique: str,
        origin: Mapping[str, Any],
    ) -> Row:
        """The row that says how a materialized view is brought up to date."""
        details = {"technique_information": [{"maintenance_type": technique, "is_chosen": True}]}
        text = f"Flow '{event.dataset}' was planned as {technique.removeprefix('MAINTENANCE_TYPE_')}."
        return self._row(event.at, "planning_information", details, text, origin=origin)

    def _flow_row(
        self,
        event: Any,
        details: Mapping[str, Any],
        text: str,
        *,
        kind: str = "flow_progress",
        level: Level = "INFO",
        error: Mapping[str, Any] | None = None,
        batch: int | None = None,
    ) -> Row:
        origin = {"flow_name": event.flow, "dataset_name": str(event.dataset), "batch_id": batch}
        return self._row(event.at, kind, details, text, level=level, origin=origin, error=error)

    def _row(
        self,
        at: datetime,
        event_type: str,
        details: Mapping[str, Any],
        text: str,
        *,
        level: Level = "INFO",
        origin: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> Row:
        self._number += 1
        # The rows of one moment keep their order.
        self._last_us = max(self._last_us + 1, int(at.timestamp() * 1_000_000))
        return {
            "id": str(uuid.uuid4()),
            "sequence": {
                "data_plane_id": {"instance": self.origin.update, "seq_no": self._number},
                "control_plane_seq_no": self._last_us,
            },
            "origin": self.origin.to_row(**(origin or {})),
            "timestamp": at,
            "message": text,
            "level": level,
            "maturity_level": "STABLE" if event_type in STABLE else "EVOLVING",
            "error": None if error is None else _error_row(error),
            "details": json.dumps({event_type: details}, ensure_ascii=False, default=str),
            "event_type": event_type,
        }


def _error_row(error: Mapping[str, Any]) -> Row:
    """The column ``error`` of a row."""
    return {
        "fatal": not error.get("transient", False),
        "exceptions": [{"class_name": error.get("code"), "message": str(error.get("summary")), "stack": []}],
    }


def _headline(error: Mapping[str, Any]) -> str:
    return f"[{error.get('code')}] {error.get('summary')}"


def find_definitions(plan: Plan) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The definitions of the datasets and flows: event type, details, and more of the origin."""
    for dataset in plan.datasets:
        name = str(dataset.name)
        details = {
            "dataset_type": _dataset_type(dataset),
            "num_flows": len(plan.queries_of(dataset)),
            "comment": dataset.comment,
            "expectations": [
                {"name": one.name, "constraint": one.text, "action": one.action}
                for one in dataset.expectations
            ],
        }
        yield "dataset_definition", details, {"dataset_name": name}
    flows: list[PlannedFlow | PlannedRefresh] = [*plan.flows, *plan.refreshes]
    for planned in flows:
        flow = planned.flow
        is_stream = isinstance(planned, PlannedFlow)
        details = {
            "output_dataset": str(flow.target),
            "input_datasets": [str(read.table) for read in planned.reads],
            "flow_type": "APPEND" if is_stream else "MATERIALIZED_VIEW",
            "schema": planned.schema.get("fields"),
            "language": "PYTHON",
            "fingerprint": planned.fingerprint,
        }
        yield "flow_definition", details, {"flow_name": flow.name, "dataset_name": str(flow.target)}


def _dataset_type(dataset: StreamingTable | MaterializedView | TemporaryView) -> str:
    match dataset:
        case StreamingTable():
            return "STREAMING_TABLE"
        case MaterializedView():
            return "MATERIALIZED_VIEW"
        case TemporaryView():
            return "TEMPORARY_VIEW"
        case _:
            assert_never(dataset)
