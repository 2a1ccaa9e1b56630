"""What the event log holds of a committed batch or refresh; both its event and its commit have it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.model.events import BatchCommitted, BatchWork, ViewRefreshed
from headrace.model.names import TableName

NAMESPACE = uuid.UUID("6f0f3c5e-6d0c-4b53-9d6b-1f6f1f0a7a11")
"""Of the ids that are the same each time."""


@dataclass(frozen=True, kw_only=True)
class BatchFacts:
    """The facts of a committed batch or refresh."""

    dataset: TableName
    flow: str
    key: tuple[str, int] | tuple[str]  # the checkpoint and the number of a batch, or the update of a refresh
    version: int
    rows: int  # rows that were added to the dataset, or change records that were applied to it
    upserted: int | None = None  # rows that change records inserted or updated; ``None`` if rows are appended
    deleted: int | None = None
    quarantined: int = 0
    dropped: int = 0
    expectations: Sequence[Mapping[str, Any]] = ()
    # The records that readers have left out, by reason, as the commit has them.
    bad_records: Sequence[Mapping[str, Any]] = ()
    duration_s: float | None = None  # ``None`` if it is not known any more
    lag: int | None = None
    lag_bytes: int | None = None
    latency_s: tuple[float, float] | None = None
    work: BatchWork | None = None  # what Spark's tasks have used; ``None`` if it is not known

    @classmethod
    def of(cls, event: BatchCommitted | ViewRefreshed) -> BatchFacts:
        """The facts of an event."""
        batch = event if isinstance(event, BatchCommitted) else None
        did = None if batch is None else batch.changes
        return cls(
            dataset=event.dataset,
            flow=str(event.dataset) if batch is None else batch.flow,
            key=(event.update,) if batch is None else (batch.checkpoint, batch.batch),
            version=event.version,
            rows=event.rows,
            upserted=None if did is None else did.inserted + did.updated,
            deleted=None if did is None else did.deleted + did.truncated,
            quarantined=event.quarantined,
            dropped=event.dropped,
            expectations=event.expectations,
            bad_records=() if batch is None else batch.bad_records,
            duration_s=event.duration_s,
            lag=None if batch is None else batch.lag,
            lag_bytes=None if batch is None else batch.lag_bytes,
            latency_s=None if batch is None else batch.latency_s,
            work=event.work,
        )

    @property
    def id(self) -> str:
        """The id of the row. It is the same each time, so that no batch gets a second row."""
        return str(uuid.uuid5(NAMESPACE, "/".join(map(str, (self.dataset, *self.key, self.version)))))

    @property
    def batch(self) -> int | None:
        """The number of the batch; ``None`` for a refresh."""
        return self.key[1] if len(self.key) == 2 else None

    @property
    def rows_text(self) -> str:
        """The counts for a person."""
        parts = [f"{self.rows:,} rows"]
        parts += [f"{self.quarantined:,} quarantined"] if self.quarantined else []
        parts += [f"{self.dropped:,} dropped"] if self.dropped else []
        return ", ".join(parts)

    def details(self, status: str) -> dict[str, Any]:
        """The details of the row."""
        behind_s = None if self.latency_s is None else self.latency_s[1]
        work = self.work
        return {
            "status": status,
            "metrics": {
                "num_output_rows": self.rows,
                "num_upserted_rows": self.upserted,
                "num_deleted_rows": self.deleted,
                "backlog_records": self.lag,
                "backlog_bytes": self.lag_bytes,
                "backlog_seconds": 0.0 if self.lag == 0 else behind_s,
                "executor_time_ms": None if work is None else work.executor_ms,
                "peak_memory_bytes": None if work is None else work.peak_memory_bytes,
                "spilled_bytes": None if work is None else work.spilled_bytes,
                "read_rows": None if work is None else work.read_rows,
                "read_bytes": None if work is None else work.read_bytes,
                "duration_ms": None if self.duration_s is None else round(self.duration_s * 1000),
            },
            "data_quality": {
                "dropped_records": self.dropped,
                "quarantined_records": self.quarantined,
                **({"expectations": [_count(one) for one in self.expectations]} if self.expectations else {}),
                **({"bad_records": list(map(dict, self.bad_records))} if self.bad_records else {}),
            },
            "commit": {"version": self.version},
        }


def _count(one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": one["name"],
        "dataset": one["dataset"],
        "passed_records": one["passed"],
        "failed_records": one["failed"],
        "action": one["action"],
    }
