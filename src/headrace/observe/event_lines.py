"""The events of an update as lines of text, one for each fact."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from headrace.model.event_forms import Event, headline
from headrace.model.events import BatchCommitted, FlowFinished
from headrace.model.table_events import DatasetChecked, OperationProgressed
from headrace.model.texts import counted, duration_text, size_text
from headrace.observe.board import Board, BoardRow

QUIET = timedelta(seconds=1)  # one flow gets at most one line about its batches in this time
_LINES_PER_S = 4.0  # all flows together get at most this many lines about their batches


class LineThrottle:
    """Decides which events become lines; a batch without a line adds its rows to the flow's next line."""

    def __init__(self) -> None:
        self._written: dict[str, datetime] = {}
        self._waiting: dict[str, int] = {}

    def lines(self, event: Event, board: Board) -> Iterator[str]:
        if not isinstance(event, BatchCommitted):
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


def _rows_text(event: BatchCommitted, rows: int) -> str:
    if event.changes is None or rows != event.rows:
        return f"+{rows:,} {'rows' if event.changes is None else 'changes'}"
    did = {
        "inserted": event.changes.inserted,
        "updated": event.changes.updated,
        "deleted": event.changes.deleted + event.changes.truncated,
    }
    shown = ", ".join(f"{number:,} {name}" for name, number in did.items() if number)
    return f"+{rows:,} changes ({shown or 'none newer than the table'})"


def commit_line(event: BatchCommitted, rows: int, row: BoardRow) -> str:
    """One committed batch, with the rows that were committed since the last line."""
    facts = [f"{event.flow}  batch {event.batch}", _rows_text(event, rows)]
    if event.quarantined:
        facts.append(f"{event.quarantined:,} quarantined")
    if event.dropped:
        facts.append(f"{event.dropped:,} dropped")
    if event.lag is not None:
        facts.append(f"lag {event.lag:,}")
    facts.append(f"took {duration_text(event.duration_s or 0.0)}")
    if (latency := row.latency_p50()) is not None:
        facts.append(f"latency {duration_text(latency)}")
    elif (age := row.backlog_age()) is not None:
        facts.append(f"records {duration_text(age)} old")
    facts.append(f"v{event.version}")
    return "  ".join(facts)


def event_line(event: Event, board: Board) -> str:
    """One event as a line; empty for an event that is not shown."""
    subject = event.subject if isinstance(event.subject, str) else board.name_of(event.subject)
    match event:
        case DatasetChecked(passed=True):
            return ""
        case OperationProgressed(operation="MAINTENANCE"):
            return _maintenance_line(subject, event)
        case OperationProgressed(operation="KEY_INDEX", outcome={"rows_read": read, "rows": rows}):
            text = f"reads its keys: {read:,} of {rows:,} rows"
        case FlowFinished() if row := board.rows.get(event.flow):
            text = event.fill(event.line)
            text += f", {row.quarantined:,} quarantined" if row.quarantined else ""
        case _:
            text = event.fill(event.line)
    return f"{subject}  {text}" if subject and text else text


def _maintenance_line(name: str, event: OperationProgressed) -> str:
    """The line for a maintenance of a table in a run."""
    if role := event.outcome.get("role"):
        name = f"{name} ({role})"
    if event.error is not None:
        did = {"compaction": "compacted", "vacuum": "vacuumed"}.get(event.outcome.get("failed", ""))
        error = event.error
        text = headline(error) if error.get("code") else error.get("summary")
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
