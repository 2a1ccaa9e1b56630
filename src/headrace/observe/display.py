"""The board of an update on a screen: a table that stays in place, or plain lines elsewhere."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from headrace.model.events import (
    BatchCommitted,
    BatchReplayed,
    Event,
    FlowFailed,
    FlowFinished,
    FlowRetrying,
    ForeignCommitSeen,
    LateRowsDropped,
    UpdateFinished,
    UpdateStarted,
    ViewFailed,
    ViewRefreshed,
    ViewUpToDate,
)
from headrace.observe.board import Board, BoardRow

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

REFRESHES_PER_S = 4
QUIET = timedelta(seconds=1)
"""Plain lines about one flow's batches come at most this often."""

_LINES_PER_S = 4.0
"""And lines about all flows together at most so often."""

_COLUMNS = ("flow", "state", "rows", "rows/s", "lag", "batch", "latency p50", "last commit")
_LEAST_WIDTHS = (0, 0, 40, 76, 52, 86, 98, 64)
"""Characters of a line from which on each column has room."""

_LEFT = ("flow", "state", "last commit")
_BESIDE_ROWS = 4
"""Lines of the screen for the table's head, its last line, and what stands around it."""

_STYLES = {"failed": "bold red", "retrying": "yellow", "running": "green", "fresh": "green"}


class LiveDisplay:
    """The board as a table that stays in place; an emitter that several threads may call.

    Args:
        stream: The terminal.
        default_schema: Left out of the names of datasets.
    """

    def __init__(self, stream: IO[str], default_schema: str = "default") -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._live: Live | None = None
        self.board = Board(default_schema)

    def __call__(self, event: Event) -> None:
        with self._lock:
            self.board = self.board.with_event(event)
        if isinstance(event, FlowRetrying | FlowFailed | ViewFailed | ForeignCommitSeen | BatchReplayed):
            self.note(event_line(event, self.board))

    def note(self, text: str) -> None:
        """A line above the table, which stays."""
        if text and self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)

    def __rich__(self) -> Table:
        with self._lock:
            board = self.board
        size = self._live.console.size if self._live is not None else None
        if size is None:
            return board_table(board, datetime.now(UTC))
        return board_table(board, datetime.now(UTC), width=size.width, height=size.height)

    def __enter__(self) -> LiveDisplay:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(
            self,
            console=Console(file=self._stream, highlight=False),
            refresh_per_second=REFRESHES_PER_S,
        )
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
            self._live = None


class LineDisplay:
    """Plain lines, one for one fact; an emitter that several threads may call.

    Args:
        stream: Where lines go.
        default_schema: Left out of the names of datasets.
    """

    def __init__(self, stream: IO[str], default_schema: str = "default") -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._lines = LineThrottle()
        self.board = Board(default_schema)

    def __call__(self, event: Event) -> None:
        with self._lock:
            self.board = self.board.with_event(event)
            for line in self._lines.lines(event, self.board):
                self._stream.write(f"{event.at.astimezone():%H:%M:%S}  {line}\n")
            self._stream.flush()

    def note(self, text: str) -> None:
        """A line of somebody else's."""
        with self._lock:
            self._stream.write(text + "\n")
            self._stream.flush()

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


class LineThrottle:
    """Decides which events become lines; rows of batches that stay unsaid are said with the next."""

    def __init__(self) -> None:
        self._said: dict[str, datetime] = {}
        self._unsaid: dict[str, int] = {}

    def lines(self, event: Event, board: Board) -> Iterator[str]:
        """The lines for one event, with the board after it."""
        if not isinstance(event, BatchCommitted):
            line = event_line(event, board)
            if line:
                yield line
            return
        flow = event.flow
        self._unsaid[flow] = self._unsaid.get(flow, 0) + event.rows
        last = self._said.get(flow)
        quiet = max(QUIET, timedelta(seconds=len(board.rows) / _LINES_PER_S))
        if event.rows == 0 or (last is not None and event.at - last < quiet):
            return
        self._said[flow] = event.at
        yield commit_line(event, self._unsaid.pop(flow), board.rows[flow])


def commit_line(event: BatchCommitted, rows: int, row: BoardRow) -> str:
    """One committed batch, with the rows that were committed since the last line."""
    facts = [f"{event.flow}  batch {event.batch}", f"+{rows:,} rows"]
    if event.lag is not None:
        facts.append(f"lag {event.lag:,}")
    facts.append(seconds_text(event.duration_s))
    latency = row.latency_p50()
    if latency is not None:
        facts.append(f"latency {seconds_text(latency)}")
    facts.append(f"v{event.version}")
    return "  ".join(facts)


