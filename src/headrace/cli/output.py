"""The one way out: commands return values, and an `Output` renders them as text or as JSON."""

from __future__ import annotations

import itertools
import json
import linecache
import logging
import os
import shlex
import shutil
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from headrace.errors import HeadraceError, NotConfirmedError, PlanFailedError, SourceLocation, more_command
from headrace.model.secrets import Redactor
from headrace.model.texts import wrap
from headrace.syntax.ipynb import find_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_INDENT = "  "
_LONGEST = 200  # characters of a line that are shown


def error_lines(error: HeadraceError, folders: Sequence[Path] = (), width: int | None = None) -> list[str]:
    """The error as styled lines. `folders`: where the location's relative path may start; the first that
    holds the file wins."""
    head = click.style(f"error[{error.code}]", fg="red", bold=True)
    lines = wrap(f"{head} {click.style(error.summary, bold=True)}", width, rest="  ")
    if isinstance(error, PlanFailedError):
        for one in error.errors:
            inner = error_lines(one, folders, None if width is None else width - len(_INDENT))
            lines += ["", *(_INDENT + line for line in inner)]
        rest = [*_fact_lines(error.of_all, width), *_remedy_lines(error.of_all, width)]
        return [*lines, *([""] if rest else []), *rest]
    if error.location is not None:
        lines += _place_lines(error.location, folders)
    lines += [*_fact_lines(error, width), *_remedy_lines(error, width)]
    lines.append(click.style(f"  more: {more_command(error.code)}", dim=True))
    return lines


def _fact_lines(error: HeadraceError, width: int | None) -> Iterator[str]:
    for fact in error.facts:
        for line in fact.splitlines():
            yield from wrap(line, width, "  ", "    ")


def _remedy_lines(error: HeadraceError, width: int | None) -> Iterator[str]:
    for index, remedy in enumerate(error.remedies):
        label = click.style("help:", fg="cyan") if index == 0 else "     "
        yield from wrap(remedy, width, f"  {label} ", " " * 8)


