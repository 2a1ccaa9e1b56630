"""What a user sees on terminals with 80 and 120 columns: no value and no name is cut."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from lake import HandFlow, Lake

from headrace.cli.main import run
from headrace.cli.output import TextOutput
from headrace.model.events import BatchCommitted, FlowFailed, UpdateStarted
from headrace.model.names import TableName
from headrace.observe.event_log import EventLog

SPEC = "name: shop\nstorage: ./lake\nlibraries: [{file: shop.py}]\nkafka: {bootstrap.servers: 127.0.0.1:9}\n"
LONG = "orders_of_all_shops_in_northern_europe"
NOW = datetime.now(UTC).replace(microsecond=0)

Screen = Callable[..., list[str]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=[80, 120])
def width(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def screen(width: int, monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Calls a command on a terminal of this width, and gives its lines without colours."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")

    def call(*arguments: str, code: int = 0) -> list[str]:
        out = Terminal()
        assert run(arguments, TextOutput(stdout=out, stderr=io.StringIO())) == code, out.getvalue()
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in out.getvalue().splitlines()]
        assert [line for line in lines if len(line) > width] == []
        assert "…" not in "".join(lines)
        return lines

    return call


@pytest.fixture(autouse=True)
def pipeline(tmp_path: Path) -> HandFlow:
    """A pipeline with a table of a long name, a batch, an expectation and an error."""
    (tmp_path / "headrace.yml").write_text(SPEC)
    lake = Lake(tmp_path / "lake")
    flow = lake.table(LONG).flow()
    flow.append({0: (0, 2000)})
    dataset = TableName("default", LONG)
    count = {"name": "amounts are sane", "dataset": str(dataset), "action": "quarantine"}
    with EventLog(lake.settings.storage, "shop", "u") as log:
        log(UpdateStarted(update="u", at=NOW, pipeline="shop", mode="once", flows=(LONG,), views=()))
        log(
            BatchCommitted(
                update="u", at=NOW - timedelta(minutes=1), flow=LONG, dataset=dataset, batch=0, version=1,
                rows=2000, duration_s=1.0, ranges=(), checkpoint="c",
                expectations=({**count, "passed": 1_999, "failed": 1},),
            )
        )  # fmt: skip
        error = {"code": "TOPIC_RECREATED", "summary": "the topic is not the topic that the checkpoint read"}
        log(FlowFailed(update="u", at=NOW, flow=LONG, dataset=dataset, error=error))
    return flow


def test_status(screen: Screen, width: int) -> None:
    lines = screen("status")
    if width == 120:
        head, row = (line for line in lines if line.startswith(("flow ", LONG)) and "[" not in line)
        assert head.split() == [
            "flow",
            "state",
            "rows",
            "in",
            "table",
            "rows/s",
            "lag",
            "batch",
            "last",
            "commit",
        ]
        assert row.split()[:3] == [LONG, "failed", "2,000"]
    else:
        at = lines.index(LONG)
        assert lines[at + 1].startswith("  state: failed   rows in table: 2,000   lag: unknown   batch: 0")
        assert lines[at + 2].startswith("  last commit: v2  ")
    assert any("[TOPIC_RECREATED]" in line for line in lines)


def test_the_health_of_tables(screen: Screen) -> None:
    lines = screen("status", "--tables")
    at = lines.index(LONG)
    block = " ".join(lines[at + 1 : at + 4])
    for pair in ("files: 1", "commits: 3", "checkpoint: none", "deleted: 0%"):
        assert pair in block, lines
    assert "-" not in block.split()


def test_quality(screen: Screen, width: int) -> None:
    lines = screen("quality")
    text = " ".join(" ".join(lines).split())
    if width == 120:
        assert "amounts are sane quarantined 1,999 1 0.05" in text
    for word in ("quarantined", "1,999", "0.05"):
        assert word in text
    assert any(line.strip().startswith("amounts are sane") for line in lines)


def test_events(screen: Screen, width: int) -> None:
    lines = screen("events")
    text = " ".join(" ".join(lines).split())
    assert "[TOPIC_RECREATED] the topic is not the topic that the checkpoint read" in text
    starts = [line for line in lines if re.match(r"\d{4}-\d\d-\d\d ", line)]
    assert len(starts) >= 3 and all(line.startswith("    ") for line in lines if line not in starts)


def test_verify(screen: Screen, width: int) -> None:
    lines = screen("verify")
    # The marks stand in one column; the rest of a long text stands below its begin.
    assert len({len(line) for line in lines if line.endswith("✓")}) == 1, lines
    name = f" {LONG}" if width == 120 else " "
    if width == 80:
        assert lines[1] == f" {LONG}", lines
    first = f"{name}  ranges   1 partition, 2,000 offsets, 1 commit, no gap, no overlap"
    (at,) = [number for number, line in enumerate(lines) if line.startswith(first)]
    broker = next(line for line in lines[at:] if line.strip().startswith("the Kafka broker"))
    assert len(broker) - len(broker.lstrip()) == len(name) + 11, lines


def test_watch_shows_the_status_again_until_ctrl_c(pipeline: HandFlow) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "headrace", "status", "--watch"]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    seen, deadline = "", time.monotonic() + 60

    def wait_for(pattern: str) -> None:
        nonlocal seen
        while not re.search(pattern, seen, re.DOTALL):
            assert time.monotonic() < deadline and process.poll() is None, seen
            if select.select([master], [], [], 1.0)[0]:
                seen += os.read(master, 65536).decode()

    try:
        wait_for("rows in table: .{0,9}2,000.*until Ctrl-C")
        pipeline.append({0: (2000, 2010)})
        # The cursor goes up, and the lines are written again in their place.
        wait_for("\x1b\\[1A.*rows in table: .{0,9}2,010.*until Ctrl-C")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    finally:
        process.kill()
        process.wait()
        os.close(master)
