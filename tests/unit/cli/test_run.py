"""`headrace run`: how signals reach an update, and what is said of its end."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from headrace.cli.output import JsonOutput, TextOutput
from headrace.cli.watching import Watch, show_outcome, stopping
from headrace.errors import DriverLostError, RefusedError
from headrace.model.events import UpdateFinished, UpdateStarted
from headrace.model.project import ProjectSettings
from headrace.run.reporting import FlowResult
from headrace.run.schedule import RunResult
from headrace.run.stop import StopSignal
from headrace.storage.layout import Storage


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """A shell's background job starts with SIGINT ignored, and so would the tests in it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def settings(tmp_path: Path) -> ProjectSettings:
    return ProjectSettings(
        name="shop", file=tmp_path / "headrace.yml", profile="dev", storage=Storage.at(tmp_path), libraries=()
    )


class Started:
    """Stands for a watch whose update has begun."""

    started = True

    def __init__(self) -> None:
        self.display = threading.Lock()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        with self.display:
            self.notes.append(text)


class Starting(Started):
    """Stands for a watch whose update has not begun."""

    started = False


@pytest.mark.parametrize(
    ("number", "note"),
    [
        (signal.SIGINT, "stopping after this batch; press Ctrl-C again to abort"),
        (signal.SIGTERM, "stopping after this batch; send the signal again to abort"),
    ],
)
def test_a_signal_asks_the_update_to_stop_and_is_acknowledged(number: signal.Signals, note: str) -> None:
    stop, watch = StopSignal(), Started()
    with stopping(stop, watch) as received:  # type: ignore[arg-type]
        os.kill(os.getpid(), number)
        assert (stop.requested, stop.aborted) == (True, False)
        assert received == [number]
    assert watch.notes == [note]


def test_a_signal_that_comes_while_the_display_is_drawn_waits_for_nothing() -> None:
    stop, watch = StopSignal(), Started()
    with stopping(stop, watch), watch.display:  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
    assert len(watch.notes) == 1


def test_a_second_signal_aborts() -> None:
    stop, watch = StopSignal(), Started()
    with stopping(stop, watch):  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.aborted
    assert watch.notes[1] == "aborting; the next run replays what was not committed"


def test_a_signal_before_the_update_ends_at_once() -> None:
    stop, watch = StopSignal(), Starting()
    with stopping(stop, watch), pytest.raises(KeyboardInterrupt):  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGINT)
    assert (watch.notes, stop.requested) == (["stopping; the update has not begun"], False)


def test_work_that_must_not_be_broken_off_is_waited_for() -> None:
    stop = StopSignal()
    with stopping(stop, Starting(), careful=True) as received:  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGINT)
    assert (stop.requested, received) == (True, [signal.SIGINT])


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stopping(StopSignal(), Started()):  # type: ignore[arg-type]
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def result(outcome: str, error: RefusedError | None = None) -> RunResult:
    flow = FlowResult(
        flow="orders", outcome="failed" if error else "up to date", rows=5, batches=1, error=error
    )
    return RunResult(update="u", outcome=outcome, flows=(flow,), views=(), duration_s=1)  # type: ignore[arg-type]


def test_the_loss_of_the_jvm_is_printed_once() -> None:
    output = TextOutput(stdout=io.StringIO(), stderr=io.StringIO())
    flows = tuple(
        FlowResult(flow=name, outcome="failed", error=error)
        for name, error in (
            ("a", DriverLostError("the JVM of Spark has ended")),
            ("b", RefusedError("no")),
            ("c", DriverLostError("the JVM of Spark has ended", facts=["while it read c"])),
        )
    )
    ended = RunResult(update="u", outcome="failed", flows=flows, views=(), duration_s=1)
    assert show_outcome(output, ended, []).exit_code == 1
    printed = output.stderr.getvalue()  # type: ignore[attr-defined]
    assert [printed.count(text) for text in ("[DRIVER_LOST]", "[REFUSED]")] == [1, 1]


def test_exit_codes_of_an_update() -> None:
    output = TextOutput(stdout=io.StringIO(), stderr=io.StringIO())
    refused = RefusedError("no", remedies=["headrace reset orders"])
    assert show_outcome(output, result("completed"), []).exit_code == 0
    assert show_outcome(output, result("stopped"), [15]).exit_code == 143
    # A failure is a failure, also when a signal came.
    assert show_outcome(output, result("failed", refused), [2]).exit_code == 1
    assert "headrace reset orders" in output.stderr.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", ["triggered", "continuous"])
def test_the_collector_of_a_continuous_run_leaves_out_what_is_loaded_at_its_begin(
    settings: ProjectSettings, monkeypatch: pytest.MonkeyPatch, mode: Literal["triggered", "continuous"]
) -> None:
    monkeypatch.setattr("headrace.runtime.fetch.ensure_jars", lambda *_: ())
    output = JsonOutput(stdout=io.StringIO(), stderr=io.StringIO())
    gc.unfreeze()
    try:
        with Watch(output, settings, "Starting") as watch:
            watch(UpdateStarted(update="u", pipeline="shop", mode=mode, flows=(), views=()))
        assert (gc.get_freeze_count() > 0) == (mode == "continuous")
    finally:
        gc.unfreeze()


def test_json_lines_are_events_and_then_the_result(
    settings: ProjectSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.runtime.fetch.ensure_jars", lambda *_: ())
    output = JsonOutput(stdout=io.StringIO(), stderr=io.StringIO())
    with Watch(output, settings, "Starting") as watch:
        watch(UpdateStarted(update="u", pipeline="shop", mode="triggered", flows=("orders",), views=()))
        watch(UpdateFinished(update="u", outcome="completed", duration_s=1))
    show_outcome(output, result("completed"), [])
    lines = output.stdout.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [json.loads(line).get("event", "result") for line in lines] == [
        "UpdateStarted",
        "UpdateFinished",
        "result",
    ]
