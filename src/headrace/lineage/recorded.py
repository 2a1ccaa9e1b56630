"""Loads the lineage that the newest plan on this machine, or the newest run, has recorded; without a JVM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from headrace.errors import LineageMissingError
from headrace.lineage.graph import Definition, Lineage, Recorded, build_lineage
from headrace.model.project import ProjectSettings
from headrace.observe.event_table import EventTable, query_events, sql_text

_KINDS = "event_type IN ('dataset_definition', 'flow_definition')"
_NEWEST = (
    "SELECT origin['update_id'] AS update, max(timestamp) AS at FROM t WHERE {} GROUP BY 1 ORDER BY 2 DESC "
    "LIMIT 1"
)
_OF_UPDATE = (
    "SELECT event_type AS type, origin['flow_name'] AS flow, origin['dataset_name'] AS dataset, details "
    "FROM t WHERE {} ORDER BY sequence['control_plane_seq_no']"
)


def load_lineage(settings: ProjectSettings, planned: Mapping[str, Any] | None) -> Lineage:
    """The newest lineage of a pipeline. `planned`: the last plan that was kept, if there is one."""
    table = EventTable(settings.storage.events)
    mine = f"{_KINDS} AND origin['pipeline_name'] = {sql_text(settings.name)}"
    newest = query_events(settings.storage, _NEWEST.format(mine), table)
    at = newest[0]["at"] if newest else None
    definitions: list[Definition] = list((planned or {}).get("definitions") or ())
    recorded: Recorded = "plan"
    if definitions and (at is None or datetime.fromisoformat((planned or {})["kept"]) > at):
        at = datetime.fromisoformat((planned or {})["kept"])
    elif newest:
        of_update = f"{mine} AND origin['update_id'] = {sql_text(newest[0]['update'])}"
        rows = query_events(settings.storage, _OF_UPDATE.format(of_update), table)
        recorded, definitions = "run", [_definition(row) for row in rows]
    if at is None or not any("lineage" in one["details"] for one in definitions):
        raise LineageMissingError(
            f"no plan or run of pipeline {settings.name} has recorded the lineage of its columns yet",
            facts=(f"its storage: {settings.storage.root}",),
            remedies=("record it; this writes no table:   headrace plan",),
            params={"pipeline": settings.name},
        )
    return build_lineage(
        definitions,
        pipeline=settings.name,
        schema=settings.database,
        recorded=recorded,
        at=at.isoformat(timespec="seconds"),
    )


def _definition(row: Mapping[str, Any]) -> Definition:
    name = row["flow"] if row["type"] == "flow_definition" else row["dataset"]
    return {"type": row["type"], "name": name, "details": json.loads(row["details"])[row["type"]]}
