"""The demo in a short form, as a user starts it: the real processes, a real SIGKILL, a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

from checked_json import read_json
from headrace.project.demo.producer import REFUNDS
from headrace.runtime.broker import Broker
from waiting import DEADLINE_S, until

HEADRACE = [sys.executable, "-m", "headrace"]
RECORDS = 3_000

MISSES = """
import sys
from dataclasses import replace
from headrace.cli.main import main
from headrace.project.demo import story

look, kills = story.look_at_crash, []

def look_late(*arguments):
    crash = look(*arguments)
    kills.append(crash)
    return replace(crash, finished=crash.planned) if len(kills) < 3 else crash

story.look_at_crash = look_late
sys.argv = ["headrace", *sys.argv[1:]]
main()
"""
"""The demo on a machine where the first two kills come just after a batch."""


@pytest.fixture
def demo_folder(tmp_path: Path) -> Path:
    return tmp_path / "demo"


def command(folder: Path, *more: str) -> list[str]:
    return [*HEADRACE, "demo", "--records", str(RECORDS), "--rate", "2000", "--directory", str(folder), *more]


def processes_of(folder: Path) -> list[psutil.Process]:
    """Whatever still runs that names the folder, or works in it."""
    found = []
    for process in psutil.process_iter():
        try:
            named = str(folder) in " ".join(process.cmdline())
            inside = str(folder) in process.environ().get("TMPDIR", "")
        except psutil.Error:
            continue
        if named or inside:
            found.append(process)
    return found


def test_the_demo_is_killed_inside_a_batch_and_comes_out_equal_and_proven(demo_folder: Path) -> None:
    arguments = command(demo_folder, "--json")[len(HEADRACE) :]
    program = [sys.executable, "-c", MISSES, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = read_json("demo", done.stdout)
    assert told["ok"]
    assert told["faults"] == []
    assert told["records"] == RECORDS
    # It has records for each attempt to kill the driver inside a batch.
    assert [crash["inside_batch"] for crash in told["crashes"][:2]] == [False, False]
    last = told["crashes"][-1]
    assert last["inside_batch"]
    assert last["planned"] == last["finished"] + 1
    # The restarted process met that batch again, and said what it did with it.
    assert f"batch {last['planned']}" in told["replay"]
    assert told["rejected"] == told["replayed"] == REFUNDS
    assert told["proof"]["proven"]
    for dataset in told["proof"]["datasets"]:
        for flow in dataset["flows"]:
            assert {grade["verdict"] for grade in flow["grades"].values()} == {"proven"}
    assert told["gold"]["equal"]
    assert told["gold"]["differences"] == []
    assert Decimal(told["gold"]["sales"]) == Decimal(told["gold"]["ledger_sales"]) > 0
    assert processes_of(demo_folder) == []


def test_an_interrupted_demo_ends_everything_that_it_started(demo_folder: Path) -> None:
    process = subprocess.Popen(
        command(demo_folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A shell's background job ignores SIGINT, and so would the demo of the tests in it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        leases = demo_folder / "lake" / "leases"
        until(lambda: process.poll() is not None or leases.is_dir(), "its flows work")
        assert process.poll() is None, process.stdout and process.stdout.read()
        kinds = " ".join(" ".join(one.cmdline()) for one in processes_of(demo_folder))
        assert "kafka.Kafka" in kinds
        assert "SparkSubmit" in kinds
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
    assert processes_of(demo_folder) == []


def test_a_demo_that_is_killed_takes_its_pipeline_with_it(demo_folder: Path) -> None:
    process = subprocess.Popen(command(demo_folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with process:
        leases = demo_folder / "lake" / "leases"
        until(lambda: process.poll() is not None or leases.is_dir(), "its flows work")
        process.kill()
    try:
        # Its broker goes on, as any broker does until nobody has used it for a while.
        until(
            lambda: all(
                "kafka" in " ".join(one.cmdline()) or "broker_watch" in " ".join(one.cmdline())
                for one in processes_of(demo_folder)
            ),
            "the pipeline has ended",
        )
    finally:
        Broker(demo_folder / ".headrace" / "broker").stop()
    assert processes_of(demo_folder) == []


def test_a_folder_of_somebody_elses_is_refused_and_left_alone(demo_folder: Path) -> None:
    demo_folder.mkdir()
    (demo_folder / "thesis.txt").write_text("years of work")
    done = subprocess.run(command(demo_folder, "--json"), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (refused,) = read_json("demo", done.stdout)
    assert refused["error"]["code"] == "DEMO_FOLDER_TAKEN"
    assert [path.name for path in demo_folder.iterdir()] == ["thesis.txt"]
