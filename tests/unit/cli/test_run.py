"""`headrace run`: how signals reach an update, and what is said of its end."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.output import JsonOutput, TextOutput
from headrace.cli.watching import Watch, show_outcome, stopping
from headrace.errors import RefusedError
from headrace.model.events import UpdateFinished, UpdateStarted
from headrace.model.project import ProjectSettings
from headrace.run.stop import StopSignal
from headrace.run.supervise import FlowResult
from headrace.run.update import RunResult
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


class Starting:
    """Stands for a watch whose update has not begun."""

    started = False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_the_update_to_stop(number: signal.Signals) -> None:
    stop = StopSignal()
    with stopping(stop, Started()) as received:  # type: ignore[arg-type]
        os.kill(os.getpid(), number)
        assert stop.requested
        assert received == [number]


def test_a_second_signal_does_not_wait() -> None:
    with stopping(StopSignal(), Started()):  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_before_the_update_ends_at_once() -> None:
    stop = StopSignal()
    with stopping(stop, Starting()), pytest.raises(KeyboardInterrupt):  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGINT)
    assert not stop.requested


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
    flow = FlowResult(flow="orders", outcome="failed" if error else "drained", rows=5, batches=1, error=error)
    return RunResult(update="u", outcome=outcome, flows=(flow,), views=(), duration_s=1)  # type: ignore[arg-type]


def test_exit_codes_of_an_update() -> None:
    output = TextOutput(stdout=io.StringIO(), stderr=io.StringIO())
    refused = RefusedError("no", remedies=["headrace run --new-checkpoint orders"])
    assert show_outcome(output, result("completed"), []).exit_code == 0
    assert show_outcome(output, result("stopped"), [15]).exit_code == 143
    # A failure is a failure, also when a signal came.
    assert show_outcome(output, result("failed", refused), [2]).exit_code == 1
    assert "headrace run --new-checkpoint orders" in output.stderr.getvalue()  # type: ignore[attr-defined]


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
    assert [line.split('"')[3] if '"event"' in line else "result" for line in lines] == [
        "UpdateStarted",
        "UpdateFinished",
        "result",
    ]
