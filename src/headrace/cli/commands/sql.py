"""`headrace sql`: SQL statements over the tables of the storage, and streams."""

from __future__ import annotations

import linecache
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, WordCompleter
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.console import Group

from headrace.cli.output import Output, Result
from headrace.cli.rows import RowsTable, with_count
from headrace.cli.verb import POSITIVE, Invocation, log_options, option, verb
from headrace.cli.watching import show_outcome, spark_starting, watched
from headrace.errors import CommandLineError, HeadraceError, StreamNotStartedError
from headrace.model.secrets import is_secret_key
from headrace.observe.log import LogSettings
from headrace.observe.read import rows_to_json
from headrace.plan.columns import type_text
from headrace.plan.stored import load_stored
from headrace.runtime.places import cache_folder
from headrace.runtime.processes import start_bound, start_detached
from headrace.shell.definitions import Definitions
from headrace.shell.queries import Answer
from headrace.shell.stream_sql import table_columns
from headrace.syntax.stream_statements import CreateScan
from headrace.syntax.tokens import SqlTokenError, tokenize

if TYPE_CHECKING:
    from headrace.shell.definitions import Definitions
    from headrace.shell.shell import Shell, Streams


KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "ON", "AS"),
    *("AND", "OR", "NOT", "IN", "IS NULL", "BETWEEN", "LIKE", "CASE", "WHEN", "THEN", "ELSE", "END"),
    *("CREATE TABLE", "CREATE SCAN", "CREATE STREAM", "IF NOT EXISTS", "USING kafka", "USING delta"),
    *("USING STREAM", "OPTIONS", "LOCATION", "PARTITIONED BY", "CLUSTER BY", "INSERT INTO", "BY NAME"),
    *("MERGE INTO", "WHEN MATCHED THEN UPDATE *", "WHEN NOT MATCHED THEN INSERT *", "DELETE", "WITH"),
    *("SHOW STREAMS", "SHOW TABLES", "DESCRIBE", "DESCRIBE STREAM", "STOP STREAM", "DROP STREAM"),
    *("DROP SCAN", "DROP TABLE", "EXPLAIN", "UNION ALL", "DISTINCT", "SET"),
)


def make_completer(names: Names) -> Completer:
    """Completes keywords, the names of tables, scans and streams, and the columns of tables."""

    def words() -> list[str]:
        known = names.kinds()
        columns = (column for name in known for column in names.columns(name))
        return [*dict.fromkeys((*columns, *known, *KEYWORDS))]

    return WordCompleter(words, ignore_case=True)


def is_complete(text: str) -> bool:
    """Whether a text ends in a semicolon, or is a command such as ``\\d``."""
    if not text.strip() or text.lstrip().startswith("\\"):
        return True
    try:
        tokens = tokenize(text)
    except SqlTokenError:
        return False
    return bool(tokens) and tokens[-1].is_symbol(";")


_KAFKA = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
}


