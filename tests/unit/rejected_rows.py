"""A quarantine table written by hand, with the columns that Spark gives it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import deltalake
import pyarrow as pa
from lake import HandFlow

AT = datetime(2026, 11, 22, 8, 0, 0, tzinfo=UTC)

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SOURCE = pa.struct(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
        ("path", pa.string()),
    ]
)
_REASONS = pa.list_(pa.struct([("kind", pa.string()), ("name", pa.string()), ("message", pa.string())]))
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("state", pa.string()),
        ("reasons", _REASONS),
        ("source", _SOURCE),
        ("row", pa.string()),
        ("pipeline", pa.string()),
        ("flow", pa.string()),
        ("checkpoint", pa.string()),
        ("batch", pa.int64()),
        ("update", pa.string()),
        ("query", pa.string()),
        ("ranges", pa.string()),
        ("quarantined_at", pa.timestamp("us", "UTC")),
        ("changed_at", pa.timestamp("us", "UTC")),
        ("replay", pa.string()),
    ]
)


def rejected(flow: HandFlow, offset: int, *, batch: int = 0, **values: Any) -> dict[str, Any]:
    """A rejected row of a batch; its record has this offset."""
    record = f'{{"id": {offset}}}'
    source = {"topic": "sales", "partition": 0, "offset": offset, "value": record.encode()}
    return {
        "id": f"{flow.name}-{offset}",
        "state": "quarantined",
        "reasons": [{"kind": "expectation", "name": "small", "message": None}],
        "source": dict.fromkeys((one.name for one in _SOURCE), None) | source,
        "row": record,
        "pipeline": "shop",
        "flow": flow.name,
        "checkpoint": flow.checkpoint,
        "batch": batch,
        "update": "u1",
        "query": "q1",
        "ranges": "[]",
        "quarantined_at": AT.replace(minute=offset % 60),
        "changed_at": AT,
        "replay": None,
        **values,
    }


def write_rejected(flow: HandFlow, rows: Sequence[dict[str, Any]]) -> None:
    """Append rows to the quarantine table of a flow's dataset."""
    name = flow.table.name
    folder = flow.table.storage.root / "quarantine" / name.schema / name.name
    folder.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    deltalake.write_deltalake(folder, table, mode="append", partition_by=["flow"])
