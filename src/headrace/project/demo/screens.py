"""The demo on a screen: a live board on a terminal, plain lines elsewhere, nothing for machines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.model.events import Event, FlowRetrying, ViewFailed
from headrace.observe.board import Board
from headrace.observe.display import board_table
from headrace.observe.event_lines import LineThrottle, event_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_TITLE = 12
_REFRESHES_PER_S = 4


class LiveScreen:
    """The screen for a terminal: lines scroll, and the board of the flows stays below them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._board = Board()
        self._doing = ""

    def fact(self, title: str, text: str) -> None:
        self._print(f"[bold]{title:<{_TITLE}}[/]  ", text)

    def note(self, text: str) -> None:
        self._print("", text)

    def event(self, event: Event) -> None:
        with self._lock:
            self._board = self._board.with_event(event)
        if isinstance(event, FlowRetrying | ViewFailed):
            self.note(event_line(event, self._board))

    def killed(self) -> None:
        with self._lock:
            self._board = _stopped(self._board)

    def doing(self, text: str) -> None:
        with self._lock:
            self._doing = text

    @contextmanager
    def watching(self) -> Iterator[None]:
        from rich.live import Live
        from rich.spinner import Spinner

        self._spinner = Spinner("line" if self._console.options.ascii_only else "dots")
        live = Live(
            self,
            console=self._console,
            refresh_per_second=_REFRESHES_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with live:
            yield
            self.doing("")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            board, doing = self._board, self._doing
        yield ""
        yield board_table(board, datetime.now(UTC))
        if doing:
            self._spinner.update(text=f" {doing} …")
            yield self._spinner

    def _print(self, head: str, text: str) -> None:
        from rich.markup import escape

        self._console.print(head + escape(text), highlight=False, soft_wrap=True)


class LineScreen:
    """The screen without a terminal: plain lines, one for each fact."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._board = Board()
        self._lines = LineThrottle()

    def fact(self, title: str, text: str) -> None:
        self._print(f"{title:<{_TITLE}}  {text}")

    def note(self, text: str) -> None:
        self._print(text)

    def event(self, event: Event) -> None:
        with self._lock:
            self._board = self._board.with_event(event)
            lines = list(self._lines.lines(event, self._board))
        for line in lines:
            self._print(f"{event.at.astimezone():%H:%M:%S}  {line}")

    def killed(self) -> None:
        with self._lock:
            self._board = _stopped(self._board)

    def doing(self, text: str) -> None:
        self._print(f"{datetime.now().astimezone():%H:%M:%S}  {text} …")

    @contextmanager
    def watching(self) -> Iterator[None]:
        yield

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class SilentScreen:
    """The screen for JSON: it shows nothing."""

    def fact(self, title: str, text: str) -> None:
        return

    def note(self, text: str) -> None:
        return

    def event(self, event: Event) -> None:
        return

    def killed(self) -> None:
        return

    def doing(self, text: str) -> None:
        return

    @contextmanager
    def watching(self) -> Iterator[None]:
        yield


def _stopped(board: Board) -> Board:
    """The board of a process that was killed: all flows are stopped."""
    rows = {name: replace(row, state="stopped", recent=()) for name, row in board.rows.items()}
    return replace(board, rows=rows)
