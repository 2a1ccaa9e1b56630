"""Showing an update while it happens, and what became of it."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.cli.output import Output, Result, error_lines
from headrace.errors import DriverLostError, HeadraceError, RefreshUnfinishedError
from headrace.model.event_forms import Event
from headrace.model.events import UpdateStarted
from headrace.model.project import ProjectSettings
from headrace.model.texts import duration_text
from headrace.run.stop import StopSignal
from headrace.runtime.processes import handling_signals

if TYPE_CHECKING:
    from headrace.observe.display import Display
    from headrace.run.schedule import RunResult


_NOT_BEGUN = "stopping; the update has not begun"
_ABORTING = "aborting; the next run replays what was not committed"
_NOTES_S = 1.0  # seconds that a command waits at its end for the last lines of the display


@contextmanager
def spark_starting(output: Output, title: str) -> Iterator[None]:
    """Wraps work that starts Spark: downloads jars with their own progress, then shows a title."""
    from headrace.runtime.fetch import ensure_jars

    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # under spark-submit, Spark is there already
        # The jars of the broker are downloaded when a query reads Kafka.
        ensure_jars("spark")
    with output.progress(title):
        yield


class Watch:
    """An emitter that shows an update: live on a terminal, as lines elsewhere, as JSON lines."""

    def __init__(self, output: Output, settings: ProjectSettings, title: str) -> None:
        self._output = output
        self._before: AbstractContextManager[None] = spark_starting(output, title)
        self._stack = ExitStack()
        self._display: Display | None = None
        if not output.is_json:
            from headrace.observe.display import open_display

            self._display = open_display(output.stdout, settings.database)
        self.started = False  # whether the update has begun: from then on it is stopped with care

    def __enter__(self) -> Watch:
        self._stack.enter_context(self._before)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def __call__(self, event: Event) -> None:
        if isinstance(event, UpdateStarted) and event.mode == "continuous":
            # The collector, which runs beside the batches, need not look at all that is loaded by now.
            gc.collect()
            gc.freeze()
        if not self.started:
            # The first event comes from the thread that plans, before any flow has one of its own.
            self.started = True
            self._stack.close()
            if self._display is not None:
                self._stack.enter_context(self._display)
        if self._display is not None:
            self._display(event)
        else:
            from headrace.observe.log import event_to_json

            self._output.line(event_to_json(event))

    def note(self, text: str) -> None:
        """Print a line in addition to the display."""
        if self._output.is_json:
            self._output.line({"note": text})
        elif self._display is not None and self.started:
            self._display.note(text)
        else:
            self._output.note(text)


@contextmanager
def stopping(stop: StopSignal, watch: Watch, *, careful: bool = False) -> Iterator[list[int]]:
    """SIGINT and SIGTERM stop the update after its batches, a second one aborts it. Yields what came. Each
    signal is acknowledged at once. An update that has not begun is aborted by the first one. `careful`:
    whether the first one stops the update also before its first event."""
    received: list[int] = []
    # A handler runs in the middle of anything, and so may not take the display's lock itself.
    notes: SimpleQueue[str | None] = SimpleQueue()
    writer = threading.Thread(target=_write_notes, args=(notes, watch), name="headrace-signals", daemon=True)

    def handle(number: int, otherwise: Callable[[], object]) -> None:
        if received or not (careful or watch.started):
            notes.put(_ABORTING if received else _NOT_BEGUN)
            if received:
                stop.abort()
            received.append(number)
            otherwise()
            return
        received.append(number)
        again = "press Ctrl-C again" if number == signal.SIGINT else "send the signal again"
        notes.put(f"stopping after this batch; {again} to abort")
        stop.request()

    writer.start()
    try:
        with handling_signals(handle):
            yield received
    finally:
        notes.put(None)
        writer.join(_NOTES_S)


@contextmanager
def watched(
    output: Output, settings: ProjectSettings, title: str, *, careful: bool = False
) -> Iterator[tuple[Watch, StopSignal, list[int]]]:
    """Show an update, and let signals stop it; see `stopping`. Yields the emitter, the stop signal and the
    received signals."""
    stop = StopSignal()
    with Watch(output, settings, title) as watch, stopping(stop, watch, careful=careful) as received:
        yield watch, stop, received


@contextmanager
def stopping_on_signals(stop: StopSignal) -> Iterator[list[int]]:
    """Let SIGINT and SIGTERM set the stop signal, and a second signal end the process at once. Yield the
    numbers of the received signals."""
    received: list[int] = []

    def handle(number: int, otherwise: Callable[[], object]) -> None:
        if received:
            otherwise()
        received.append(number)
        stop.request()

    with handling_signals(handle):
        yield received


def _write_notes(notes: SimpleQueue[str | None], watch: Watch) -> None:
    while (text := notes.get()) is not None:
        watch.note(text)


_AGAIN_S = 2.0  # seconds between two looks of `status --watch`


def show_again(output: Output, look: Callable[[], Result]) -> NoReturn:
    """Show what a function returns on the terminal again and again, in place, until a signal ends it. A look
    that fails for a time shows its error."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(file=output.stdout, highlight=False), auto_refresh=False) as live:
        while True:
            try:
                result = look()
            except HeadraceError as error:
                if not error.transient:
                    raise
                result = Result(data=None, errors=[error])
            shown = result.text() if callable(result.text) else result.text
            errors = [Text.from_ansi("\n".join(error_lines(one))) for one in result.errors]
            at = Text(f"\n{datetime.now():%H:%M:%S} · every {_AGAIN_S:.0f} s until Ctrl-C", "dim")
            live.update(Group(Text(shown) if isinstance(shown, str) else shown, *errors, at), refresh=True)
            time.sleep(_AGAIN_S)


def show_outcome(output: Output, result: RunResult, signals: Sequence[int]) -> Result:
    """The result of an update: each error in full, then one line."""
    if output.is_json:
        output.line({"result": _to_json(result)})
    else:
        for error in _distinct(result.errors):
            output.error(error)
    failed = result.outcome == "failed"
    text = f"{result.outcome} in {duration_text(result.duration_s)}" if output.is_terminal else ""
    if result.log_file is not None and (failed or output.is_terminal):
        text = f"{text} · log {result.log_file}" if text else f"log: {result.log_file}"
    return Result(data=None, text=text, exit_code=1 if failed else 128 + signals[0] if signals else 0)


def _distinct(errors: Sequence[HeadraceError]) -> Iterator[HeadraceError]:
    """The errors without repetitions. The loss of the JVM fails all flows, and an interrupted refresh
    all flows of its table: each is one error."""
    seen: set[str] = set()
    for error in errors:
        text = str(error)
        if isinstance(error, DriverLostError | RefreshUnfinishedError):
            text = f"{error.code} {error.params.get('dataset')}"
        if text not in seen:
            seen.add(text)
            yield error


def _to_json(result: RunResult) -> dict[str, Any]:
    def fields(one: Any, *names: str) -> dict[str, Any]:
        error = None if one.error is None else one.error.to_dict()
        return {name: getattr(one, name) for name in names} | {"error": error, "reason": one.reason}

    of_flow = ("flow", "outcome", "rows", "batches", "late", "commits", "duration_s")
    return {
        "update": result.update,
        "outcome": result.outcome,
        "duration_s": result.duration_s,
        "log": None if result.log_file is None else str(result.log_file),
        "flows": [fields(flow, *of_flow) for flow in result.flows],
        "views": [{"dataset": str(view.dataset), **fields(view, "outcome", "rows")} for view in result.views],
    }
