"""The board of an update on a screen: a table that stays in place, or plain lines elsewhere."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import IO, TYPE_CHECKING, Any, Literal, Self

from headrace.model.event_forms import Event, headline
from headrace.model.events import BatchCommitted, FlowFinished
from headrace.model.table_events import DatasetChecked, OperationProgressed
from headrace.model.texts import counted, duration_text, files_text
from headrace.observe.board import Board, BoardRow

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

    from headrace.observe.fitting import FittedTable

REFRESHES_PER_S = 4

_COLUMNS: Mapping[str, int] = {
    "flow": 6, "state": 8, "rows written": 12, "lag": 7, "last commit": 16,
    "rows/s": 7, "batch time": 10, "latency p50": 11,
}  # fmt: skip
"""The columns with the width that each reserves, so that columns do not move with the figures. On
a small screen the last ones are left out."""

_FEWEST = 2  # columns of a table
_LEFT = ("flow", "state", "last commit")
_BESIDE_ROWS = 4  # lines of the screen for the table's head, its last line, and the lines around the table
_NOTES_KEPT = 20  # lines that a notebook shows above the table


class Display:
    """Shows the events of one update; an emitter that several threads may call."""

    def __init__(self, default_schema: str) -> None:
        self._lock = threading.Lock()
        self.board = Board(default_schema)

    def __call__(self, event: Event) -> None:
        with self._lock:
            self.board = self.board.with_event(event)
        if event.is_notable and (line := event_line(event, self.board)):
            self.note(line)

    def note(self, text: str) -> None:
        """Show one line of text."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


def open_display(stream: IO[str], default_schema: str) -> Display:
    """The display that suits a stream: a notebook, a terminal, or plain lines."""
    ipython = sys.modules.get("IPython")
    if ipython is not None and hasattr(ipython.get_ipython(), "kernel"):
        return NotebookDisplay(default_schema)
    return (LiveDisplay if stream.isatty() else LineDisplay)(stream, default_schema)


class LiveDisplay(Display):
    """The board as a table that stays in place on a terminal."""

    def __init__(self, stream: IO[str], default_schema: str = "default") -> None:
        super().__init__(default_schema)
        self._stream = stream
        self._live: Live | None = None

    def note(self, text: str) -> None:
        if text and self._live is not None:
            # The terminal wraps a long line: a command in it can still be copied as one.
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __rich__(self) -> Group:
        with self._lock:
            board = self.board
        size = self._live.console.size if self._live is not None else None
        if size is None:
            return board_table(board, datetime.now(UTC))
        return board_table(board, datetime.now(UTC), width=size.width, height=size.height)

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(
            self, console=Console(file=self._stream, highlight=False), refresh_per_second=REFRESHES_PER_S
        )
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)
            self._live = None


class LineDisplay(Display):
    """Plain lines, one for one fact."""

    def __init__(self, stream: IO[str], default_schema: str = "default") -> None:
        super().__init__(default_schema)
        self._stream = stream
        self._lines = LineThrottle()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self.board = self.board.with_event(event)
            for line in self._lines.lines(event, self.board):
                self._stream.write(f"{event.at.astimezone():%H:%M:%S}  {line}\n")
            self._stream.flush()

    def note(self, text: str) -> None:
        with self._lock:
            self._stream.write(text + "\n")
            self._stream.flush()