class Names:
    """The tables, scans and streams of a storage, read without Spark."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions

    def kinds(self) -> dict[str, str]:
        """The kind of each table, scan and stream, by name."""
        definitions, storage = self._definitions, self._definitions.settings.storage
        found = {}
        for name in sorted(storage.find_tables()):
            stored = load_stored(storage, name)
            if stored is not None and stored.is_private:
                continue
            kind = None if stored is None else stored.kind
            found[name.short] = (kind or "table").replace("_", " ")
        for text in definitions.names("table"):
            name = definitions.name_of(tuple(text.split(".")))
            table = definitions.table(name)
            if table is not None:
                found.setdefault(name.short, "Kafka table" if table.is_kafka else "table without rows")
        found.update(dict.fromkeys(definitions.names("scan"), "scan"))
        return {**found, **{name: "stream" for name in definitions.names("stream") if name not in found}}

    def columns(self, text: str) -> dict[str, str]:
        """The columns of a table or a scan, with their types; empty if the table does not exist."""
        scan = self._definitions.find("scan", text)
        if scan is not None and isinstance(scan[0], CreateScan):
            return self.columns(".".join(scan[0].table))
        name = self._definitions.name_of(tuple(text.split(".")))
        stored = load_stored(self._definitions.settings.storage, name)
        if stored is not None:
            return {field["name"]: type_text(field["type"]) for field in stored.schema["fields"]}
        table = self._definitions.table(name)
        if table is None:
            return {}
        return _KAFKA if table.is_kafka else table_columns(table)

    def describe(self, text: str | None) -> Answer:
        if text is None:
            return Answer(
                columns=("name", "kind"), types=("string", "string"), rows=tuple(self.kinds().items())
            )
        columns = self.columns(text)
        if not columns:
            raise self._definitions.unknown("table", text, None)
        return Answer(columns=("column", "type"), types=("string", "string"), rows=tuple(columns.items()))


_TYPED = "<sql>"  # the path of statements that are not in a file, in the locations of errors


@verb(
    examples=(
        "headrace sql",
        'headrace sql -e "SELECT customer, sum(amount) FROM orders GROUP BY customer"',
        "headrace sql -f job.sql",
        "headrace sql -f job.sql --detach",
        'headrace sql -e "SHOW STREAMS"',
    )
)
@option("-e,--execute SQL", "Run these statements.", name="typed", multiple=True)
@option(
    "-f,--file FILE",
    "Run the statements of a file; - is standard input.",
    click.Path(path_type=Path, allow_dash=True),
    name="files",
    multiple=True,
)
@option("--detach", "Keep the streams running after the command has ended.")
@option("--once", "Process the records that exist now, then end each stream.")
@option("--limit", "The maximum number of rows that a query prints.", POSITIVE, default=1000)
@option("--stream NAME", "", hidden=True)
@log_options
def sql(
    invocation: Invocation,
    typed: tuple[str, ...],
    files: tuple[Path, ...],
    detach: bool,
    once: bool,
    limit: int,
    stream: str | None,
    log: LogSettings,
) -> Result:
    """Run SQL statements: queries, and streams into tables.

    Without -e and -f, the command opens an interactive shell: \\? lists its commands, and Ctrl-D closes it.

    Queries can read the tables of the storage, and the tables and scans that CREATE TABLE .. USING kafka and
    CREATE SCAN define. CREATE STREAM .. INSERT INTO starts a stream in a separate process. This process ends
    with the command, unless --detach is given. SHOW STREAMS, DESCRIBE STREAM, STOP STREAM and DROP STREAM
    work on all streams of the storage, no matter which command started them.
    """
    from headrace.shell.definitions import Definitions
    from headrace.shell.shell import Shell, Streams

    settings = invocation.stored(anywhere=True)
    processes = StreamProcesses(invocation, Definitions(settings), log, detached=detach, once=once)
    if stream is not None:
        return processes.watch(Streams(Definitions(settings)), stream)
    if not (typed or files) and not sys.stdin.isatty():
        files = (Path("-"),)
    with closing(Shell(settings, processes.start, limit)) as shell, closing(processes):
        if not (typed or files):
            return _interact(invocation, shell, processes)
        for path, text in _texts(files, typed):
            if code := _run(invocation, shell, processes, path, text):
                return Result(data=None, exit_code=code)
        return processes.wait()


def _interact(invocation: Invocation, shell: Shell, processes: StreamProcesses) -> Result:
    def run(text: str) -> int:
        return _run(invocation, shell, processes, *remember(text))

    output = invocation.output
    output.note(f"storage {shell.definitions.settings.storage.root} · \\? for help")
    Prompt(output, Names(shell.definitions), run, partial(show_answer, output)).loop()
    if running := processes.running:
        output.note(f"stopping {', '.join(running)}")
    return Result(data=None)


def _texts(files: tuple[Path, ...], typed: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for file in files:
        if str(file) == "-":
            yield remember(sys.stdin.read())
            continue
        try:
            yield str(file), file.read_bytes().decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            problem = "is not valid UTF-8" if isinstance(error, UnicodeDecodeError) else "cannot be read"
            raise CommandLineError(
                f"the file {file} {problem}",
                facts=[str(error)],
                remedies=["name a file with SQL statements: -f job.sql"],
                params={"command": "headrace sql", "path": str(file)},
            ) from error
    for text in typed:
        yield remember(text)


def remember(text: str) -> tuple[str, str]:
    """The path of a text that is not in a file, and the text; errors can then show its lines."""
    linecache.cache[_TYPED] = (len(text), None, text.splitlines(keepends=True), _TYPED)
    return _TYPED, text


def _run(invocation: Invocation, shell: Shell, processes: StreamProcesses, path: str, text: str) -> int:
    """Run the statements of a text; returns the exit code of one that failed."""
    from headrace.declare.sql_files import split_text

    output = invocation.output
    for statement in split_text(text, path):
        with spark_starting(output, "Running the statement"):
            answer = shell.execute(statement)
        if answer.run is None:
            show_answer(output, answer)
        elif processes.detached:
            pid = processes.start(answer.run)
            output.note(f"stream {answer.run} started: pid {pid}")
        else:
            result = processes.watch(shell.streams, answer.run)
            output.result(result)
            if result.exit_code:
                return result.exit_code
    return 0


def show_answer(output: Output, answer: Answer) -> None:
    """Print the rows of a statement, or its note."""
    if answer.columns:
        output.line({**rows_to_json(answer.columns, answer.types, answer.rows), "cut": answer.is_cut})
    else:
        output.line({"note": answer.note})
    if not output.is_json:
        output.result(Result(data=None, text=lambda: _rendered(answer)))


def _rendered(answer: Answer) -> str | Group:
    table = RowsTable(answer.columns, answer.types, answer.rows)
    return with_count(table, answer.rows, is_cut=answer.is_cut) if answer.columns else answer.note


_HELP = r"""\d         tables, scans and streams
\d NAME    the columns of a table or a scan
\q         leave; so does Ctrl-D
\?         this help

