"""Writes the event log of an update, in a thread of its own. It never slows or fails a flow."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.errors import HeadraceError, LogUnreadableError, first_line
from headrace.model.counts import RowChanges
from headrace.model.event_forms import Event, Row
from headrace.model.events import BatchCommitted, BatchReplayed, Committed, FlowIdle, ViewRefreshed
from headrace.model.names import TableName
from headrace.model.secrets import Redactor
from headrace.model.table_events import EventsLost
from headrace.observe.event_rows import Origin, RowBuilder
from headrace.observe.event_table import FOLD_FILES, EventTable, sql_time
from headrace.plan.stages import Plan
from headrace.storage.layout import Storage
from headrace.storage.log_damage import naming_damage
from headrace.storage.table_log import LoggedCommit, newest_commits

_logger = logging.getLogger(__name__)

_APPEND_S = 1.0  # the minimum time between two appends
_REMOTE_APPEND_S = 5.0  # the same in an object store, where each append has a price
_MOST_APPEND_S = 30.0  # the maximum time between two attempts while the storage cannot be written
_IDLE_S = 5.0  # A flow that has begun no batch for this time after its last one is idle
_CLOSE_S = 15.0  # the time that the end of an update waits for the last events
_RETRIES_S, _RETRY_S = 3.0, 0.2
"""How long, and after which pause, the end of an update tries again to write the last events."""
_MOST_WAITING = 10_000
"""The events that wait in memory while the storage cannot be written. The counts of batches beyond them come
from the commits."""


class EventLog:
    """The event log of one update; an emitter that several threads may call."""

    def __init__(
        self,
        storage: Storage,
        pipeline: str,
        update: str,
        plan: Plan | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        self._storage = storage
        self._redactor = redactor or Redactor()
        self._update = update
        self._builder = RowBuilder(Origin(pipeline, str(storage.root), update), plan)
        self._table = EventTable(storage.events)
        self._condition = threading.Condition()
        self._waiting: list[Event] = []
        self._rows: list[Row] = []
        self._lost = 0
        # The ids of rows that were built from commits.
        self._completed: set[str] = set()
        tables = () if plan is None else tuple(plan.schemas)
        # The tables whose commits are compared with the log, and the time from which.
        self._unchecked: dict[TableName, datetime | None] = dict.fromkeys(tables)
        # The tables whose log is damaged, and the time from which they are compared later.
        self._damaged: dict[TableName, datetime] = {}
        self._next_look = 0.0  # when the log of these tables is read again
        self._pauses: dict[str, tuple[TableName, float]] = {}
        self._is_urgent = False
        """Whether an error waits, which a process that is killed would not write."""
        self._is_closing = False
        self._closing_until = 0.0
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="headrace-events", daemon=True)

    def __call__(self, event: Event) -> None:
        with self._condition:
            if len(self._waiting) < _MOST_WAITING:
                self._waiting.append(event)
            elif isinstance(event, BatchCommitted | ViewRefreshed):
                self._unchecked.setdefault(event.dataset, event.at - timedelta(minutes=1))
            else:
                self._lost += 1
            self._is_urgent |= event.severity == "ERROR"
            self._condition.notify()

    def __enter__(self) -> EventLog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._is_closing = True
            self._closing_until = time.monotonic() + _RETRIES_S
            self._condition.notify()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive() or self._waiting or self._rows:
            _logger.warning(
                "the last events of this update are not in the event log; the next run adds the counts of "
                "its batches"
            )

    def _run(self) -> None:
        usual_s = _APPEND_S if self._storage.root.is_local else _REMOTE_APPEND_S
        pause_s, appends = usual_s, 0
        while True:
            with self._condition:
                self._condition.wait_for(
                    lambda: self._waiting or self._rows or self._unchecked or self._is_closing, _IDLE_S
                )
                is_last, self._is_urgent = self._is_closing, False
            began = time.monotonic()
            try:
                appends += self._append()
                if appends >= FOLD_FILES or is_last:
                    appends = 0
                    self._table.fold()
            except Exception as error:
                # A failure of the event log must not stop a flow.
                self._report(error)
                pause_s = min(pause_s * 2, _MOST_APPEND_S)
            else:
                self._report(None)
                pause_s = usual_s
            if is_last:
                if not self._is_failing or began > self._closing_until:
                    return
                time.sleep(_RETRY_S)
                continue
            with self._condition:
                rest_s = pause_s - (time.monotonic() - began)
                self._condition.wait_for(lambda: self._is_closing or self._is_urgent, max(rest_s, 0))

    def _report(self, error: Exception | None) -> None:
        """Warn once when the log cannot be written, and once when it can be written again."""
        if error is not None:
            self._table.close()
            if not self._is_failing:
                text = first_line(error)
                if isinstance(error, HeadraceError):
                    text = ", ".join((error.summary, *error.facts))
                _logger.warning("the event log cannot be written: %s: %s", self._table.path, text)
        elif self._is_failing:
            _logger.warning("the event log is written again: %s", self._table.path)
        self._is_failing = error is not None

    def _append(self) -> bool:
        """Append what waits; false if there is nothing."""
        # Rows that could not be written come first; meanwhile the number of waiting events is limited.
        if not self._rows:
            with self._condition:
                taken, self._waiting = self._waiting, []
                lost, self._lost = self._lost, 0
            self._rows = self._build(taken, lost)
        self._check_commits()
        if not self._rows:
            return False
        self._rows = [self._redactor.data(row) for row in self._rows]
        self._table.append(self._rows)
        self._rows = []
        return True

    def _check_commits(self) -> None:
        """Add the rows of batches that the tables have and the log lacks."""
        with self._condition:
            unchecked, self._unchecked = self._unchecked, {}
        held = {} if self._is_closing or time.monotonic() >= self._next_look else self._damaged
        chosen = {name: at for name, at in (unchecked | self._damaged).items() if name not in held}
        if not chosen:
            return
        try:
            missing, damaged = find_missing(self._storage, self._table, self._builder, chosen)
        except Exception:
            with self._condition:
                self._unchecked = {**self._unchecked, **unchecked}
            raise
        for name in damaged.keys() - self._damaged.keys():
            summary = damaged[name][1].summary
            _logger.warning("the event log may lack batches of %s: %s", name.short, summary)
        if damaged:
            self._next_look = time.monotonic() + _MOST_APPEND_S
        self._damaged = {**held, **{name: first for name, (first, _) in damaged.items()}}
        known = self._completed | {row["id"] for row in self._rows}
        found = [row for row in missing if row["id"] not in known]
        # The events of these batches may still be on their way.
        self._completed |= {row["id"] for row in found}
        self._rows = [*found, *self._rows]

    def _build(self, events: Iterable[Event], lost: int) -> list[Row]:
        """The rows of events, of flows that have become idle, and of the number of lost events."""
        rows: list[Row] = []
        now = time.monotonic()
        for event in events:
            rows += [row for row in self._builder.rows(event) if row["id"] not in self._completed]
            if flow := getattr(event, "flow", None):
                self._pauses.pop(flow, None)
                if isinstance(event, BatchCommitted | BatchReplayed):
                    self._pauses[flow] = (event.dataset, now)
        for flow, (dataset, since) in list(self._pauses.items()):
            if now - since >= _IDLE_S:
                del self._pauses[flow]
                rows += self._builder.rows(FlowIdle(update=self._update, flow=flow, dataset=dataset))
        if lost:
            rows += self._builder.rows(EventsLost(update=self._update, lost_events=lost))
        return rows


_MARGIN = timedelta(minutes=10)
"""Events of several flows of one table may be logged in another order than their commits."""
_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
_MOST = 10_000  # the number of newest commits of a table that are compared with the log


def find_missing(
    storage: Storage, table: EventTable, builder: RowBuilder, since: Mapping[TableName, datetime | None]
) -> tuple[list[Row], dict[TableName, tuple[datetime, LogUnreadableError]]]:
    """The rows of committed batches and refreshes that the event log lacks, in the order of their commits;
    and the tables whose log is damaged, with the time from which they are to be compared.
    `since`: the tables to compare, and the time from which; ``None`` is the last batch in the log."""
    newest: dict[str, datetime] = {}
    if any(at is None for at in since.values()):
        rows = table.query(
            "SELECT origin['dataset_name'] AS dataset, max(timestamp) AS newest FROM t "
            "WHERE level = 'METRICS' GROUP BY 1"
        )
        newest = {row["dataset"]: row["newest"] for row in rows}
    committed: list[Committed] = []
    damaged: dict[TableName, tuple[datetime, LogUnreadableError]] = {}
    for name, at in since.items():
        first = at or newest.get(str(name), _BEGINNING) - _MARGIN
        try:
            with naming_damage(storage.table(name)):
                committed += list(_batches(storage, name, first))
        except LogUnreadableError as error:
            damaged[name] = first, error
    if not committed:
        return [], damaged
    begin = sql_time(min(one.at for one in committed) - _MARGIN)
    logged = table.query(f"SELECT id FROM t WHERE level = 'METRICS' AND timestamp >= {begin}")
    ids = {row["id"] for row in logged}
    found = [one for one in committed if one.row_id not in ids]
    if not found:
        return [], damaged
    updates = _updates(table)
    found.sort(key=lambda one: (one.at, one.version))
    return [builder.row(_with_update(one, updates)) for one in found], damaged


def _batches(storage: Storage, name: TableName, first: datetime) -> Iterator[Committed]:
    """The batches and refreshes that were committed to a table since a time, newest first."""
    for commit in newest_commits(storage.table(name), _MOST):
        if commit.at < first:
            return
        if (event := _event_of(name, commit)) is not None:
            yield event


def _event_of(name: TableName, commit: LoggedCommit) -> Committed | None:
    """The event of a commit, without the facts that only the run had. The update of a batch is not known."""
    metadata = commit.metadata
    if metadata is None or not commit.is_ours or "opens" in metadata or "replay" in metadata:
        return None
    facts: dict[str, Any] = {
        "at": commit.at,
        "dataset": name,
        "version": commit.version,
        "rows": int(metadata.get("accepted", 0)),
        "quarantined": int(metadata.get("quarantined", 0)),
        "dropped": int(metadata.get("dropped", 0)),
        "expectations": metadata.get("expectations", ()),
        "bad_records": metadata.get("bad_records", ()),
    }
    if "view" in metadata:
        increment = metadata.get("increment", {})
        change = {name: value for name, value in increment.items() if name != "strategy"} or None
        strategy = increment.get("strategy", "full")
        return ViewRefreshed(update=str(metadata["update"]), strategy=strategy, change=change, **facts)
    counts = {one.name: int(metadata[one.name]) for one in fields(RowChanges) if one.name in metadata}
    return BatchCommitted(
        update="",
        flow=str(metadata["flow"]),
        batch=int(metadata["batch"]),
        checkpoint=str(metadata["checkpoint"]),
        changes=RowChanges(**counts) if "inserted" in metadata else None,
        **facts,
    )


def _updates(table: EventTable) -> dict[str, list[tuple[datetime, str]]]:
    """The updates of each flow with the time of their beginning, oldest first."""
    rows = table.query(
        "SELECT origin['flow_name'] AS flow, origin['update_id'] AS update, min(timestamp) AS began FROM t "
        "WHERE event_type = 'flow_progress' AND level = 'INFO' GROUP BY 1, 2 ORDER BY 3"
    )
    found: dict[str, list[tuple[datetime, str]]] = {}
    for row in rows:
        found.setdefault(row["flow"], []).append((row["began"], row["update"]))
    return found


def _with_update(event: Committed, updates: Mapping[str, list[tuple[datetime, str]]]) -> Committed:
    """A batch with the update that has committed it, if the log shows it."""
    if not isinstance(event, BatchCommitted):
        return event
    began = (update for began, update in reversed(updates.get(event.flow, [])) if began <= event.at)
    return replace(event, update=next(began, ""))
