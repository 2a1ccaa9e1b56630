"""A walk of one error: a mistake, the error that a command shows, its remedy as printed, a healthy pipeline.

With WALKED=FILE in the environment, each walk appends its transcript to that file.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from headrace.cli import main
from headrace.cli.output import TextOutput
from headrace.run.failpoints import FAIL_VARIABLE

if TYPE_CHECKING:
    from remedies.folders import Folder

VARIABLE = "WALKED"

Files = Mapping[str, str | None]
"""Texts by path in the pipeline's folder; None removes a file. `{spec}` is the text of the healthy spec,
`{topic}` the topic of the pipeline."""

# Errors of one plan are printed one below the other, each with its helps.
_HELP = re.compile(r"^( +)help: (.+(?:\n\1 {6}.+)*)", re.MULTILINE)
COMMAND = re.compile(r"`(headrace [^`]+)`|(?:^|   )(headrace .+)$")
_MEANT = re.compile(r"did you mean `?([^`?\s]+)`?|write `([^`]+)`")
_ERRORS = 3  # errors in a row, each of which names the next remedy
_SHOWN = 12  # lines of a command that went well, in a transcript


class Recorder(TextOutput):
    """Keeps what a person would see, who answers each question with yes."""

    def __init__(self) -> None:
        self.screen = io.StringIO()
        super().__init__(stdout=self.screen, stderr=self.screen)

    def agrees(self, lines: Iterable[str], question: str, remedy: str) -> bool:
        self.note("\n".join([*lines, f"{question} [y/N]: y"]))
        return True


class Unattended(Recorder):
    """Keeps what a command prints that nobody can answer."""

    agrees = TextOutput.agrees


@dataclass(frozen=True)
class Shown:
    """What a command has printed."""

    command: str
    exit_code: int
    text: str

    @property
    def remedies(self) -> list[str]:
        """The lines of all helps."""
        return [line.strip() for _, found in _HELP.findall(self.text) for line in found.splitlines()]

    @property
    def commands(self) -> list[str]:
        """The commands that the helps name, as printed."""
        found = (COMMAND.search(line) for line in self.remedies)
        return [one[1] or one[2] for one in found if one is not None]

    @property
    def suggestions(self) -> list[str]:
        """The names that the helps suggest."""
        return [one[0] or one[1] for line in self.remedies for one in _MEANT.findall(line)]


@dataclass
class Walk:
    """What a situation does with a healthy pipeline.

    Args:
        code: The code of the error that the situation shows.
    """

    code: str
    folder: Folder
    lines: list[str] = field(default_factory=list)

    # Mistakes and edits.

    def edit(self, files: Files) -> None:
        """Write or remove files."""
        for path, raw in files.items():
            text = raw and raw.replace("{spec}", self.folder.spec()).replace("{topic}", self.folder.topic)
            before = self.folder.read(path)
            self.folder.write(path, text)
            self._note_edit(path, before, text)

    def replace(self, path: str, old: str, new: str) -> None:
        """Replace a text of a file."""
        text = self.folder.read(path)
        assert text is not None and old in text, (path, old, text)
        self.edit({path: text.replace(old, new)})

    def does(self, what: str) -> None:
        """Note in the transcript what is done by hand."""
        self.lines.append(f"# {what}")

    def removes(self, path: Path) -> None:
        """Remove a file or a folder."""
        self.does(f"removed: {self._shown(path)}")
        _forget_logs()
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    def keeps(self, path: Path) -> Path:
        """Copy a file or a folder, as a backup does."""
        self.does(f"a backup: {self._shown(path)}")
        backup = self.folder.root / "backup" / path.name
        backup.parent.mkdir(exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, backup)
        return backup

    def restores(self, backup: Path, path: Path) -> None:
        """Move a backup to its old path."""
        self.does(f"restored from the backup: {self._shown(path)}")
        _forget_logs()
        if path.is_dir():
            shutil.rmtree(path)
        backup.replace(path)

    def breaks(self, path: Path, content: bytes = b"{half") -> None:
        """Write other bytes into a file."""
        self.does(f"damaged: {self._shown(path)}")
        _forget_logs()
        path.write_bytes(content)

    def stops_at(self, point: str, command: str = "headrace run") -> None:
        """Run a command whose process ends at a point of `run/failpoints.py`: flow/point:batch."""
        self.does(f"the process ends at {point}")
        os.environ[FAIL_VARIABLE] = point
        try:
            shown = self.types(command)
        finally:
            unfired = os.environ.pop(FAIL_VARIABLE, None)
        assert unfired is None, f"the run has not reached {point}:\n{shown.text}"

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self.folder.root))

    # Commands.

    def types(
        self, command: str, *, unattended: bool = False, environment: Mapping[str, str] | None = None
    ) -> Shown:
        """Run a command in the pipeline's folder."""
        first, *arguments = shlex.split(command)
        assert first == "headrace", command
        output = Unattended() if unattended else Recorder()
        output.debug = "--debug" in arguments
        with contextlib.chdir(self.folder.root), pytest.MonkeyPatch.context() as patch:
            for name, value in (environment or {}).items():
                patch.setenv(name, value)
            exit_code = main.run(arguments, output)
        shown = Shown(command, exit_code, output.screen.getvalue().replace(str(self.folder.root), "."))
        self._note_command(shown)
        return shown

    def fails(self, command: str = "headrace plan", at: str = "", **how: Any) -> Shown:
        """Run a command that shows the error of this situation, with its location."""
        shown = self.types(command, **how)
        assert shown.exit_code != 0, shown.text
        assert f"[{self.code}]" in shown.text, shown.text
        assert at in shown.text, (at, shown.text)
        # A sentence that says what a value must be is its own help.
        assert shown.remedies or " must " in shown.text, f"the error has no help:\n{shown.text}"
        return shown

    def follows(self, shown: Shown, start: str = "headrace") -> Shown:
        """Run the first printed command that starts like this, exactly as it is printed."""
        command = next((one for one in shown.commands if one.startswith(start)), None)
        assert command is not None, (start, shown.text)
        assert not any(re.fullmatch("[A-Z_]{3,}", word) for word in shlex.split(command)), (
            f"not complete: {command}"
        )
        return self.goes_well(command)

    def enters(self, shown: Shown, start: str) -> None:
        """Run the printed command of the system that starts like this, exactly as it is printed."""
        found = (one.rpartition(":   ")[2] for one in shown.remedies)
        command = next((one for one in found if one.startswith(start)), None)
        assert command is not None, (start, shown.text)
        self.lines.append(f"$ {command}")
        subprocess.run(shlex.split(command), cwd=self.folder.root, check=True)

    def heals(self, shown: Shown) -> None:
        """Follow the first command of each error until one goes well; then the pipeline must be healthy."""
        for _ in range(_ERRORS):
            assert shown.commands, f"the error names no command:\n{shown.text}"
            shown = self.types(shown.commands[0])
            if shown.exit_code == 0:
                break
        self.is_healthy()

    def goes_well(self, command: str, **how: Any) -> Shown:
        shown = self.types(command, **how)
        assert shown.exit_code == 0, shown.text
        return shown

    def is_healthy(self) -> None:
        """Run, look and verify; the tables have the rows of their sources."""
        self.goes_well("headrace run")
        status = self.goes_well("headrace status")
        assert "failed" not in status.text, status.text
        self.goes_well("headrace verify")
        found = self.folder.rows()
        assert found == self.folder.expected(), (found, self.folder.expected())
        self.lines.append("# healthy: the tables have the rows of their sources")

    # The transcript.

    def _note_edit(self, path: str, before: str | None, after: str | None) -> None:
        if after is None:
            self.lines.append(f"# {path} is removed")
            return
        old, new = (before or "").splitlines(), after.splitlines()
        changes = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
        self.lines += [f"# {path}:", *(f"    {line}" for line in changes if not line.startswith("@@"))]

    def _note_command(self, shown: Shown) -> None:
        lines = shown.text.rstrip().splitlines()
        if shown.exit_code == 0 and len(lines) > _SHOWN:
            lines = [*lines[:_SHOWN], f".. {len(lines) - _SHOWN} more lines"]
        ended = [] if shown.exit_code == 0 else [f"(exit code {shown.exit_code})"]
        self.lines += [f"$ {shown.command}", *lines, *ended]


