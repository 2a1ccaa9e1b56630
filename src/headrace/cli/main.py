"""The command line: finds the command, and turns whatever it raises into one clear message."""

from __future__ import annotations

import atexit
import codecs
import contextlib
import gc
import importlib
import io
import json
import logging
import os
import platform
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from types import FrameType
from typing import IO, NoReturn

import click

from headrace import errors
from headrace.cli.output import JsonOutput, Output, RedactingFormatter, Result, TextOutput, discard_stdout
from headrace.errors import GONE, HeadraceError, first_line, nearest, text_of
from headrace.model.secrets import Redactor

_PLAIN = {
    "✓": "ok", "✗": "FAIL", "⚡": "!", "→": "->", "≠": "!=", "×": "x", "…": "...", "·": "-", "–": "-",  # noqa: RUF001
    "─": "-", "│": "|", "├": "+", "└": "+", "┬": "+", "▶": ">",
}  # fmt: skip
"""The characters of our own texts. The characters of users' data become escapes."""


def replace_unencodable(stream: IO[str], *, is_json: bool) -> None:
    """Make a stream write a replacement for each character that its encoding lacks. `is_json`: whether JSON
    is written, whose escapes lose nothing."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors=_JSON if is_json else _TEXT)


def _as_text(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    plain = "".join(_PLAIN.get(one) or one.encode("ascii", "backslashreplace").decode() for one in lacking)
    return plain, error.end


def _as_json(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


_TEXT, _JSON = "headrace.text", "headrace.json"
codecs.register_error(_TEXT, _as_text)
codecs.register_error(_JSON, _as_json)


GROUPS = {
    "Start": {
        "init": "Write a new pipeline",
        "infer": "Infer the schema of a topic or folder",
        "ingest": "Create a table from a topic, without a pipeline file",
        "demo": "Run an example, kill it in mid-run, and verify the result",
    },
    "Run": {
        "plan": "Show what a run would do; writes nothing",
        "preview": "Show rows of a query, without a run",
        "run": "Bring the tables up to date, once or continuously",
        "submit": "Run the pipeline with spark-submit",
        "deploy": "Write files for systemd, compose or Kubernetes",
    },
    "Inspect": {
        "status": "Show datasets, flows, lag and freshness",
        "ui": "Show the pipelines of a storage in a browser",
        "verify": "Verify that every record was processed exactly once",
        "read": "Show rows of a table",
        "tables": "List the tables of the storage, or describe one table",
        "sql": "Run SQL statements, and streams into tables",
        "lineage": "Show the origin of columns, and the columns computed from them",
        "events": "Print the event log",
        "quality": "Show the counts of expectations",
        "alerts": "Show, check or test the alerts",
    },
    "Repair": {
        "quarantine": "Show rejected rows, and replay or discard them",
        "reset": "Create a new checkpoint for a flow, and keep the rows",
        "full-refresh": "Rebuild a dataset from its sources",
        "checkpoint": "Show the checkpoints of flows",
    },
    "Maintain tables": {
        "maintain": "Compact and vacuum tables, and clean their logs",
        "pin": "Keep a version of a table readable for a time",
        "erase": "Delete rows of a table and of the tables downstream",
        "storage": "Copy the storage to a bucket or a folder",
    },
    "Kafka topics": {
        "produce": "Write records to a topic",
        "consume": "Print the records of a topic",
        "broker": "Manage the embedded Kafka broker",
    },
    "This machine": {
        "doctor": "Check whether this machine can run a pipeline",
        "engine": "Manage the JVM in the background",
        "explain": "Explain an error code",
        "completion": "Print the script that completes commands in a shell",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
_MODULES = {
    "completion": "explain",
    "consume": "produce",
    "demo": "init",
    "engine": "doctor",
    "erase": "maintain",
    "full-refresh": "refresh",
    "pin": "maintain",
    "preview": "plan",
    "quality": "events",
    "read": "tables",
    "reset": "refresh",
}
"""The modules of `headrace.cli.commands` with several commands; the others are called as their command."""
ALIASES = {"dry-run": "plan", "refresh": "run"}  # commands of other platforms, with ours
_GARBAGE = 50_000  # so many new objects let Python look for garbage; by default, 700
_END_S = 15.0  # seconds that a command gets to clean up after the signal that ends it
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM has come; unwinds like `KeyboardInterrupt`, so that everything started is ended."""


