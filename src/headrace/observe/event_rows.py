"""The rows of the event log: what happens in an update, in the shape of the event log of Lakeflow."""

from __future__ import annotations

import json
import platform
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import HeadraceError, RefusedError
from headrace.model.declarations import MaterializedView, StreamingTable, TemporaryView
from headrace.model.event_forms import Event, Level, Row, headline
from headrace.model.events import (
    NAMESPACE,
    BatchCommitted,
    BatchStarted,
    Committed,
    FlowFailed,
    FlowIdle,
    FlowReconnected,
    FlowReconnecting,
    FlowRetrying,
    FlowSkipped,
    FlowStarted,
    UpdateStarted,
    ViewEvent,
    ViewFailed,
)
from headrace.plan.stages import Plan, PlannedFlow, PlannedQuery, PlannedRefresh, PlannedView

STABLE = ("create_update", "flow_definition", "dataset_definition", "flow_progress", "update_progress")
"""The event types whose details do not change; the others are ``EVOLVING``."""

_DATASET_TYPES: Mapping[type, str] = {
    StreamingTable: "STREAMING_TABLE",
    MaterializedView: "MATERIALIZED_VIEW",
    TemporaryView: "TEMPORARY_VIEW",
}

_NOT_RUNNING = (
    FlowStarted, FlowFailed, FlowSkipped, FlowRetrying, FlowReconnecting, FlowReconnected, FlowIdle,
)  # fmt: skip
"""Events after which the next batch of a flow gets a row with the status ``RUNNING``."""


def _codes(kind: type[HeadraceError]) -> Iterator[str]:
    for below in kind.__subclasses__():
        yield below.code
        yield from _codes(below)


_REFUSALS = frozenset(_codes(RefusedError))


@dataclass(frozen=True)
class Origin:
    pipeline: str
    storage: str
    update: str | None


@dataclass
class RowBuilder:
    origin: Origin
    plan: Plan | None = None  # the plan of the update, for the definitions of flows and datasets
    _last_us: int = 0
    _number: int = 0
    _running: set[str] = field(default_factory=set)
    _not_indexed: set[str] = field(default_factory=set)

    def rows(self, event: Event) -> list[Row]:
        """The rows of an event; none for events that the log does not keep."""
        before = list(self._before(event))
        own = [self.row(event)] if event.message else []
        return [*before, *own, *self._after(event)]

    def row(self, event: Event) -> Row:
        """The row of an event that the log keeps."""
        level: Level = "INFO" if event.severity == "DEBUG" else event.severity
        row = self._row(event, event.log_type, event.build_details(), event.fill(event.message), level)
        if (error := getattr(event, "error", None)) is not None:
            code, text = error.get("code"), str(error.get("summary"))
            exceptions = [{"class_name": code, "message": text, "stack": []}]
            row["error"] = {"fatal": not error.get("transient", False), "exceptions": exceptions}
        if isinstance(event, Committed):
            row["id"] = event.row_id
        return row

    def _before(self, event: Event) -> Iterator[Row]:
        match event:
            case BatchStarted() | BatchCommitted() if event.flow not in self._running:
                self._running.add(event.flow)
                text = f"Flow '{event.flow}' is running."
                yield self._row(event, "flow_progress", {"status": "RUNNING"}, text, batch_id=None)
            case ViewEvent(technique=str(technique)):
                chosen: dict[str, Any] = {
                    "maintenance_type": f"MAINTENANCE_TYPE_{technique}",
                    "is_chosen": True,
                }
                text = f"Flow '{event.dataset}' was planned as {technique}."
                if (code := getattr(event, "code", None)) is not None:
                    chosen["incrementalization_issues"] = [{"issue_type": code}]
                    text = f"{text[:-1]}: {getattr(event, 'reason', None)}."
                yield self._row(event, "planning_information", {"technique_information": [chosen]}, text)
            case _ if isinstance(event, _NOT_RUNNING):
                self._running.discard(event.flow)

    def _after(self, event: Event) -> Iterator[Row]:
        match event:
            case UpdateStarted():
                yield from self._started(event)
            case FlowFailed() | ViewFailed() if event.error.get("code") in _REFUSALS:
                yield self._row(event, "refusal", {"error": event.error}, headline(event.error), "ERROR")
            case BatchCommitted(without_index=str(reason)) if event.flow not in self._not_indexed:
                self._not_indexed.add(event.flow)
                text = f"Flow '{event.flow}' applies changes without the index of the keys: {reason}."
                yield self._row(
                    event, "planning_information", {"reason": reason}, text, "WARN", batch_id=None
                )

    def _started(self, event: UpdateStarted) -> Iterator[Row]:
        if self.plan is not None:
            for kind, details, origin in find_definitions(self.plan):
                name = origin.get("flow_name") or origin["dataset_name"]
                text = f"{kind.partition('_')[0].capitalize()} '{name}' is defined."
                yield self._row(event, kind, details, text, **origin)
        yield self._row(event, "update_progress", {"state": "RUNNING"}, f"Update {event.update} is running.")
        targets = {} if self.plan is None else {one.flow.name: one.flow.target for one in self.plan.flows}
        queued = [(flow, targets.get(flow)) for flow in event.flows] + [(str(v), v) for v in event.views]
        for flow, dataset in queued:
            origin = {"flow_name": flow, "dataset_name": None if dataset is None else str(dataset)}
            yield self._row(
                event, "flow_progress", {"status": "QUEUED"}, f"Flow '{flow}' is queued.", **origin
            )

    def _row(
        self,
        event: Event,
        kind: str,
        details: Mapping[str, Any],
        text: str,
        level: Level = "INFO",
        **origin: Any,
    ) -> Row:
        """A row about an event. `origin`: fields of the column ``origin`` that replace those of the event."""
        dataset = getattr(event, "dataset", None)
        name = None if dataset is None else str(dataset)
        self._number += 1
        # The rows of one moment keep their order.
        self._last_us = max(self._last_us + 1, int(event.at.timestamp() * 1_000_000))
        writer = self.origin
        return {
            "id": str(uuid.uuid4()),
            "sequence": {
                "data_plane_id": {"instance": writer.update, "seq_no": self._number},
                "control_plane_seq_no": self._last_us,
            },
            "origin": {
                "pipeline_id": str(uuid.uuid5(NAMESPACE, f"{writer.storage}/{writer.pipeline}")),
                "pipeline_name": writer.pipeline,
                # An event that was made from a commit can have no update.
                "update_id": event.update or None if isinstance(event, Committed) else writer.update,
                "host": platform.node(),
                "flow_name": name if isinstance(event, ViewEvent) else getattr(event, "flow", None),
                "dataset_name": name,
                "batch_id": getattr(event, "batch", None),
                **origin,
            },
            "timestamp": event.at,
            "message": text,
            "level": level,
            "maturity_level": "STABLE" if kind in STABLE else "EVOLVING",
            "error": None,
            "details": json.dumps({kind: details}, ensure_ascii=False, default=str),
            "event_type": kind,
        }


