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
from headrace.sinks.delta.reader import DeltaCommits
from headrace.state.identity import generations, load_identity
from headrace.state.ledger import Ledger
from headrace.state.offset_log import load_state
from headrace.storage.layout import Storage

_STOP_TIMEOUT_S = 45.0  # a clean stop finishes the batches under way; then the process is killed
_DEATH_TIMEOUT_S = 20.0
_LOG_LINES = 8


class Driver:
    """One process that runs a pipeline continuously. `pid_file`: the file with the process id, for a later
    demo if this one is killed."""

    def __init__(
        self,
        project: Path,
        *,
        environment: Mapping[str, str],
        log_file: Path,
        pid_file: Path,
        emit: Callable[[Event], None],
    ) -> None:
        self._log_file = log_file
        self._emit = emit
        self._error: Mapping[str, Any] | None = None
        command = [
            sys.executable,
            *["-m", "headrace", "run", "--continuous", "--json", "--project"],
            str(project),
        ]
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment},
                # Ctrl-C is for the demo, which then ends everything in order.
                start_new_session=True,
            )
        started = psutil.Process(self._process.pid).create_time()
        pid_file.write_text(json.dumps({"pid": self._process.pid, "started": started}), encoding="utf-8")
        self._reader = threading.Thread(target=self._read, name="headrace-demo-driver", daemon=True)
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

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    data = json.loads(line)
                except ValueError:
                    continue
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


def end_leftover(pid_file: Path) -> bool:
    """Kill the process of a demo that was killed; returns whether there was one."""
    try:
        known = json.loads(pid_file.read_text(encoding="utf-8"))
        process = psutil.Process(int(known["pid"]))
        # A pid is used again: the time of creation tells the processes apart.
        if abs(process.create_time() - float(known["started"])) > 1.0:
            return False
        family = [*process.children(recursive=True), process]
        process.kill()
        psutil.wait_procs(family, timeout=_DEATH_TIMEOUT_S)
    except (OSError, ValueError, KeyError, psutil.NoSuchProcess):
        return False
    return True


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