def event_line(event: Event, board: Board) -> str:
    """One event as a line; empty for those that a person need not see."""
    match event:
        case UpdateStarted():
            flows, views = len(event.flows), len(event.views)
            return f"{event.pipeline}  {_count(flows, 'flow')}, {_count(views, 'view')}, {event.mode}"
        case FlowRetrying():
            return (
                f"{event.flow}  retrying in {seconds_text(event.wait_s)} (attempt {event.attempt}): "
                f"{_error_text(event.error)}"
            )
        case FlowFailed():
            return f"{event.flow}  failed: {_error_text(event.error)}"
        case LateRowsDropped():
            rows = _count(event.rows, "row")
            return f"{event.flow}  batch {event.batch}: left out {rows} that came too late"
        case FlowFinished(outcome="up to date" | "skipped"):
            return f"{event.flow}  {event.outcome}"
        case FlowFinished():
            rows, batches = _count(event.rows, "row"), _count(event.batches, "batch")
            return f"{event.flow}  {event.outcome}: {rows} in {batches}"
        case BatchReplayed():
            return f"{event.flow}  batch {event.batch} is in the table already: nothing written twice"
        case ViewRefreshed():
            return (
                f"{board.name_of(event.dataset)}  refreshed: {_count(event.rows, 'row')}  "
                f"{seconds_text(event.duration_s)}  v{event.version}"
            )
        case ViewUpToDate():
            return f"{board.name_of(event.dataset)}  up to date"
        case ViewFailed():
            return f"{board.name_of(event.dataset)}  failed: {_error_text(event.error)}"
        case ForeignCommitSeen():
            name = board.name_of(event.dataset)
            return f"{name}  v{event.version} is another writer's: {event.operation} by {event.engine}"
        case UpdateFinished():
            return f"{event.outcome} in {seconds_text(event.duration_s)}"
        case _:
            return ""


def board_table(board: Board, now: datetime, *, width: int = 120, height: int | None = None) -> Table:
    """The board as a table of `rich`, as much of it as there is room for.

    Args:
        board: The board.
        now: The time, for rates and ages.
        width: Characters of a line; where they are few, the lesser columns are left out.
        height: Lines of the screen; what has no room is counted in the last line.
    """
    from rich.table import Table
    from rich.text import Text

    shown = [column for column, least in zip(_COLUMNS, _LEAST_WIDTHS, strict=True) if width >= least]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 1), header_style="dim")
    for column in shown:
        table.add_column(column, justify="left" if column in _LEFT else "right", no_wrap=True)
    rows = list(board.rows.values())
    room = len(rows) if height is None else max(3, height - _BESIDE_ROWS)
    chosen = rows if len(rows) <= room else _most_urgent(rows, room)
    for row in chosen:
        cells = dict(zip(_COLUMNS, row_cells(row, now), strict=True))
        styles = {"flow": "bold", "state": _STYLES.get(row.state, "")}
        table.add_row(*(Text(cells[column], style=styles.get(column, "")) for column in shown))
    if len(chosen) < len(rows):
        hidden = Counter(row.state for row in rows if row not in chosen)
        said = ", ".join(f"{count} {state}" for state, count in hidden.most_common())
        table.add_row(Text("…", style="dim"), Text(f"and {said}", style="dim"))
    return table


def _most_urgent(rows: Sequence[BoardRow], room: int) -> list[BoardRow]:
    """The rows that a person has to see first, in the order of the board."""
    order = sorted(rows, key=lambda row: (row.state != "failed", row.state != "retrying", -(row.lag or 0)))
    first = {row.name for row in order[:room]}
    return [row for row in rows if row.name in first]


def row_cells(row: BoardRow, now: datetime) -> tuple[str, ...]:
    """One row's cells as text: flow, state, rows, rows/s, lag, batch, latency, last commit."""
    none = "–"  # noqa: RUF001
    rate, latency = row.rate(now), row.latency_p50()
    last = none
    if row.version is not None and row.committed is not None:
        last = f"v{row.version}  {seconds_text((now - row.committed).total_seconds())} ago"
    is_over = row.state in ("drained", "stopped", "up to date", "failed")
    return (
        row.name,
        row.state,
        (f"{row.rows:,}" if row.committed is not None or row.rows else none)
        + (f" ({row.late:,} late)" if row.late else ""),
        none if rate is None or is_over else f"{rate:,.0f}",
        none if row.lag is None else f"{row.lag:,}",
        none if row.batch_s is None else seconds_text(row.batch_s),
        none if latency is None else seconds_text(latency),
        last,
    )


def seconds_text(seconds: float) -> str:
    """A time as a person reads it: 0.31 s, 12 s, 3 min, 2 h."""
    if seconds < 1:
        return f"{max(seconds, 0):.2f} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _count(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _error_text(error: Any) -> str:
    return f"[{error.get('code')}] {error.get('summary')}"