def _reads_of(planned: PlannedQuery, plan: Plan) -> dict[str, Any]:
    """What a query reads, also through temporary views."""
    sources = planned.sources if isinstance(planned, PlannedFlow | PlannedView) else ()
    return {
        "input_datasets": [str(read.table) for read in planned.reads],
        "sources": [
            {
                "kind": one.kind,
                "label": one.label(plan.project.root),
                "topics": list(one.to_json().get("topics") or ()),
            }
            for one in sources
            if one.table is None
        ],
        "through": [str(one) for one in planned.through],
        "lineage": planned.lineage and planned.lineage.to_json(),
    }


def find_definitions(plan: Plan) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The definitions of the datasets and flows: event type, details, and more of the origin."""
    views = {one.view.name: one for one in plan.views}
    for dataset in plan.datasets:
        name = str(dataset.name)
        details = {
            "dataset_type": _DATASET_TYPES[type(dataset)],
            "num_flows": len(plan.queries_of(dataset)),
            "comment": dataset.comment,
            "location": {"path": dataset.location.path, "line": dataset.location.line},
            "sink": getattr(getattr(dataset, "sink", None), "format", None),
            **(_reads_of(views[dataset.name], plan) if dataset.name in views else {}),
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
            "flow_type": "APPEND" if is_stream else "MATERIALIZED_VIEW",
            "schema": planned.schema.get("fields"),
            "language": "PYTHON",
            "fingerprint": planned.fingerprint,
            **_reads_of(planned, plan),
        }
        yield "flow_definition", details, {"flow_name": flow.name, "dataset_name": str(flow.target)}


def list_definitions(plan: Plan) -> list[dict[str, Any]]:
    """The definitions of a plan, each with its type and its name."""
    found = find_definitions(plan)
    return [
        {"type": kind, "name": origin.get("flow_name") or origin["dataset_name"], "details": details}
        for kind, details, origin in found
    ]