def _forget_logs() -> None:
    """Let Delta forget the logs of tables, as between the processes of a user's commands."""
    SparkSession.active()._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


@dataclass(frozen=True)
class Situation:
    code: str
    title: str
    kind: str  # the name of the pipeline that it needs, in `folders.KINDS`
    walk: Callable[[Walk], None]
    spoils: bool = False  # whether it leaves something that other situations must not see

    @property
    def id(self) -> str:
        return f"{self.code}-{self.title.replace(' ', '_')}"

    def take(self, folder: Folder) -> None:
        """Walk, and write the transcript, also of a walk that fails."""
        walk = Walk(self.code, folder)
        try:
            self.walk(walk)
        except BaseException as error:
            walk.lines.append(f"# THE WALK FAILED: {str(error).splitlines()[0] if str(error) else error!r}")
            raise
        finally:
            if os.environ.get(VARIABLE):
                with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
                    file.write("\n".join([f"== {self.code}: {self.title}", *walk.lines, "", ""]))


SITUATIONS: list[Situation] = []


def situation(
    code: str, kind: str = "files", *, spoils: bool = False
) -> Callable[[Callable[[Walk], None]], Callable[[Walk], None]]:
    """Declares a function as the walk of an error; its name is the title."""

    def add(walk: Callable[[Walk], None]) -> Callable[[Walk], None]:
        SITUATIONS.append(Situation(code, walk.__name__.replace("_", " "), kind, walk, spoils))
        return walk

    return add