A statement ends in a semicolon, and can have several lines. Tab completes names.
Ctrl-C cancels a query, or clears the statement. SHOW STREAMS; lists the streams."""


class History(FileHistory):
    """The statements of earlier sessions, without those that contain a secret."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        super().__init__(str(file))

    def store_string(self, string: str) -> None:
        if not _has_secret(string):
            super().store_string(string)


class Prompt:
    def __init__(
        self, output: Output, names: Names, run: Callable[[str], object], show: Callable[[Answer], None]
    ) -> None:
        self._output = output
        self._names = names
        self._run = run
        self._show = show
        self._session: PromptSession[str] = PromptSession(
            history=History(cache_folder() / "sql_history"),
            completer=make_completer(names),
            complete_while_typing=False,
            multiline=True,
            key_bindings=_bindings(),
            prompt_continuation="       -> ",
        )

    def loop(self) -> None:
        """Read and run statements until Ctrl-D or ``\\q``."""
        while True:
            try:
                text = self._session.prompt("headrace> ").strip()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if text in ("\\q", "\\quit", "exit;", "quit;"):
                return
            try:
                self._execute(text)
            except HeadraceError as error:
                self._output.error(error)
            except KeyboardInterrupt:
                self._output.note("cancelled")

    def _execute(self, text: str) -> None:
        if not text.startswith("\\"):
            self._run(text)
            return
        command, _, name = text.rstrip("; ").partition(" ")
        if command == "\\d":
            self._show(self._names.describe(name.strip() or None))
        elif command == "\\?":
            self._show(Answer(note=_HELP))
        else:
            self._output.note(f"{command} is not a command; \\? lists the commands")


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.document.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return bindings


def _has_secret(text: str) -> bool:
    try:
        tokens = tokenize(text)
    except SqlTokenError:
        return True
    return any(is_secret_key(token.value) for token in tokens)


_START_S = 60.0
_POLL_S = 0.05
_STOPPED = (130, 143)  # the exit codes of a stream that a signal has stopped, as `STOP STREAM` does
_TAIL = 15  # lines of a log that an error shows


class StreamProcesses:
    """Runs streams: each in a process of its own, or one in this process. `once`: whether the streams end
    after the records that exist now."""

    def __init__(
        self,
        invocation: Invocation,
        definitions: Definitions,
        log: LogSettings,
        *,
        detached: bool,
        once: bool,
    ) -> None:
        self._invocation = invocation
        self._definitions = definitions
        self._log = log
        self.detached = detached
        self._once = once
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> int:
        from headrace.shell.shell import Streams

        log = self._definitions.log(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "headrace", "sql", "--stream", name, *self._options()]
        if self.detached:
            pid = start_detached(command, log)
        else:
            self._running[name] = start_bound(command, log)
            pid = self._running[name].pid
        streams, deadline = Streams(self._definitions), time.monotonic() + _START_S
        while streams.driver(name) is None and time.monotonic() < deadline:
            if not self._lives(name, pid):
                process = self._running.get(name)
                if process is not None and process.poll() == 0:
                    break
                raise self._failure(name)
            time.sleep(_POLL_S)
        return pid

    def watch(self, streams: Streams, name: str) -> Result:
        output = self._invocation.output
        with watched(output, streams.settings, "Starting Spark") as (watch, stop, received):
            result = streams.run(name, once=self._once, emit=watch, stop=stop, log=self._log)
        return show_outcome(output, result, received)

    @property
    def running(self) -> list[str]:
        """The streams whose processes end with this one."""
        return [name for name, process in self._running.items() if process.poll() is None]

    def wait(self) -> Result:
        """Wait until all processes have ended that end with this one."""
        codes = {name: process.wait() for name, process in self._running.items()}
        failed = [name for name, code in codes.items() if code not in (0, *_STOPPED)]
        errors = [self._failure(name) for name in failed]
        self._running.clear()
        data = None if not errors else {"errors": [error.to_dict() for error in errors]}
        return Result(data=data, errors=errors, exit_code=1 if errors else 0)

    def close(self) -> None:
        """Stop the processes that end with this one, each after its batch."""
        from headrace.shell.shell import Streams

        streams = Streams(self._definitions)
        for name in self.running:
            streams.stop(name)

    def _lives(self, name: str, pid: int) -> bool:
        from headrace.runtime.processes import is_running

        process = self._running.get(name)
        return is_running(pid) if process is None else process.poll() is None

    def _failure(self, name: str) -> StreamNotStartedError:
        log = self._definitions.log(name)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        return StreamNotStartedError(
            f"the stream `{name}` failed",
            facts=[*lines[-_TAIL:], f"log: {log}"],
            remedies=[f'headrace sql -e "DESCRIBE STREAM {name}"'],
            params={"stream": name, "log": str(log)},
        )

    def _options(self) -> list[str]:
        invocation = self._invocation
        given = {"--project": invocation.project, "--profile": invocation.profile}
        options = [part for name, value in given.items() if value is not None for part in (name, str(value))]
        options += [f"--set={key}={value}" for key, value in invocation.overrides.items()]
        return [*options, *(["--once"] if self._once else [])]
