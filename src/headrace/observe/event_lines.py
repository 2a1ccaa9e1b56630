"""The events of an update as lines of text, one for each fact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from headrace.model import events
from headrace.model.events import Event
from headrace.model.texts import counted, duration_text, size_text
from headrace.observe.board import Board, BoardRow

QUIET = timedelta(seconds=1)
"""One flow gets at most one line about its batches in this time."""

_LINES_PER_S = 4.0
"""All flows together get at most this many lines about their batches."""


class LineThrottle:
    """Decides which events become lines; a batch without a line adds its rows to the flow's next line."""

    def __init__(self) -> None:
        self._written: dict[str, datetime] = {}
        self._waiting: dict[str, int] = {}

    def lines(self, event: Event, board: Board) -> Iterator[str]:
        """The lines for one event, with the board after it."""
        if not isinstance(event, events.BatchCommitted):
            if line := event_line(event, board):
                yield line
            return
        flow = event.flow
        self._waiting[flow] = self._waiting.get(flow, 0) + event.rows
        last = self._written.get(flow)
        quiet = max(QUIET, timedelta(seconds=len(board.rows) / _LINES_PER_S))
        has_rows = event.rows or event.quarantined
        if not has_rows or (last is not None and event.at - last < quiet):
            return
        self._written[flow] = event.at
        yield commit_line(event, self._waiting.pop(flow), board.rows[flow])


def _rows_text(event: events.BatchCommitted, rows: int) -> str:
    if event.changes is None or rows != event.rows:
        return f"+{rows:,} {'rows' if event.changes is None else 'changes'}"
    did = {
        "inserted": event.changes.inserted,
        "updated": event.changes.updated,
        "deleted": event.changes.deleted + event.changes.truncated,
    }
    shown = ", ".join(f"{number:,} {name}" for name, number in did.items() if number)
    return f"+{rows:,} changes ({shown or 'none newer than the table'})"


def commit_line(event: events.BatchCommitted, rows: int, row: BoardRow) -> str:
    """One committed batch, with the rows that were committed since the last line."""
    facts = [f"{event.flow}  batch {event.batch}", _rows_text(event, rows)]
    if event.quarantined:
        facts.append(f"{event.quarantined:,} quarantined")
    if event.dropped:
        facts.append(f"{event.dropped:,} dropped")
    if event.lag is not None:
        facts.append(f"lag {event.lag:,}")
    facts.append(f"took {duration_text(event.duration_s)}")
    if (latency := row.latency_p50()) is not None:
        facts.append(f"latency {duration_text(latency)}")
    elif (age := row.backlog_age()) is not None:
        facts.append(f"records {duration_text(age)} old")
    facts.append(f"v{event.version}")
    return "  ".join(facts)


