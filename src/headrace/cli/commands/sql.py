"""`headrace sql`: SQL statements over the tables of the storage, and streams."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.logs import log_options
from headrace.cli.output import Result
from headrace.cli.rows import RowsTable
from headrace.cli.stream_processes import StreamProcesses
from headrace.cli.verb import Invocation, verb
from headrace.errors import CommandLineError
from headrace.model.texts import counted

if TYPE_CHECKING:
    from rich.console import Group

    from headrace.model.project import LogFormat, LogLevel
    from headrace.observe.log import LogSettings
    from headrace.shell.queries import Answer
    from headrace.shell.shell import Shell, Streams

_TYPED = "<sql>"
"""The path of statements that are not in a file, in the locations of errors."""


@verb(
    examples=(
        "headrace sql",
        'headrace sql -e "SELECT customer, sum(amount) FROM orders GROUP BY customer"',
        "headrace sql -f job.sql",
        "headrace sql -f job.sql --detach",
        'headrace sql -e "SHOW STREAMS"',
    )
)
@click.option("-e", "--execute", "typed", multiple=True, metavar="SQL", help="Run these statements.")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Run the statements of a file; - is standard input.",
)
@click.option("--detach", is_flag=True, help="Keep the streams running after the command has ended.")
@click.option("--once", is_flag=True, help="Process the records that exist now, then end each stream.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="The maximum number of rows that a query prints.",
)
@click.option("--stream", hidden=True, metavar="NAME")
@log_options
def command(
    invocation: Invocation,
    typed: tuple[str, ...],
    files: tuple[Path, ...],
    detach: bool,
    once: bool,
    limit: int,
    stream: str | None,
    log_level: LogLevel | None,
    log_format: LogFormat | None,
) -> Result:
    """Run SQL statements: queries, and streams into tables.

    Without -e and -f, the command opens an interactive shell: \\? lists its commands, and Ctrl-D closes it.

    Queries can read the tables of the storage, and the tables and scans that CREATE TABLE .. USING kafka and
    CREATE SCAN define. CREATE STREAM .. INSERT INTO starts a stream in a separate process. This process ends
    with the command, unless --detach is given. SHOW STREAMS, DESCRIBE STREAM, STOP STREAM and DROP STREAM
    work on all streams of the storage, no matter which command started them.
    """
    from headrace.observe.log import LogSettings
    from headrace.shell.definitions import Definitions
    from headrace.shell.shell import Shell, Streams

    log = LogSettings.of(log_format, log_level)
    settings = invocation.settings_anywhere()
    if stream is not None:
        return run_stream(invocation, Streams(Definitions(settings)), stream, log, once=once)
    if not (typed or files) and not sys.stdin.isatty():
        files = (Path("-"),)
    processes = StreamProcesses(invocation, Definitions(settings), detached=detach, once=once)
    with closing(Shell(settings, processes.start, limit)) as shell, closing(processes):
        if not (typed or files):
            return _interact(invocation, shell, processes, log, once=once)
        for path, text in _texts(files, typed):
            code = _run(invocation, shell, processes, path, text, log, once=once)
            if code:
                return Result(data=None, exit_code=code)
        return processes.wait()


def _interact(
    invocation: Invocation, shell: Shell, processes: StreamProcesses, log: LogSettings, *, once: bool
) -> Result:
    """Read statements from the terminal until the user leaves."""
    from headrace.cli.sql_prompt import Prompt
    from headrace.shell.completion import Names

    def run(text: str) -> None:
        _run(invocation, shell, processes, *remember(text), log, once=once)

    output = invocation.output
    output.note(f"storage {shell.definitions.settings.storage.root} · \\? for help")
    Prompt(output, Names(shell.definitions), run, lambda answer: show_answer(invocation, answer)).loop()
    if running := processes.running:
        output.note(f"stopping {', '.join(running)}")
    return Result(data=None)


def _texts(files: tuple[Path, ...], typed: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each text with its path."""
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
                params={"command": "headrace sql", "file": str(file)},
            ) from error
    for text in typed:
        yield remember(text)


def remember(text: str) -> tuple[str, str]:
    """The path of a text that is not in a file, and the text; errors can then show its lines."""
    linecache.cache[_TYPED] = (len(text), None, text.splitlines(keepends=True), _TYPED)
    return _TYPED, text


def _run(
    invocation: Invocation,
    shell: Shell,
    processes: StreamProcesses,
    path: str,
    text: str,
    log: LogSettings,
    *,
    once: bool,
) -> int:
    """Run the statements of a text; returns the exit code of one that failed."""
    from headrace.cli.watching import spark_starting
    from headrace.declare.sql_files import split_text

    output = invocation.output
    for statement in split_text(text, path):
        with spark_starting(output, "Running the statement"):
            answer = shell.execute(statement)
        if answer.run is None:
            show_answer(invocation, answer)
        elif processes.detached:
            pid = processes.start(answer.run)
            output.note(f"stream {answer.run} started: pid {pid}")
        else:
            result = run_stream(invocation, shell.streams, answer.run, log, once=once)
            output.result(result)
            if result.exit_code:
                return result.exit_code
    return 0


def run_stream(
    invocation: Invocation, streams: Streams, name: str, log: LogSettings, *, once: bool
) -> Result:
    """Run a stream in this process, and show its batches."""
    from headrace.cli.watching import Watch, show_outcome, stopping
    from headrace.run.stop import StopSignal

    stop = StopSignal()
    with (
        Watch(invocation.output, streams.settings, "Starting Spark") as watch,
        stopping(stop, watch) as received,
    ):
        result = streams.run(name, once=once, emit=watch, stop=stop, log=log)
    return show_outcome(invocation.output, result, received)


def show_answer(invocation: Invocation, answer: Answer) -> None:
    """Print the rows of a statement, or its note."""
    from headrace.observe.read import rows_to_json

    output = invocation.output
    if answer.columns:
        output.line({**rows_to_json(answer.columns, answer.types, answer.rows), "cut": answer.is_cut})
    else:
        output.line({"note": answer.note})
    if not output.is_json:
        output.result(Result(data=None, text=lambda: _rendered(answer)))


def _rendered(answer: Answer) -> str | Group:
    from rich.console import Group
    from rich.text import Text

    if not answer.columns:
        return answer.note
    more = "; use --limit to see more" if answer.is_cut else ""
    table = RowsTable(answer.columns, answer.types, answer.rows)
    return Group(table, Text(f"{counted(len(answer.rows), 'row')}{more}", style="dim"))
