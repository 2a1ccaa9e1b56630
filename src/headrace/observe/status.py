"""The status of datasets and flows, as frozen records."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from headrace.errors import SecondDriverError, first_line
from headrace.model.event_forms import Row
from headrace.model.names import TableName
from headrace.observe.event_table import EventTable, sql_time
from headrace.observe.read import fields_to_json
from headrace.state.lease import Driver
from headrace.storage.layout import Storage

ViewState = Literal["new", "up to date", "behind", "failed", "skipped"]
"""``behind``: a table that it reads has changed since its last refresh."""


@dataclass(frozen=True, kw_only=True)
class FlowStatus:
    flow: str
    state: FlowState
    checkpoint: str | None  # the current checkpoint; ``None`` if the flow has none yet
    batch: int | None = None  # the last committed batch, in the table's ``version``
    version: int | None = None
    committed: datetime | None = None
    pending: int | None = None  # A batch that Spark has planned and not committed yet
    lag: int | None = None  # records or files in its sources after the last batch; ``None`` if unknown
    lag_bytes: int | None = None  # the size of those files; ``None`` for a flow that reads no files
    # The seconds that a source is ahead whose records are not all counted; ``None`` if ``lag`` has them all
    behind_s: float | None = None
    rate: float | None = None  # rows per second in the last minutes, if the flow runs
    late: int = 0  # late rows that its query has dropped since its checkpoint was opened
    driver: Driver | None = None
    error: Mapping[str, Any] | None = None  # why it failed or is being retried
    reason: str | None = None  # why the newest run skipped it
    recovering: bool = False  # whether it runs again after a failure, and has not worked since
    orphaned: bool = False  # whether the last run of the whole pipeline found no declaration of it

    def __repr__(self) -> str:
        lag = "unknown" if self.lag is None else f"{self.lag:,}"
        return f"<FlowStatus {self.flow}: {self.state}, lag {lag}>"

    def to_json(self) -> dict[str, Any]:
        found = fields_to_json(self)
        rate, _ = found.pop("rate"), found.pop("recovering")
        return {
            **found,
            "rows_per_s": None if rate is None else round(rate, 1),
            "driver": _driver_to_json(self.driver),
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
        return {**fields_to_json(self), "driver": _driver_to_json(self.driver)}


def _driver_to_json(driver: Driver | None) -> dict[str, Any] | None:
    return None if driver is None else {"pid": driver.pid, "host": driver.host}


@dataclass(frozen=True, kw_only=True)
class DatasetStatus:
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
    # Whether the last run of the whole pipeline found no declaration of it. Its rows are kept.
    orphaned: bool = False

    def __repr__(self) -> str:
        return f"<DatasetStatus {self.dataset}: {', '.join(self.states) or self.problem or self.kind}>"

    @property
    def states(self) -> tuple[str, ...]:
        """The states of its flows, and of its rows if it is a view."""
        return (*(flow.state for flow in self.flows), *(() if self.view is None else (self.view.state,)))

    def freshness_s(self, now: datetime) -> float | None:
        return None if self.changed is None else (now - self.changed).total_seconds()

    def to_json(self, now: datetime) -> dict[str, Any]:
        return {**fields_to_json(self), "freshness_s": self.freshness_s(now)}


_logger = logging.getLogger(__name__)

FlowState = Literal[
    "new", "running", "retrying", "reconnecting",
    "up to date", "behind", "stopped", "failed", "skipped", "unknown",
]  # fmt: skip
"""``up to date``: its lag is 0. ``behind``: records are left. ``stopped``: a signal has ended its last
run. ``unknown``: its lag is not known; or its lease cannot be read, or its process has shown no heartbeat and
may still run."""

_UPDATES = 5  # the number of newest updates that are looked at


@dataclass(frozen=True, kw_only=True)
class LastFailure:
    """The last failure of a flow or a view that no success has followed, or the signal that stopped it."""

    # The error in the form of `HeadraceError.to_dict`; `None` if it was skipped or stopped.
    error: Mapping[str, Any] | None
    state: Literal["failed", "retrying", "reconnecting", "skipped", "stopped"]
    dataset: TableName  # the target of the flow, or the view itself
    is_latest: bool = False  # whether it happened in the newest update
    reason: str | None = None

    @property
    def never_opened(self) -> bool:
        """Whether a flow without a checkpoint is shown because of it."""
        return self.is_latest and self.state != "stopped"


def load_failures(storage: Storage) -> dict[str, LastFailure] | None:
    """The last failure of each flow or view, by the flow's or the dataset's name; from the last updates.
    ``None`` if the event log cannot be read. An
    update that was refused because another process runs the flow says nothing about the flow: the events of
    that other process count."""
    table = EventTable(storage.events)
    try:
        since = table.query(
            "SELECT timestamp AS at FROM t WHERE event_type = 'create_update' "
            f"ORDER BY timestamp DESC LIMIT {_UPDATES}"
        )
        if not since:
            return {}
        rows = table.query(_OUTCOMES.format(since=sql_time(since[-1]["at"])))
        outcomes = _last_outcomes(rows)
        if failing := [one for one in outcomes.values() if one.failure is not None]:
            # A flow or a view that has committed since has recovered.
            rows += table.query(_COMMITTED.format(since=sql_time(min(one.at for one in failing))))
            outcomes = _last_outcomes(rows)
    except Exception as error:  # deltalake has many classes of errors, and DataFusion's have none.
        _logger.warning("the event log cannot be read: %s", first_line(error))
        return None
    latest = max(outcomes.values(), key=lambda one: one.sequence).update if outcomes else None
    return {
        one.flow: replace(one.failure, is_latest=one.update == latest)
        for one in outcomes.values()
        if one.failure is not None
    }


_COLUMNS = (
    "timestamp AS at, origin['flow_name'] AS flow, origin['dataset_name'] AS dataset, "
    "origin['update_id'] AS update, sequence['control_plane_seq_no'] AS seq"
)
_OUTCOMES = (
    f"SELECT {_COLUMNS}, details FROM t WHERE level <> 'METRICS' AND timestamp >= {{since}} "
    "AND event_type IN ('flow_progress', 'retry')"
)
_COMMITTED = (
    "SELECT max(at) AS at, flow, dataset, update, max(seq) AS seq FROM "
    f"(SELECT {_COLUMNS} FROM t WHERE level = 'METRICS' AND timestamp >= {{since}}) GROUP BY 2, 3, 4"
)


@dataclass(frozen=True)
class _Outcome:
    """The outcome of a flow according to a row of the event log; ``None`` as failure if it works."""

    flow: str
    update: str
    at: datetime
    sequence: int
    failure: LastFailure | None


def _last_outcomes(rows: Iterable[Row]) -> dict[str, _Outcome]:
    outcomes = [one for row in rows if (one := _outcome(row)) is not None]
    return {one.flow: one for one in sorted(outcomes, key=lambda one: one.sequence)}


def _outcome(row: Row) -> _Outcome | None:
    details = next(iter(json.loads(row["details"]).values())) if "details" in row else {}
    state, error = details.get("status") or details.get("state", ""), details.get("error")
    if state in ("QUEUED", "RUNNING") or (error or {}).get("code") == SecondDriverError.code:
        return None
    failure = None
    if state in _STATES:
        failure = LastFailure(
            error=error,
            state=_STATES[state],
            dataset=TableName.parse(row["dataset"], ""),
            reason=details.get("reason"),
        )
    return _Outcome(row["flow"], row["update"], row["at"], row["seq"], failure)


_STATES: Mapping[str, Literal["failed", "retrying", "reconnecting", "skipped", "stopped"]] = {
    "FAILED": "failed",
    "SKIPPED": "skipped",
    "STOPPED": "stopped",
    "retrying": "retrying",
    "reconnecting": "reconnecting",
}