def _place_lines(location: SourceLocation, folders: Sequence[Path]) -> list[str]:
    arrow = click.style("-->", fg="blue", bold=True)
    lines = [f"  {arrow} {location}"]
    source = _source_line(location, folders)
    if source is None:
        return lines
    number = str(location.line)
    bar = click.style("|", fg="blue", bold=True)
    gap = " " * (len(number) + 2)
    column = location.column
    if len(source) > _LONGEST:
        cut = max(0, (column or 1) - _LONGEST // 2)
        source = f"{source[cut : cut + _LONGEST]} ..."
        column = None if column is None else column - cut
    # With tabs, the carets would not be below the marked characters.
    lines += [f"{gap}{bar}", f" {click.style(number, fg='blue', bold=True)} {bar} {source.expandtabs(4)}"]
    if column is not None:
        start = len(source[: column - 1].expandtabs(4))
        length = min(location.length or 1, max(1, len(source) - column + 1))
        lines.append(f"{gap}{bar} {' ' * start}{click.style('^' * length, fg='red', bold=True)}")
    return lines


def _source_line(location: SourceLocation, folders: Sequence[Path]) -> str | None:
    if location.path.startswith("<"):
        # Statements that were typed have no file.
        return linecache.getline(location.path, location.line).rstrip() or None
    for folder in (*folders, Path()):
        if (found := find_line(folder / location.path, location.line)) is not None:
            return found.rstrip() or None
        try:
            # The location can be in a data file, which can be large.
            with (folder / location.path).open(encoding="utf-8", errors="replace") as lines:
                found = next(itertools.islice(lines, max(location.line, 1) - 1, None), "")
        except OSError:
            continue
        if found.strip():
            return found.rstrip()
    return None


def redacted(stream: IO[str], redactor: Redactor) -> IO[str]:
    """The stream, with secrets replaced in texts that are written to it."""
    return cast(IO[str], _RedactedStream(stream, redactor))


class _RedactedStream:
    def __init__(self, stream: IO[str], redactor: Redactor) -> None:
        self._stream = stream
        self._redactor = redactor

    def write(self, text: str) -> int:
        self._stream.write(self._redactor(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        # Such as `isatty` and `encoding`.
        return getattr(self._stream, name)


class RedactingFormatter(logging.Formatter):
    def __init__(self, form: str, redactor: Redactor) -> None:
        super().__init__(form)
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor(super().format(record))


PROGRESS_AFTER_S = 2.0  # seconds after which a command shows its progress
_LOOK_S = 0.1


EXIT_CHANGES = 4  # `headrace plan --exit-code`: a run would change something


@dataclass(frozen=True)
class Result:
    data: Mapping[str, Any] | None  # ``None`` for no JSON at the end
    # The same facts as text (with ANSI styles), or a function that gives something `rich` can render; it is
    # called only for text output.
    text: str | Callable[[], str | RenderableType] = ""
    # Errors that are printed after the text; the data has them in its own form.
    errors: Sequence[HeadraceError] = ()
    exit_code: int = 0  # 0 done, 1 failed or not proven, 3 cannot be judged, 4 a run would change something


FORMAT_VERSION = 1  # of the JSON; docs/json.schema.json describes it


def with_version(data: Mapping[str, Any]) -> dict[str, Any]:
    """Add the version of the format, which comes first in each object of the output."""
    return {"format_version": FORMAT_VERSION, **data}


UNCHANGED = Result(data={"done": False}, text="Nothing was changed.", exit_code=1)
"""The result of a command that the user has not confirmed."""


class Output(ABC):
    is_json: bool

    def __init__(
        self, *, stdout: IO[str], stderr: IO[str], debug: bool = False, redactor: Redactor | None = None
    ) -> None:
        self.redactor = redactor or Redactor()
        """Learns the pipeline's secrets, and strikes them out of everything that is written."""
        # JSON is redacted value by value.
        self.stdout = stdout if self.is_json else redacted(stdout, self.redactor)
        self.stderr = redacted(stderr, self.redactor)
        self.debug = debug
        self.folders: list[Path] = []
        """The folder at which paths of error locations start: the pipeline's folder, if it is known."""
        self.typed = "headrace run"
        """The command as the user has typed it."""
        self.options = ""
        """The options of the command line that name the pipeline; remedies repeat them."""

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks on, so that something live may be drawn."""
        return not self.is_json and self.stdout.isatty()

    @property
    def width(self) -> int | None:
        """Characters of a line of the terminal; ``None`` if standard output is no terminal."""
        return shutil.get_terminal_size().columns if self.is_terminal else None

    @abstractmethod
    def result(self, result: Result) -> None:
        """Render what a command returned."""

    @abstractmethod
    def error(self, error: HeadraceError) -> None:
        """Render an error."""

    def note(self, text: str) -> None:
        """One fact on the way: a line for a person, nothing in a JSON document."""
        return

    def line(self, data: Mapping[str, Any]) -> None:
        """One JSON line of a command that reports as it goes; nothing in the text form."""
        return

    def pour(self, lines: Iterable[str], *, at_once: bool) -> None:
        """Print lines as they come; a reader such as `head` may end first."""
        at_once = at_once or self.stdout.isatty()
        try:
            for line in lines:
                self.stdout.write(line + "\n")
                if at_once:
                    self.stdout.flush()
            self.stdout.flush()
        except BrokenPipeError:
            # Caught here: click would make a failure of it.
            discard_stdout()

    def progress(self, title: str) -> AbstractContextManager[None]:
        """Wraps work that may take long."""
        return nullcontext()

    def agrees(self, lines: Iterable[str], question: str, remedy: str) -> bool:
        """Show what a command would do, and ask. `remedy`: the command that does not ask."""
        self.note("\n".join(lines))
        if self.is_json or not (sys.stdin.isatty() and self.stderr.isatty()):
            raise NotConfirmedError(
                "this command asks for confirmation, and it does not run in a terminal",
                facts=[f"the question: {question}", "nothing was done"],
                remedies=[f"to confirm it:   {remedy}"],
                params={"question": question},
            )
        return click.confirm(question, default=False, err=True)


class TextOutput(Output):
    """For a person: plain lines, colours on a terminal."""

    is_json = False

    def console(self) -> Console:
        from rich.console import Console

        from headrace.observe.fitting import UNLIMITED

        if self.stdout.isatty():
            return Console(file=self.stdout, highlight=False)
        # Output to a file or another program is not folded.
        return Console(file=self.stdout, highlight=False, soft_wrap=True, width=UNLIMITED)

    def write(self, text: str, stream: IO[str]) -> None:
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        click.echo(text, file=stream, color=False if plain else None)

    def result(self, result: Result) -> None:
        text = result.text() if callable(result.text) else result.text
        if isinstance(text, str):
            for line in text.splitlines():
                indent = line[: len(line) - len(line.lstrip())]
                for part in wrap(line.lstrip(), self.width, indent, indent + "  "):
                    self.write(part, self.stdout)
        else:
            self.console().print(text)
        for error in result.errors:
            self.error(error)

    def error(self, error: HeadraceError) -> None:
        width = shutil.get_terminal_size().columns if self.stderr.isatty() else None
        if self.debug:
            # The trace is printed below.
            error = error.with_(remedies=[one for one in error.remedies if not one.endswith(" --debug")])
        error = locate_remedies(error, self.options)
        for line in error_lines(error, self.folders, width):
            self.write(line, self.stderr)
        if self.debug:
            click.echo(_trace(error), file=self.stderr)

    def note(self, text: str) -> None:
        click.echo(text, file=self.stderr)

    @contextmanager
    def progress(self, title: str) -> Iterator[None]:
        if not self.stderr.isatty():
            yield
            return
        done = threading.Event()
        thread = threading.Thread(target=self._spin, args=(title, done), daemon=True, name="progress")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _spin(self, title: str, done: threading.Event) -> None:
        if done.wait(PROGRESS_AFTER_S):
            return
        from rich.console import Console

        from headrace.runtime.fetch import FETCHING

        console = Console(file=self.stderr)
        while not done.wait(_LOOK_S):
            # No spinner is shown while a download shows its progress.
            if not FETCHING.is_set():
                with console.status(title, spinner="line" if console.options.ascii_only else "dots"):
                    while not (FETCHING.is_set() or done.wait(_LOOK_S)):
                        pass


class JsonOutput(Output):
    """For machines: one document, or one line for each event; errors too, on standard output."""

    is_json = True

    def result(self, result: Result) -> None:
        if result.data is not None:
            self._write(result.data, indent=2)

    def error(self, error: HeadraceError) -> None:
        fields = locate_remedies(error, self.options).to_dict()
        if self.debug:
            fields["trace"] = _trace(error)
        self._write({"error": fields})

    def line(self, data: Mapping[str, Any]) -> None:
        self._write(data)

    def _write(self, data: Mapping[str, Any], indent: int | None = None) -> None:
        # Whatever is no JSON value becomes text first, so that nothing gets around the redactor; it
        # works on the values, since a secret such as `error` must not break the document.
        plain = json.loads(json.dumps(with_version(data), default=str))
        text = json.dumps(self.redactor.data(plain), indent=indent, ensure_ascii=False)
        self.stdout.write(text + "\n")
        self.stdout.flush()


def discard_stdout() -> None:
    """Discard further output; otherwise Python reports a closed pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


_WITHOUT_PIPELINE = {"completion", "demo", "engine", "explain", "init"}


def named_options(given: Mapping[str, Path | str | None]) -> str:
    """The options that a user has typed to name a pipeline, as they are typed in the same folder."""
    words = []
    for name, value in given.items():
        if isinstance(value, Path) and value.is_relative_to(Path.cwd()):
            value = Path(os.path.relpath(value))
        if value is not None:
            words += [f"--{name}", shlex.quote(str(value))]
    return " ".join(words)


def locate_remedies(error: HeadraceError, options: str) -> HeadraceError:
    """The error with these options in each command of its remedies: without them, the command would act on
    another pipeline, or on the shared broker."""
    if not options:
        return error
    located = error.with_(remedies=[_locate(one, options) for one in error.remedies])
    if isinstance(located, PlanFailedError):
        return located.with_errors(locate_remedies(one, options) for one in located.errors)
    return located


def _locate(remedy: str, options: str) -> str:
    _, _, command = remedy.rpartition(":   ")
    words = command.split()
    is_command = words[:1] == ["headrace"] and len(words) > 1 and words[1] not in _WITHOUT_PIPELINE
    is_plain = not set(command) & set("|;&`()")
    if not (is_command and is_plain) or any(word.startswith(("--project", "--spec")) for word in words):
        return remedy
    return f"{remedy} {options}"
