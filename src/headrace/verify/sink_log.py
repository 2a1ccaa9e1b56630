"""The batches that a sink has recorded beside its rows, in the form of a Delta table's log.

Such a log has no data files: the proof judges the ranges of the batches and their counts, and not the rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.model.names import TableName
from headrace.verify import commits
from headrace.verify.delta_log import Commit, TableLog, TableMetadata
from headrace.verify.stored import StoredPath


def keys_of(options: Mapping[str, str]) -> str:
    """The columns of the key, as a sink's id has them."""
    return ",".join(one.strip() for one in options.get("keys", "").split(",") if one.strip())


def build_log(
    name: TableName, state: Mapping[str, Any], table_id: str, documents: Mapping[int, Any], path: StoredPath
) -> TableLog:
    """A log without files, from the newest state of a sink and what its commits have recorded."""
    first = min(documents, default=state["version"] + 1)
    pipelines = [one["pipeline"] for one in documents.values() if "pipeline" in one]
    properties = {commits.PROPERTY_DATASET: str(name), commits.PROPERTY_KIND: "sink"}
    if pipelines:
        properties[commits.PROPERTY_PIPELINE] = pipelines[-1]
    for flow, checkpoint in state["checkpoints"].items():
        properties[commits.PROPERTY_CHECKPOINT + flow] = checkpoint
    return TableLog(
        path=path,
        version=state["version"],
        metadata=TableMetadata(id=table_id, properties=properties, schema='{"type":"struct","fields":[]}'),
        commits=tuple(_commit(version, documents[version]) for version in sorted(documents)),
        base={},
        base_version=first - 1,
        transactions=state["transactions"],
    )


def _commit(version: int, document: Mapping[str, Any]) -> Commit:
    transactions = {}
    if "batch" in document:
        transactions[document["checkpoint"]] = int(document["batch"])
    if (fences := document.get("opens", {}).get("fences")) is not None:
        transactions[fences] = commits.FENCED
    return Commit(
        version=version,
        timestamp_ms=int(document["timestamp"]),
        operation="WRITE",
        engine="Headrace",
        user_metadata=json.dumps(document) if "headrace" in document else None,
        transactions=transactions,
        added=(),
        removed=(),
        metadata=None,
        written_ms=int(document["timestamp"]),
    )
