"""Runs the statements of `headrace sql`."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.declare.sql_files import open_literal, with_values
from headrace.errors import HeadraceError, SourceLocation, StreamNotStoppedError
from headrace.model.project import ProjectSettings
from headrace.project.engine import Engine
from headrace.runtime.processes import is_running
from headrace.shell.definitions import Definitions
from headrace.shell.queries import Answer, Queries
from headrace.shell.stream_sql import read_options, scans_of
from headrace.state.lease import Driver, Heart, Observer, find_driver
from headrace.syntax.sql import SqlText
from headrace.syntax.stream_statements import CreateStream, OnDefinition, ShowStreams, parse_stream_statement
from headrace.syntax.tokens import Cursor, SqlTokenError

if TYPE_CHECKING:
    from headrace.model.event_forms import Emitter
    from headrace.observe.log import LogSettings
    from headrace.observe.status import FlowStatus
    from headrace.run.schedule import RunResult
    from headrace.run.stop import StopSignal


_DECLARED = ("STREAMING", "INCREMENTAL", "LIVE", "MATERIALIZED", "FLOW", "PRIVATE")
_SHOWN = ("stream", "table", "state", "trigger", "batch", "lag", "committed", "pid")


class Shell:
    def __init__(self, settings: ProjectSettings, start: Callable[[str], int], limit: int) -> None:
        self.definitions = Definitions(settings)
        self.streams = Streams(self.definitions)
        self._queries = Queries(self.definitions)
        self._start = start
        self._limit = limit
        self._values: dict[str, str] = {}

    def close(self) -> None:
        self._queries.close()

    def execute(self, text: SqlText) -> Answer:
        """Run one statement; a write without ``CREATE STREAM`` is not run: the answer names its stream."""
        try:
            text = with_values(text, {**self.definitions.settings.configuration, **self._values})
            cursor = Cursor(text)
        except SqlTokenError as error:
            raise open_literal(text, error) from error
        try:
            return self._execute(text, cursor)
        except HeadraceError as error:
            error = self.definitions.settings.redactor.error(error)
            raise error.with_location(text.locate(cursor.start, cursor.start, None)) from error.__cause__

    def _execute(self, text: SqlText, cursor: Cursor) -> Answer:
        if cursor.at("CREATE") and any(one.is_word(*_DECLARED) for one in cursor.tokens[1:5]):
            raise cursor.unsupported(
                "declarations of a pipeline in headrace sql",
                "write the statement to an SQL file of the pipeline:   headrace run",
            )
        statement = parse_stream_statement(cursor)
        match statement:
            case None:
                if cursor.at("SET") and not cursor.at("SET", "CATALOG"):
                    self._set(cursor)
                return self._queries.run(text, self._limit)
            case CreateStream():
                return self._create_stream(statement, text.edited)
            case ShowStreams():
                return self._show()
            case OnDefinition():
                return self._on_definition(statement)
            case definition:
                kind, name = definition.kind, self.definitions.key_of(definition)
                added = self.definitions.add(definition, text.edited)
                shown = name.removeprefix(f"{self.definitions.settings.database}.")
                return Answer(note=f"{kind} {shown} {'created' if added else 'exists already'}")

    def _set(self, cursor: Cursor) -> None:
        """Keep the value of ``SET name = value`` as a parameter of later statements."""
        found = re.fullmatch(r"SET\s+`?([\w.-]+)`?\s*=\s*(.*)", cursor.rest, re.IGNORECASE | re.DOTALL)
        if found is not None:
            self._values[found[1]] = found[2]

    def _create_stream(self, statement: CreateStream, text: str) -> Answer:
        definitions = self.definitions
        if statement.name is None:
            return self._write(statement, text)
        name = statement.name
        added = definitions.add(statement, text)
        kept = statement if added else definitions.stream(name)[0]
        if (driver := self.streams.driver(name)) is not None:
            return Answer(note=f"stream {name} exists already, and runs: {driver}")
        try:
            self.streams.check(name, kept)
        except HeadraceError:
            if added:
                definitions.remove("stream", name)
            raise
        pid = self._start(name)
        return Answer(note=f"stream {name} {'started' if added else 'started again'}: pid {pid}")

    def _write(self, statement: CreateStream, text: str) -> Answer:
        """Define the stream of a statement without a name."""
        target = self.definitions.name_of(statement.target)
        scans = scans_of(statement.query, self.definitions.names("scan"))
        name = "_from_".join((target.name, *scans[:1]))
        self.streams.check(name, replace(statement, name=name))
        self.definitions.write("stream", name, text)
        return Answer(run=name)

    def _show(self) -> Answer:
        found = [one.facts() for one in self.streams.statuses()]
        return Answer(
            columns=_SHOWN,
            types=tuple("long" if name in ("batch", "lag", "pid") else "string" for name in _SHOWN),
            rows=tuple(tuple(one[name] for name in _SHOWN) for one in found),
        )

    def _on_definition(self, statement: OnDefinition) -> Answer:
        definitions, location = self.definitions, statement.location
        if statement.kind == "table":
            table = definitions.name_of(statement.name)
            if not (statement.if_exists and definitions.table(table) is None):
                definitions.drop_table(table, location)
            return Answer(note=f"table {table.short} dropped")
        name = ".".join(statement.name)
        if definitions.find(statement.kind, name) is None:
            if statement.if_exists:
                return Answer(note=f"there is no {statement.kind} {name}")
            raise definitions.unknown(statement.kind, name, location)
        if statement.verb == "DESCRIBE":
            (found,) = self.streams.statuses(name)
            rows = tuple((key, None if value is None else str(value)) for key, value in found.facts().items())
            return Answer(columns=("name", "value"), types=("string", "string"), rows=rows)
        ended = statement.kind == "stream" and self.streams.stop(name, location)
        if statement.verb == "STOP":
            return Answer(note=f"stream {name} {'stopped' if ended else 'does not run'}")
        definitions.remove(statement.kind, name)
        kept = "; its table and its checkpoint are kept" if statement.kind == "stream" else ""
        return Answer(note=f"{statement.kind} {name} dropped{kept}")


_STOP_S = 120.0  # seconds that a stream may take to end its batch; then it is aborted
_ABORT_S = 30.0
_POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class StreamStatus:
    name: str
    table: str
    statement: str
    trigger: str
    state: str  # ``starting``, or the state of the flow
    driver: Driver | None = None
    flow: FlowStatus | None = None  # the state of the flow; ``None`` if it never ran
    log: str | None = None  # the file with the output of the process; ``None`` if there is none

    def facts(self) -> Mapping[str, Any]:
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
    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self.settings = definitions.settings

    def check(self, name: str, stream: CreateStream) -> None:
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
        """Run a stream until it is stopped, or (by its trigger, or ``once``) has processed what exists."""
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

    def driver(self, name: str, observer: Observer | None = None) -> Driver | None:
        return find_driver(self._definitions.lease(name), observer)

    def statuses(self, *names: str) -> list[StreamStatus]:
        """The streams of the storage, by name; starts no JVM."""
        found = {name: self._definitions.stream(name) for name in names or self._definitions.names("stream")}
        if not found:
            return []
        from headrace.observe.snapshot import take_snapshot

        kafka = Engine(self.settings).connection()
        snapshot = take_snapshot(replace(self.settings, kafka=kafka), kafka.bootstrap_servers)
        flows = {
            (dataset.dataset, flow.flow.casefold()): flow
            for dataset in snapshot.datasets
            for flow in dataset.flows
        }
        shown, observer = [], Observer(map(self._definitions.lease, found))
        for key, (stream, statement) in found.items():
            name, target = stream.name or key, self._definitions.name_of(stream.target)
            flow, driver = flows.get((target, name.casefold())), self.driver(name, observer)
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
        """Stop a stream between two batches, and wait for its process; ``False`` if it was not running."""
        driver = self.driver(name)
        if driver is None:
            return False
        params = {"stream": name, "pid": driver.pid, "host": driver.host}
        if driver.pid is None or not driver.is_here:
            raise StreamNotStoppedError(
                f"the stream `{name}` runs on another machine, or in another container: {driver}",
                location=location,
                remedies=[
                    "stop it there, or remove its lease if it has ended:   "
                    f"{self._definitions.lease(name).remove_command}"
                ],
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
                if self.driver(name) is None and not is_running(driver.pid):
                    return True
                time.sleep(_POLL_S)
        raise StreamNotStoppedError(
            f"the process of the stream `{name}` has not ended: pid {driver.pid}",
            location=location,
            remedies=[f"kill -9 {driver.pid}"],
            params=params,
        )


def _trigger(stream: CreateStream) -> str:
    options = read_options(stream)
    if options.once:
        return "AvailableNow"
    return options.interval or "ProcessingTime"
