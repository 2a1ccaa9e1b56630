"""The status of datasets and flows, as frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from headrace.model.names import TableName
from headrace.observe.flow_state import FlowState
from headrace.state.lease import Driver

ViewState = Literal["fresh", "stale", "failed", "new", "skipped"]


@dataclass(frozen=True, kw_only=True)
class FlowStatus:
    """One flow."""

    flow: str
    state: FlowState
    checkpoint: str | None  # the current checkpoint; ``None`` if the flow has none yet
    batch: int | None = None  # the last committed batch, in the table's ``version``
    version: int | None = None
    committed: datetime | None = None
    pending: int | None = None  # A batch that Spark has planned and not committed yet
    lag: int | None = None  # records or files in its sources after the last batch; ``None`` if unknown
    lag_bytes: int | None = None  # the size of those files; ``None`` for a flow that reads no files
    rate: float | None = None  # rows per second in the last minutes, if the flow runs
    late: int = 0  # late rows that its query has dropped since its checkpoint was opened
    driver: Driver | None = None
    error: Mapping[str, Any] | None = None  # why it failed or is being retried
    reason: str | None = None  # why the newest run skipped it
    orphaned: bool = False  # whether the last run of the whole pipeline found no declaration of it

    def to_json(self) -> dict[str, Any]:
        return {
            "flow": self.flow,
            "state": self.state,
            "checkpoint": self.checkpoint,
            "batch": self.batch,
            "version": self.version,
            "committed": None if self.committed is None else self.committed.isoformat(),
            "pending": self.pending,
            "lag": self.lag,
            "lag_bytes": self.lag_bytes,
            "rows_per_s": None if self.rate is None else round(self.rate, 1),
            "late": self.late,
            "driver": None if self.driver is None else {"pid": self.driver.pid, "host": self.driver.host},
            "error": None if self.error is None else dict(self.error),
            "reason": self.reason,
            "orphaned": self.orphaned,
        }


@dataclass(frozen=True, kw_only=True)
class ViewStatus:
    """A materialized view, and whether it is up to date."""

    state: ViewState
    version: int | None = None
    refreshed: datetime | None = None
    inputs: Mapping[str, int] = field(default_factory=dict)
    late: tuple[str, ...] = ()  # inputs whose rows have changed since
    driver: Driver | None = None
    error: Mapping[str, Any] | None = None
    reason: str | None = None  # why the newest run skipped it

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "version": self.version,
            "refreshed": None if self.refreshed is None else self.refreshed.isoformat(),
            "inputs": dict(self.inputs),
            "late": list(self.late),
            "driver": None if self.driver is None else {"pid": self.driver.pid, "host": self.driver.host},
            "error": None if self.error is None else dict(self.error),
            "reason": self.reason,
        }


@dataclass(frozen=True, kw_only=True)
class DatasetStatus:
    """One dataset.

    Args:
        orphaned: Whether the last run of the whole pipeline found no declaration of it. Its rows are kept.
    """

    dataset: TableName
    kind: str
    version: int | None = None
    rows: int | None = None
    files: int | None = None
    size_bytes: int | None = None
    changed: datetime | None = None  # when rows were last added or removed
    flows: tuple[FlowStatus, ...] = ()
    view: ViewStatus | None = None
    problem: str | None = None  # why the table cannot be read
    orphaned: bool = False

    def freshness_s(self, now: datetime) -> float | None:
        """Seconds since rows were last added or removed."""
        return None if self.changed is None else (now - self.changed).total_seconds()

    def to_json(self, now: datetime) -> dict[str, Any]:
        return {
            "dataset": str(self.dataset),
            "kind": self.kind,
            "version": self.version,
            "rows": self.rows,
            "files": self.files,
            "size_bytes": self.size_bytes,
            "changed": None if self.changed is None else self.changed.isoformat(),
            "freshness_s": self.freshness_s(now),
            "flows": [flow.to_json() for flow in self.flows],
            "view": None if self.view is None else self.view.to_json(),
            "problem": self.problem,
            "orphaned": self.orphaned,
        }
