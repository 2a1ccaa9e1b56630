"""The streams of `headrace sql`: their processes, and what is known of them."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, SourceLocation, StreamNotStoppedError
from headrace.project.engine import Engine
from headrace.shell.definitions import Definitions
from headrace.shell.stream_sql import read_options
from headrace.state.lease import Driver, Heart, find_driver
from headrace.syntax.stream_statements import CreateStream

if TYPE_CHECKING:
    from headrace.model.events import Emitter
    from headrace.observe.log import LogSettings
    from headrace.observe.status import FlowStatus
    from headrace.run.stop import StopSignal
    from headrace.run.update import RunResult

_STOP_S = 120.0
"""Seconds that a stream may take to end its batch; then it is aborted."""
_ABORT_S = 30.0
_POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class StreamStatus:
    """A stream, and its flow."""

    name: str
    table: str
    statement: str
    trigger: str
    state: str  # ``starting``, or the state of the flow
    driver: Driver | None = None
    flow: FlowStatus | None = None  # the state of the flow; ``None`` if it never ran
    log: str | None = None  # the file with the output of the process; ``None`` if there is none

    def facts(self) -> Mapping[str, Any]:
        """The facts by name, as JSON values."""
        flow = {} if self.flow is None else self.flow.to_json()
        error = flow.get("error") or {}
        return {
            "stream": self.name,
            "table": self.table,
            "state": self.state,
            "trigger": self.trigger,
            "pid": None if self.driver is None else self.driver.pid,
            "host": None if self.driver is None else self.driver.host,
            **{name: flow.get(name) for name in ("checkpoint", "batch", "version", "committed", "lag")},
            "committed": None if flow.get("committed") is None else flow["committed"][:19],
            "error": ": ".join(filter(None, (error.get("code"), error.get("summary")))) or None,
            "log": self.log,
            "statement": self.statement,
        }


class Streams:
    """Checks, runs, shows and stops the streams of a storage."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self.settings = definitions.settings

    def check(self, name: str, stream: CreateStream) -> None:
        """Plan a stream; writes no table."""
        from headrace.project.pipeline import Pipeline

        settings, flow = self._definitions.open(name, stream)
        try:
            with Pipeline(settings) as pipeline:
                plan = pipeline.plan()
            if plan.refusals:
                raise plan.refusals[0]
        except HeadraceError as error:
            found = None
            if error.location is not None and error.location.path.endswith(settings.libraries[-1]):
                found = flow.original(error.location)
            error = error.with_(location=found or stream.location)
            if error.params.get("condition") == "ASSIGNMENT_ARITY_MISMATCH":
                summary = f"the query has another number of columns than the table `{stream.target[-1]}`"
                error = error.with_(
                    summary=summary, remedies=["or name the columns: INSERT INTO t BY NAME .."]
                )
            raise error from error.__cause__

    def run(
        self,
        name: str,
        *,
        once: bool = False,
        emit: Emitter | None = None,
        stop: StopSignal | None = None,
        log: LogSettings | None = None,
    ) -> RunResult:
        """Run a stream in this process, until it is stopped or has processed what exists.

        With ``once``, it ends after the records that exist now, whatever its trigger is.
        """
        from headrace.project.pipeline import Pipeline

        stream, _ = self._definitions.stream(name)
        settings, _ = self._definitions.open(name, stream)
        heart = Heart()
        try:
            heart.acquire(self._definitions.lease(name), name)
            continuous = not (once or read_options(stream).once)
            with Pipeline(settings) as pipeline:
                # The run of one dataset does not replace the record of the pipeline's last plan.
                target = str(self._definitions.name_of(stream.target))
                return pipeline.run([target], continuous=continuous, emit=emit, stop=stop, log=log)
        finally:
            heart.stop()

    def driver(self, name: str) -> Driver | None:
        """The process that runs a stream."""
        return find_driver(self._definitions.lease(name))

    def statuses(self, *names: str) -> list[StreamStatus]:
        """The streams of the storage, by name; starts no JVM."""
        found = {name: self._definitions.stream(name) for name in names or self._definitions.names("stream")}
        if not found:
            return []
        from headrace.observe.snapshot import take_snapshot

        snapshot = take_snapshot(self.settings, Engine(self.settings).connection())
        flows = {
            (dataset.dataset, flow.flow.casefold()): flow
            for dataset in snapshot.datasets
            for flow in dataset.flows
        }
        shown = []
        for key, (stream, statement) in found.items():
            name, target = stream.name or key, self._definitions.name_of(stream.target)
            flow, driver = flows.get((target, name.casefold())), self.driver(name)
            running = flow is not None and flow.driver is not None
            state: str = "new" if flow is None else flow.state
            if driver is not None and not running:
                state = "starting"
            log = self._definitions.log(name)
            shown.append(
                StreamStatus(
                    name=name,
                    table=target.short,
                    statement=statement,
                    trigger=_trigger(stream),
                    state=state,
                    driver=driver,
                    flow=flow,
                    log=str(log) if log.exists() else None,
                )
            )
        return shown

    def stop(self, name: str, location: SourceLocation | None = None) -> bool:
        """Stop a stream between two batches, and wait until its process has ended.

        ``False`` if it was not running.
        """
        driver = self.driver(name)
        if driver is None:
            return False
        params = {"stream": name, "pid": driver.pid, "host": driver.host}
        if driver.host != socket.gethostname():
            raise StreamNotStoppedError(
                f"the stream `{name}` runs on another machine: pid {driver.pid} on {driver.host}",
                location=location,
                remedies=[f"on {driver.host}:   kill {driver.pid}"],
                params=params,
            )
        if driver.pid == os.getpid():
            return False
        for wait in (_STOP_S, _ABORT_S):
            try:
                os.kill(driver.pid, signal.SIGTERM)
            except ProcessLookupError:
                return True
            deadline = time.monotonic() + wait
            while time.monotonic() < deadline:
                if self.driver(name) is None and not lives(driver.pid):
                    return True
                time.sleep(_POLL_S)
        raise StreamNotStoppedError(
            f"the process of the stream `{name}` has not ended: pid {driver.pid}",
            location=location,
            remedies=[f"kill -9 {driver.pid}"],
            params=params,
        )


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended can still have an entry."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _trigger(stream: CreateStream) -> str:
    options = read_options(stream)
    if options.once:
        return "AvailableNow"
    return options.interval or "ProcessingTime"