def load_command(name: str) -> click.Command:
    """A command by its name; only its module is imported."""
    module = importlib.import_module(f"headrace.cli.commands.{_MODULES.get(name, name)}")
    command: click.Command = getattr(module, name.replace("-", "_"))
    return command


class LazyCommands(click.Group):
    """The commands of the table, of which only the called one is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in {**COMMANDS, **ALIASES} and not name.startswith("-") and not ctx.resilient_parsing:
            close = nearest(name, COMMANDS)
            raise errors.CommandLineError(
                f"there is no command `{name}`",
                remedies=[
                    *([f"did you mean headrace {close}?"] if close else ()),
                    "list the commands:   headrace --help",
                ],
                params={"command": name, "possibilities": [close] if close else []},
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, group in GROUPS.items():
            with formatter.section(title):
                # The texts of all groups begin at one column.
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in group.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Start here"):
            formatter.write_dl(
                [
                    ("headrace demo", "run an example on a real broker"),
                    ("headrace init shop", "write a new pipeline"),
                ]
            )


def _show_versions(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    versions = find_versions()
    output: Output = ctx.obj
    names = {"headrace": "headrace", "spark": "Spark", "delta": "Delta Lake", "kafka": "Kafka broker"}
    names |= {"kafka_clients": "Kafka clients", "java": "Java"}
    lines = [f"{names[name]} {found or 'not found: headrace doctor'}" for name, found in versions.items()]
    output.result(Result(data=versions, text="\n  ".join(lines)))
    ctx.exit()


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Turn Kafka topics into Delta tables: declared, exactly once, verified.",
)
@click.option("--json", is_flag=True, expose_value=False, help="Print the result as JSON.")
@click.option("--debug", is_flag=True, expose_value=False, help="Print the stack trace of an error.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_versions,
    help="Show the versions of Headrace, Spark, Delta Lake, Kafka and Java.",
)
def headrace() -> None:
    pass


def main() -> None:
    # Imports create many objects that stay. Looking for garbage among them takes a tenth of an import.
    gc.set_threshold(_GARBAGE, 10, 10)
    output = build_output(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            replace_unencodable(stream, is_json=output.is_json)
    set_up_logging(output.redactor, debug=output.debug)
    # A command can handle its first signal itself. Signals that reach these handlers end the process.
    signal.signal(signal.SIGINT, _end_process)
    signal.signal(signal.SIGTERM, _end_process)
    code = run(sys.argv[1:], output)
    if code in (EXIT_INTERRUPTED, EXIT_TERMINATED):
        _leave(code)
    sys.exit(code)


def run(arguments: Sequence[str], output: Output | None = None) -> int:
    output = output or build_output(arguments)
    output.typed = shlex.join(["headrace", *arguments])
    if signal.getsignal(signal.SIGTERM) is not _end_process:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        # What the user's files print must not end up inside a JSON document.
        with contextlib.redirect_stdout(output.stderr if output.is_json else output.stdout):
            result = headrace.main(list(arguments), prog_name="headrace", standalone_mode=False, obj=output)
        if isinstance(result, Result):
            output.result(result)
            return result.exit_code
        return result if isinstance(result, int) else 0
    except HeadraceError as error:
        output.error(error)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), file=output.stdout)
        return 2 if error.ctx is not None and error.ctx.parent is not None else 0
    except click.UsageError as error:
        output.error(_usage_error(error))
        return errors.CommandLineError.exit_code
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except Terminated:
        return EXIT_TERMINATED
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough.
        discard_stdout()
        return 0
    except Exception as error:
        if (code := _signal_behind(error)) is not None:
            return code
        known = _driver_lost(error) or _log_damaged(error)
        output.error(known or _internal_error(error, output.redactor))
        return errors.InternalError.exit_code


def build_output(arguments: Sequence[str]) -> Output:
    """The output for the options of the command line, before they are parsed."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    form = JsonOutput if "--json" in options else TextOutput
    # A closed stream is None in Python; what nobody reads goes nowhere.
    nowhere = io.StringIO()
    return form(stdout=sys.stdout or nowhere, stderr=sys.stderr or nowhere, debug="--debug" in options)