class NotebookDisplay(Display):
    def __init__(self, default_schema: str = "default") -> None:
        super().__init__(default_schema)
        self._notes: list[str] = []
        self._cell: Any = None
        self._updated = 0.0

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if time.monotonic() - self._updated >= 1 / REFRESHES_PER_S:
            self._update()

    def note(self, text: str) -> None:
        self._notes = [*self._notes, text][-_NOTES_KEPT:]

    def __enter__(self) -> Self:
        from IPython.display import HTML, display

        self._cell = display(HTML(""), display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._update()

    def _update(self) -> None:
        from IPython.display import HTML

        self._updated = time.monotonic()
        self._cell.update(HTML(_html(self.board, self._notes)))


def _html(board: Board, notes: Sequence[str]) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), record=True, width=120, force_jupyter=False)
    for note in notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    console.print(board_table(board, datetime.now(UTC), width=console.width))
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def board_table(board: Board, now: datetime, *, width: int = 120, height: int | None = None) -> Group:
    """The board for a screen of this size: a table, or blocks if it is too wide. If the height has no room
    for the blocks, the last columns are left out; then the last line counts the rows beyond the height."""
    from rich.console import Group
    from rich.text import Text

    rows = list(board.rows.values())
    room = len(rows) if height is None else max(3, height - _BESIDE_ROWS)
    chosen = rows if len(rows) <= room else _most_urgent(rows, room)
    cells = {row.name: row_cells(row, now) for row in chosen}
    shown = _fitted(chosen, cells, list(_COLUMNS))
    if not shown.fits(width) and shown.row_height(width) * len(rows) > room:
        columns = list(_COLUMNS)
        while len(columns) > _FEWEST and not shown.fits(width):
            columns.pop()
            shown = _fitted(chosen, cells, columns)
        if not shown.fits(width):
            chosen = _most_urgent(chosen, max(1, room // shown.row_height(width)))
            shown = _fitted(chosen, cells, list(_COLUMNS))
    if len(chosen) == len(rows):
        return Group(shown)
    hidden = Counter(row.state for row in rows if row not in chosen)
    text = ", ".join(f"{count} {state}" for state, count in hidden.most_common())
    return Group(shown, Text(f"…  and {text}", style="dim"))


def _fitted(
    rows: Sequence[BoardRow], cells: Mapping[str, Mapping[str, str]], columns: Sequence[str]
) -> FittedTable:
    from rich.text import Text

    from headrace.observe.fitting import STATE_STYLES, FittedTable, empty_table

    table = empty_table()
    for column in columns:
        justify: Literal["left", "right"] = "left" if column in _LEFT else "right"
        table.add_column(column, justify=justify, no_wrap=True, min_width=_COLUMNS[column])
    for row in rows:
        state = "reconnecting" if row.is_waiting_for_broker else row.state
        styles = {"flow": "bold", "state": STATE_STYLES.get(state, "")}
        table.add_row(*(Text(cells[row.name][column], style=styles.get(column, "")) for column in columns))
    return FittedTable(table)


def _most_urgent(rows: Sequence[BoardRow], room: int) -> list[BoardRow]:
    """The rows that a person has to see first, in the order of the board."""
    order = sorted(
        rows,
        key=lambda row: (
            row.state != "failed",
            not row.is_waiting_for_broker and row.state != "retrying",
            -(row.lag or 0),
        ),
    )
    first = {row.name for row in order[:room]}
    return [row for row in rows if row.name in first]


def row_cells(row: BoardRow, now: datetime) -> Mapping[str, str]:
    none = "–"  # noqa: RUF001
    state: str = row.state
    if row.is_waiting_for_broker and row.reconnecting is not None:
        state = f"reconnecting {duration_text((now - row.reconnecting).total_seconds())}"
    rate, latency, age = row.rate(now), row.latency_p50(), row.backlog_age()
    is_over = row.state in ("stopped", "up to date", "failed", "skipped")
    last = none
    if row.version is not None and row.committed is not None:
        last = f"v{row.version}  {duration_text((now - row.committed).total_seconds())} ago"
    timing = none if age is None else f"age {duration_text(age)}"
    return {
        "flow": row.name,
        "state": state,
        "rows written": (f"{row.rows:,}" if row.committed is not None or row.rows else none)
        + (f" ({row.late:,} late)" if row.late else "")
        + (f" ({row.quarantined:,} quarantined)" if row.quarantined else ""),
        "rows/s": none if rate is None or is_over else f"{rate:,.0f}",
        "lag": none if row.lag is None else f"{row.lag:,}",
        "batch time": none if row.batch_s is None else duration_text(row.batch_s),
        "latency p50": timing if latency is None else duration_text(latency),
        "last commit": last,
    }


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
    if part := event.outcome.get("part"):
        name = f"{name} ({part})"
    if event.error is not None:
        did = {"compaction": "compacted", "vacuum": "vacuumed"}.get(event.outcome.get("failed", ""))
        error = event.error
        text = headline(error) if error.get("code") else error.get("summary")
        return f"{name}  not {did or 'maintained'}: {text}"
    if (done := event.outcome.get("compacted")) is not None:
        files, size, took = done["files"], done["size_bytes"], duration_text(done["duration_s"])
        before = files_text(files["removed"], size["removed"])
        after = files_text(files["added"], size["added"])
        return f"{name}  compacted: {before} -> {after}  took {took}"
    if (vacuum := event.outcome.get("vacuumed")) is not None:
        line = f"{name}  vacuumed: {files_text(vacuum['files'], vacuum['size_bytes'])} deleted"
        if vacuum.get("held_files"):
            holders = ", ".join(f"{one['kind']} {one['name']}" for one in vacuum["held_by"])
            line += f"; {files_text(vacuum['held_files'], vacuum['held_bytes'])} kept for {holders}"
        return f"{line}  took {duration_text(event.duration_s or 0.0)}"
    if (log := event.outcome.get("log_cleanup")) is not None:
        return f"{name}  log cleaned: {counted(log['commits'], 'commit')} before version {log['first']}"
    return ""
