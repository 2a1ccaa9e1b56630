"""The interactive shell of `headrace sql`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from headrace.cli.output import Output
from headrace.errors import HeadraceError
from headrace.model.secrets import is_secret_key
from headrace.runtime.places import cache_folder
from headrace.shell.completion import Names, NamesCompleter, is_complete
from headrace.shell.queries import Answer
from headrace.syntax.tokens import SqlTokenError, tokenize

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
        """Write a statement to the file."""
        if not _has_secret(string):
            super().store_string(string)


class Prompt:
    """Reads statements, and runs them until the user leaves."""

    def __init__(
        self, output: Output, names: Names, run: Callable[[str], object], show: Callable[[Answer], None]
    ) -> None:
        self._output = output
        self._names = names
        self._run = run
        self._show = show
        self._session: PromptSession[str] = PromptSession(
            history=History(cache_folder() / "sql_history"),
            completer=NamesCompleter(names),
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
