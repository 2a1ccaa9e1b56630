"""The definitions of datasets and flows in the event log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_never

from headrace.model.declarations import MaterializedView, StreamingTable, TemporaryView
from headrace.plan.stages import Plan, PlannedFlow, PlannedRefresh


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
