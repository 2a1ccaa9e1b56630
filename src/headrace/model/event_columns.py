"""The columns of the event log, with the types of the event log of Lakeflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]
"""A row of the event log, by column."""

_TEXT, _NUMBER = "string", "long"
_FRAME = {"declaring_class": _TEXT, "method_name": _TEXT, "file_name": _TEXT, "line_number": _NUMBER}
_COLUMNS: Mapping[str, Any] = {
    "id": _TEXT,
    "sequence": {"data_plane_id": {"instance": _TEXT, "seq_no": _NUMBER}, "control_plane_seq_no": _NUMBER},
    "origin": {
        "cloud": _TEXT,
        "region": _TEXT,
        "org_id": _NUMBER,
        "pipeline_id": _TEXT,
        "pipeline_name": _TEXT,
        "pipeline_type": _TEXT,
        "cluster_id": _TEXT,
        "update_id": _TEXT,
        "maintenance_id": _TEXT,
        "table_id": _TEXT,
        "dataset_name": _TEXT,
        "sink_name": _TEXT,
        "flow_id": _TEXT,
        "flow_name": _TEXT,
        "batch_id": _NUMBER,
        "request_id": _TEXT,
        "host": _TEXT,
        "materialization_name": _TEXT,
    },
    "timestamp": "timestamp",
    "message": _TEXT,
    "level": _TEXT,
    "maturity_level": _TEXT,
    "error": {"fatal": "boolean", "exceptions": [{"class_name": _TEXT, "message": _TEXT, "stack": [_FRAME]}]},
    "details": _TEXT,
    "event_type": _TEXT,
}


def event_columns() -> dict[str, Any]:
    """The schema of the event log in the JSON form that Spark and Delta share."""
    return _struct(_COLUMNS)


def _struct(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": name, "type": _type(kind), "nullable": True, "metadata": {}}
            for name, kind in fields.items()
        ],
    }


def _type(kind: Any) -> Any:
    match kind:
        case str():
            return kind
        case [element]:
            return {"type": "array", "elementType": _type(element), "containsNull": True}
        case _:
            return _struct(kind)