def event_line(event: Event, board: Board) -> str:
    """One event as a line; empty for an event that is not shown."""
    match event:
        case events.UpdateStarted():
            flows, views = len(event.flows), len(event.views)
            return f"{event.pipeline}  {counted(flows, 'flow')}, {counted(views, 'view')}, {event.mode}"
        case events.FlowRetrying():
            return (
                f"{event.flow}  retrying in {duration_text(event.wait_s)} (attempt {event.attempt}): "
                f"{_error_text(event.error)}"
            )
        case events.FlowReconnecting():
            remedy = next(iter(event.error.get("remedies") or ()), "headrace doctor")
            fact = next(iter(event.error.get("facts") or ()), "")
            return f"{event.flow}  reconnecting: {_error_text(event.error)}; {fact}   help: `{remedy}`"
        case events.FlowReconnected():
            return f"{event.flow}  the broker answers again"
        case events.FlowFailed():
            return f"{event.flow}  failed: {_error_text(event.error)}"
        case events.LateRowsDropped():
            rows = counted(event.rows, "row")
            return f"{event.flow}  batch {event.batch}: dropped {rows} later than the watermark"
        case events.SchemaDrifted(added=True):
            names = ", ".join(event.fields)
            return f"{event.flow}  batch {event.batch}: new columns {names}; the batch is read again"
        case events.SchemaDrifted():
            names = ", ".join(event.fields)
            return f"{event.flow}  batch {event.batch}: records have fields without a column: {names}"
        case events.DatasetChecked(passed=False):
            return f"{board.name_of(event.dataset)}  check `{event.check}` failed: {event.fact}"
        case events.FlowSkipped():
            return f"{event.flow}  skipped: {event.reason}"
        case events.FlowFinished(outcome="up to date"):
            return f"{event.flow}  {event.outcome}"
        case events.FlowFinished():
            rows, batches = counted(event.rows, "row"), counted(event.batches, "batch")
            row = board.rows.get(event.flow)
            more = f", {row.quarantined:,} quarantined" if row is not None and row.quarantined else ""
            return f"{event.flow}  {event.outcome}: {rows} in {batches}{more}"
        case events.BatchReplayed():
            return f"{event.flow}  batch {event.batch} is already in the table; it was not written again"
        case events.ViewRefreshed():
            return (
                f"{board.name_of(event.dataset)}  refreshed: {counted(event.rows, 'row')}  "
                f"took {duration_text(event.duration_s)}  v{event.version}"
            )
        case events.ViewUpToDate():
            return f"{board.name_of(event.dataset)}  up to date"
        case events.ViewSkipped():
            return f"{board.name_of(event.dataset)}  skipped: {event.reason}"
        case events.ViewFailed():
            return f"{board.name_of(event.dataset)}  failed: {_error_text(event.error)}"
        case events.ForeignCommitSeen():
            name, by = board.name_of(event.dataset), f"{event.operation}, {event.engine}"
            undone = f"; {event.remedy}" if event.remedy else ""
            return f"{name}  v{event.version} was committed by another writer: {by}{undone}"
        case events.LookFailed():
            by = "" if event.flow is None else f"{event.flow}  "
            return f"{by}the storage did not answer; looks again in {event.wait_s:.0f} s: {event.what}"
        case events.SnapshotSkipped():
            return f"{event.flow}  skipped the snapshot {event.version}: {event.reason}"
        case events.OperationProgressed(operation="MAINTENANCE"):
            return _maintenance_line(board.name_of(event.dataset), event)
        case events.OperationProgressed(operation="KEY_INDEX", outcome={"rows_read": read, "rows": rows}):
            return f"{board.name_of(event.dataset)}  reads its keys: {read:,} of {rows:,} rows"
        case events.UpdateFinished():
            return f"{event.outcome} in {duration_text(event.duration_s)}"
        case _:
            return ""


def _maintenance_line(name: str, event: events.OperationProgressed) -> str:
    """What the care of a table has done in a run."""
    if role := event.outcome.get("role"):
        name = f"{name} ({role})"
    if event.error is not None:
        did = {"compaction": "compacted", "vacuum": "vacuumed"}.get(event.outcome.get("failed", ""))
        error = event.error
        text = _error_text(error) if error.get("code") else error.get("summary")
        return f"{name}  not {did or 'maintained'}: {text}"
    if (done := event.outcome.get("compacted")) is not None:
        files, size, took = done["files"], done["bytes"], duration_text(done["duration_s"])
        before = _files_text(files["removed"], size["removed"])
        after = _files_text(files["added"], size["added"])
        return f"{name}  compacted: {before} -> {after}  took {took}"
    if (vacuum := event.outcome.get("vacuumed")) is not None:
        line = f"{name}  vacuumed: {_files_text(vacuum['files'], vacuum['bytes'])} deleted"
        if vacuum.get("held_files"):
            holders = ", ".join(f"{one['kind']} {one['name']}" for one in vacuum["held_by"])
            line += f"; {_files_text(vacuum['held_files'], vacuum['held_bytes'])} kept for {holders}"
        return f"{line}  took {duration_text(event.duration_s or 0.0)}"
    if (log := event.outcome.get("log")) is not None:
        return f"{name}  log cleaned: {counted(log['commits'], 'commit')} before version {log['first']}"
    return ""


def _files_text(number: int, size: int) -> str:
    return f"{counted(number, 'file')} ({size_text(size)})"


def _error_text(error: Mapping[str, Any]) -> str:
    return f"[{error.get('code')}] {error.get('summary')}"
