"""The recorded lineage of a small pipeline: orders of a topic, their sums in a view, and a sink."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from headrace.model.event_forms import Row
from headrace.model.lineage import ColumnLineage, Input, InputColumn

TOPIC = Input(kind="kafka", label="kafka orders", names=("orders",))


def column(name: str, way: Any, masked: bool = False) -> InputColumn:
    return InputColumn(0, name, way, masked)


DATASETS = {"orders": "STREAMING_TABLE", "revenue": "MATERIALIZED_VIEW", "report": "STREAMING_TABLE"}
LINEAGE = {
    "orders": ColumnLineage(
        inputs=(TOPIC,),
        columns={
            "id": (column("value.id", "transformation"),),
            "customer": (column("value.customer", "transformation"),),
            "amount": (column("value.amount", "transformation"),),
            "address": (column("value.address", "identity"),),
        },
    ),
    "revenue": ColumnLineage(
        inputs=(Input(dataset="default.orders"),),
        columns={
            "customer": (column("customer", "identity"),),
            "total": (column("amount", "aggregation"),),
            "city": (column("address.city", "identity"),),
            "n": (),
        },
        rows=(column("customer", "group_by"), column("id", "filter")),
    ),
    "report": ColumnLineage(
        inputs=(Input(dataset="default.revenue"),),
        columns={
            "who": (column("customer", "transformation", True),),
            "value": (column("total", "identity"),),
        },
    ),
}


def definitions() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, kind in DATASETS.items():
        details = {"dataset_type": kind, "sink": "kafka" if name == "report" else None, "expectations": []}
        found.append({"type": "dataset_definition", "name": f"default.{name}", "details": details})
        flow = {
            "output_dataset": f"default.{name}",
            "input_datasets": [one.dataset for one in LINEAGE[name].inputs if one.dataset],
            "sources": [
                {**one.to_json(), "topics": list(one.names)} for one in LINEAGE[name].inputs if one.label
            ],
            "lineage": LINEAGE[name].to_json(),
            "through": ["default.cities"] if name == "revenue" else [],
        }
        found.append({"type": "flow_definition", "name": name, "details": flow})
    view = {"dataset_type": "TEMPORARY_VIEW", "lineage": LINEAGE["orders"].to_json(), "through": []}
    found.append({"type": "dataset_definition", "name": "default.cities", "details": view})
    return found


def rows_of(definitions: Iterable[dict[str, Any]], at: datetime) -> list[Row]:
    """The rows of the event log that an update writes for definitions."""
    rows: list[Row] = []
    for number, one in enumerate(definitions):
        is_flow = one["type"] == "flow_definition"
        origin = {"pipeline_name": "shop", "update_id": "u1", "dataset_name": one["name"]}
        rows.append(
            {
                "id": str(uuid.uuid4()),
                "sequence": {"control_plane_seq_no": number},
                "origin": {**origin, "flow_name": one["name"] if is_flow else None},
                "timestamp": at,
                "message": "defined",
                "event_type": one["type"],
                "level": "INFO",
                "details": json.dumps({one["type"]: one["details"]}),
            }
        )
    return rows