def mistake(
    code: str,
    title: str,
    wrong: Files,
    *rights: Files | str,
    at: tuple[str, str] | str = "",
    command: str = "headrace plan",
    names: str = "",
    kind: str = "files",
) -> None:
    """Declares a mistake in the pipeline's files, which the user corrects as the help says.

    Args:
        rights: The corrected files of each help; or the misspelt word, for which the suggestion is written;
            none if the help says to undo what was written.
        at: The location of the error: a file and a text of the line that the error names.
        names: What the printed error must name, so that the user knows this correction.
    """

    def walk(walk: Walk) -> None:
        touched = {*wrong, *(path for right in rights if isinstance(right, Mapping) for path in right)}
        before = {path: walk.folder.read(path) for path in touched}
        walk.edit(wrong)
        shown = walk.fails(command, line_of(walk.folder, *at) if isinstance(at, tuple) else at)
        assert names in shown.text, (names, shown.text)
        undone: Files = {path: before[path] for path in wrong}
        for number, right in enumerate(rights or (undone,)):
            if number:
                walk.edit(wrong)
            if isinstance(right, str):
                assert shown.suggestions, f"no suggestion:\n{shown.text}"
                meant = shown.suggestions[0]
                word = rf"(?<!\w){re.escape(right)}(?!\w)"
                right = {path: text and re.sub(word, meant, text) for path, text in wrong.items()}
            walk.edit(right)
            walk.goes_well(command)
            for path, text in before.items():
                walk.folder.write(path, text)

    SITUATIONS.append(Situation(code, title, kind, walk))


def line_of(folder: Folder, path: str, text: str) -> str:
    """The location of the first line with a text."""
    lines = (folder.read(path) or "").splitlines()
    number = next(number for number, line in enumerate(lines, 1) if text in line)
    return f"{path}:{number}"
