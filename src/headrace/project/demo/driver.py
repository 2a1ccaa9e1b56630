"""The pipeline in a process of its own, as ``headrace run --continuous`` starts it; watched, and killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from headrace.errors import DemoDriverError
from headrace.model.event_forms import Event
from headrace.model.names import TableName
from headrace.observe.log import event_from_json
from headrace.runtime.processes import start_bound
from headrace.sinks.delta.reader import DeltaCommits
from headrace.state.checkpoint import generations, load_identity, load_state
from headrace.state.ledger import Ledger
from headrace.storage.layout import Storage

_STOP_TIMEOUT_S = 45.0  # a clean stop finishes the batches under way; then the process is killed
_DEATH_TIMEOUT_S = 20.0
_LOG_LINES = 8
_POLL_S = 0.02


class Driver:
    """One process that runs a pipeline continuously. It ends with this process, however that ends."""

    def __init__(
        self, project: Path, *, environment: Mapping[str, str], log_file: Path, emit: Callable[[Event], None]
    ) -> None:
        self._log_file = log_file
        self._emit = emit
        self._error: Mapping[str, Any] | None = None
        command = [sys.executable, "-m", "headrace", "run", "--continuous", "--json", "--project"]
        log_file.touch()
        # The processes of one demo write to one log.
        begin = log_file.stat().st_size
        self._process = start_bound([*command, str(project)], log_file, {**os.environ, **environment})
        self._reader = threading.Thread(
            target=self._read, args=(begin,), name="headrace-demo-driver", daemon=True
        )
        self._reader.start()

    def check(self) -> None:
        if self._process.poll() is None:
            return
        self._reader.join(_DEATH_TIMEOUT_S)
        facts = [*self._last_lines(), f"log: {self._log_file}"]
        raise DemoDriverError(
            f"the process of the pipeline ended with exit code {self._process.returncode}",
            facts=facts,
            remedies=("check the machine:   headrace doctor",),
            params={"exit_code": self._process.returncode, "error": self._error},
        )

    def kill(self) -> None:
        """Kill the process (SIGKILL), and wait until it and its JVM have ended."""
        if self._process.poll() is not None:
            return
        family = self._family()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        _, alive = psutil.wait_procs(family, timeout=_DEATH_TIMEOUT_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._reader.join(_DEATH_TIMEOUT_S)

    def stop(self) -> int:
        """Stop the process as Ctrl-C does, and return its exit code; it is killed if it does not stop."""
        if self._process.poll() is None:
            family = self._family()
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
            psutil.wait_procs(family, timeout=_DEATH_TIMEOUT_S)
        self._reader.join(_DEATH_TIMEOUT_S)
        return self._process.returncode

    def _family(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def _read(self, begin: int) -> None:
        with self._log_file.open("rb") as log:
            log.seek(begin)
            line = b""
            while True:
                # What a process has written before it ended is read after that.
                has_ended = self._process.poll() is not None
                while part := log.readline():
                    line += part
                    if line.endswith(b"\n"):
                        self._take(line)
                        line = b""
                if has_ended:
                    return
                time.sleep(_POLL_S)

    def _take(self, line: bytes) -> None:
        try:
            data = json.loads(line)
        except ValueError:
            return
        match data:
            case {"event": _} if (event := event_from_json(data)) is not None:
                self._emit(event)
            case {"error": dict(error)}:
                self._error = error

    def _last_lines(self) -> list[str]:
        if self._error is not None:
            return [f"[{self._error.get('code')}] {self._error.get('summary')}"]
        try:
            return self._log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        except OSError:
            return []


_LOOK_S = 0.001


@dataclass(frozen=True)
class Crash:
    """The state of the storage after a SIGKILL."""

    flow: str
    planned: int  # the last ``offsets/N``
    finished: int  # the last ``commits/N``
    in_table: bool  # whether the table already held batch N, so that the next start must skip it

    @property
    def inside_batch(self) -> bool:
        return self.planned > self.finished


def await_batch(
    storage: Storage, dataset: TableName, flow: str, *, timeout_s: float, check: Callable[[], None]
) -> bool:
    """Wait until a batch has started; ``False`` after a timeout."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        check()
        known = generations(storage.flow_checkpoints(dataset, flow))
        if known:
            state = load_state(known[-1])
            # The first batches of a process are slow; a crash there would show less.
            if state.last_planned > state.last_finished:
                return True
        time.sleep(_LOOK_S)
    return False


def look_at_crash(storage: Storage, dataset: TableName, flow: str) -> Crash:
    """The state of the storage after the process has ended."""
    path = generations(storage.flow_checkpoints(dataset, flow))[-1]
    state = load_state(path)
    checkpoint = load_identity(path).checkpoint
    ledger = Ledger(storage.ledger(dataset, flow), dataset, flow)
    held = ledger.last_batch(DeltaCommits(storage.table(dataset)), checkpoint, state.last_planned)
    return Crash(
        flow=flow, planned=state.last_planned, finished=state.last_finished, in_table=held is not None
    )