def _signal_behind(error: BaseException | None) -> int | None:
    """The exit code of a signal that has broken off what then failed while it was cleaned up."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return EXIT_INTERRUPTED
        if isinstance(error, Terminated):
            return EXIT_TERMINATED
        error = error.__context__
    return None


def _driver_lost(error: BaseException | None) -> HeadraceError | None:
    while error is not None:
        if type(error).__name__ == "Py4JNetworkError" or text_of(error) == GONE:
            from headrace.run.failures import driver_lost

            return driver_lost()
        error = error.__cause__ or error.__context__
    return None


def _log_damaged(error: BaseException) -> HeadraceError | None:
    from headrace.storage.log_damage import find_damage_named

    with contextlib.suppress(OSError, HeadraceError):
        return find_damage_named(text_of(error))
    return None


def set_up_logging(redactor: Redactor, *, debug: bool) -> None:
    """Warnings go to the error stream, but not py4j's traces: the error that follows explains a closed
    connection."""
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter("%(levelname)s %(name)s: %(message)s", redactor))
    if not debug:
        handler.addFilter(lambda record: "py4j" not in PurePath(record.pathname).parts)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise Terminated


def _leave(code: int) -> NoReturn:
    """End the process after a signal. The exit handlers run; Python itself is not taken down. A thread of
    PySpark or of a native library that still works would end it with `PyGILState_Release`, a fatal error."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    timer = threading.Timer(_END_S, os._exit, (code,))
    timer.daemon = True
    timer.start()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _end_process(number: int, frame: FrameType | None) -> None:
    """Interrupt the command; after `_END_S` the process ends."""
    timer = threading.Timer(_END_S, _exit, (128 + number,))
    timer.daemon = True
    timer.start()
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated


def _exit(code: int) -> None:
    """End the process. The next start replays a batch that was not committed."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"the command had not ended {_END_S:.0f} s after the signal, and was ended\n")
        sys.stderr.flush()
    os._exit(code)


def _usage_error(error: click.UsageError) -> errors.CommandLineError:
    """What click found wrong, in our form."""
    command = error.ctx.command_path if error.ctx is not None else "headrace"
    page = f"see the options:   {command} --help"
    possible: Sequence[str] = getattr(error, "possibilities", None) or ()
    summary = error.message or error.format_message()
    if isinstance(error, click.BadParameter | click.MissingParameter) or not summary:
        summary = error.format_message()
    summary = summary.split("\n")[0].rstrip(".")
    return errors.CommandLineError(
        summary[:1].lower() + summary[1:],
        remedies=[*(f"did you mean {name}?" for name in possible[:1]), page],
        params={"command": command, "possibilities": list(possible)},
    )


def _internal_error(error: Exception, redactor: Redactor) -> errors.InternalError:
    """The error for an unexpected exception: short on the screen, with its stack trace in a file."""
    kept = _write_trace(error, redactor)
    text = first_line(error)[:200]
    failure = errors.InternalError(
        "Headrace failed with an unexpected exception",
        facts=[f"{type(error).__name__}: {text}" if text else type(error).__name__],
        remedies=[
            f"please report this bug with {kept}"
            if kept
            else "please report this bug with the stack trace that --debug prints"
        ],
        params={"exception": type(error).__name__, "log": kept},
    )
    failure.__cause__ = error
    return failure


def _write_trace(error: Exception, redactor: Redactor) -> str | None:
    from headrace.runtime.places import logs_folder

    now = datetime.now(UTC)
    file = logs_folder() / f"error-{now:%Y%m%dT%H%M%S}-{os.getpid()}.log"
    machine = f"Python {platform.python_version()}, {platform.platform()}"
    lines = [f"headrace {sys.argv[1:]}\n{machine}\n", *traceback.format_exception(error)]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(redactor("".join(lines)), encoding="utf-8")
    except OSError:
        return None
    return str(file)


def find_versions() -> Mapping[str, str | None]:
    """The versions by name; `None` for a Java that was not found."""
    from importlib.metadata import version

    from headrace.runtime.jars import find_java, locked_jars

    jars = {
        name.partition("_")[0]: jar.coordinate.version
        # The jars of the broker have another version of the client.
        for jar in locked_jars("broker", "spark")
        for name in [jar.coordinate.artifact]
    }
    try:
        java = find_java()
        running = f"{java.version} ({java.origin})"
    except errors.JavaUnsuitableError:
        running = None
    return {
        "headrace": version("headrace"),
        "spark": version("pyspark"),
        "delta": jars["delta-spark"],
        "kafka": jars["kafka"],
        "kafka_clients": jars["kafka-clients"],
        "java": running,
    }
