"""The state of a flow (running, stopped or failed), from its lease and the event log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from headrace.errors import SecondDriverError
from headrace.model.event_columns import Row
from headrace.model.names import TableName
from headrace.observe.event_table import EventTable, sql_time
from headrace.storage.layout import Storage

_logger = logging.getLogger(__name__)

FlowState = Literal["new", "running", "retrying", "reconnecting", "stopped", "failed", "skipped", "unknown"]
"""``unknown``: its lease cannot be read, or its process has shown no heartbeat, and may still run."""

_UPDATES = 5
"""The number of newest updates that are looked at."""


@dataclass(frozen=True, kw_only=True)
class LastFailure:
    """The last failure of a flow or a view that no success has followed.

    Args:
        error: The error in the form of `HeadraceError.to_dict`; ``None`` if it was skipped.
    """

    error: Mapping[str, Any] | None
    state: Literal["failed", "retrying", "reconnecting", "skipped"]
    dataset: TableName  # the target of the flow, or the view itself
    is_latest: bool = False  # whether it happened in the newest update
    reason: str | None = None


def load_failures(storage: Storage) -> dict[str, LastFailure]:
    """The last failure of each flow or view, by the flow's or the dataset's name; from the last updates.

    An update that was refused because another process runs the flow says nothing about the flow: the
    events of that other process count.
    """
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
        _logger.warning("the event log cannot be read: %s", str(error).partition("\n")[0])
        return {}
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
    """What a row of the event log says about its flow; a flow that works has no failure."""

    flow: str
    update: str
    at: datetime
    sequence: int
    failure: LastFailure | None


def _last_outcomes(rows: Iterable[Row]) -> dict[str, _Outcome]:
    outcomes = [one for row in rows if (one := _outcome(row)) is not None]
    return {one.flow: one for one in sorted(outcomes, key=lambda one: one.sequence)}


def _outcome(row: Row) -> _Outcome | None:
    """The outcome that a row shows."""
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


_STATES: Mapping[str, Literal["failed", "retrying", "reconnecting", "skipped"]] = {
    "FAILED": "failed",
    "SKIPPED": "skipped",
    "retrying": "retrying",
    "reconnecting": "reconnecting",
}
