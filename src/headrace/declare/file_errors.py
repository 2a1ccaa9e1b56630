"""The errors of exceptions that a pipeline's files raise while they are loaded, and missing packages."""

from __future__ import annotations

import linecache
import re
import shlex
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import headrace
from headrace import errors
from headrace.errors import HeadraceError, SourceLocation
from headrace.model.notes import suggestions, wrong_call
from headrace.model.project import ProjectSettings, code_language
from headrace.storage.mapped_files import find_unmapped
from headrace.syntax.ipynb import InvalidNotebookError, cell_file, parse_notebook, python_cells
from headrace.syntax.locations import argument_location, display_path, function_at, is_installed

_AUTO_CDC = "create_auto_cdc_flow"
_HEADRACE = Path(headrace.__file__).parent
_LOADED_FIRST = (
    "read a table of the pipeline inside of a query function: files are loaded before tables are known"
)
_SHOWN_LINES = 6  # the lines of an exception's text that the error shows; Spark's texts can be very long


def build_file_error(
    error: BaseException,
    file: Path,
    settings: ProjectSettings,
    packages: Callable[[], Mapping[str, SourceLocation]],
) -> HeadraceError:
    shown = display_path(file, settings.root)
    location = _location(error, file, settings.root)
    if (unmapped := find_unmapped(error, settings, location)) is not None:
        return unmapped
    if any(frame.name == _AUTO_CDC for frame in traceback.extract_tb(error.__traceback__)):
        # Spark's own function needs packages of Spark Connect before it asks the registry.
        return errors.FeatureUnsupportedError(
            "this version does not support AUTO CDC flows", location=location, params={"what": _AUTO_CDC}
        )
    if (invalid := _invalid_argument(error, settings.root)) is not None:
        return invalid
    # The text of a KeyError is only the key's repr.
    text = f"key {error} does not exist" if isinstance(error, KeyError) else str(error)
    first, *rest = text.splitlines() or [""]
    kind = type(error).__name__
    remedies = suggestions(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        rest, remedies = missing_package(error.name, packages())
    if "[TABLE_OR_VIEW_NOT_FOUND]" in first:
        # The rest names Spark's catalog and the parts of its plan.
        rest, remedies = [], [_LOADED_FIRST]
    if isinstance(error, SyntaxError):
        summary = f"{location.path} is not valid Python: {error.msg}"
        rest = []
    elif isinstance(error, SystemExit):
        summary = f"{shown} ended the program: {kind}({error.code!r})"
    else:
        summary = f"{shown} raised {kind}" + (f": {first}" if first else "")
    return errors.PipelineFileFailedError(
        summary,
        location=location,
        facts=[line for line in rest if line.strip()][:_SHOWN_LINES],
        remedies=remedies or [f"correct {location}; --debug prints the stack trace"],
        params={"path": shown, "exception": kind},
    )


def _invalid_argument(error: BaseException, root: Path) -> errors.ArgumentInvalidError | None:
    """The error for a call of one of our functions that Python refuses for its arguments."""
    call = wrong_call(error)
    frames = traceback.TracebackException.from_exception(error).stack
    while frames and Path(frames[-1].filename).is_relative_to(_HEADRACE):
        frames.pop()
    if call is None or not frames or not _is_users(frames[-1].filename) or frames[-1].lineno is None:
        return None
    file, line, start = frames[-1].filename, frames[-1].lineno, frames[-1].colno
    lines = linecache.getlines(file)
    name = function_at(lines, (line, frames[-1].end_lineno, start, frames[-1].end_colno)) or call.function
    is_decorator = bool(lines) and lines[line - 1].encode()[:start].strip() == b"@"
    at = SourceLocation(display_path(file, root), line, file=file)
    return errors.ArgumentInvalidError(
        f"{'@' * is_decorator}{name}{call.problem}",
        location=at if call.argument is None else argument_location(at, call.argument),
        remedies=suggestions(error),
        params={"call": name, "argument": call.argument},
    )


def _location(error: BaseException, file: Path, root: Path) -> SourceLocation:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        length = None
        if error.end_lineno == error.lineno and error.offset and error.end_offset:
            length = max(1, error.end_offset - error.offset)
        return SourceLocation(display_path(error.filename, root), error.lineno, error.offset or None, length)
    for frame in reversed(traceback.TracebackException.from_exception(error).stack):
        if _is_users(frame.filename) and frame.lineno is not None:
            column = length = None
            if frame.colno is not None and frame.end_lineno == frame.lineno and frame.end_colno is not None:
                line = linecache.getline(frame.filename, frame.lineno)
                column = _characters(line, frame.colno) + 1
                length = _characters(line, frame.end_colno) + 1 - column
            return SourceLocation(display_path(frame.filename, root), frame.lineno, column, length)
    return SourceLocation(display_path(file, root), 1)


def _characters(line: str, offset: int) -> int:
    """The characters in the first bytes of a line; Python gives columns in bytes."""
    return len(line.encode()[:offset].decode(errors="replace"))


def _is_users(filename: str) -> bool:
    path = Path(filename)
    if not path.is_absolute() or "site-packages" in path.parts or path.is_relative_to(_HEADRACE):
        return False
    return not is_installed(filename)


def find_packages(files: Iterable[Path], settings: ProjectSettings) -> dict[str, SourceLocation]:
    """The arguments of each installation, such as ``faker==30.1`` or ``-r requirements.txt``."""
    found = dict(settings.packages)
    for file in files:
        if file.is_file():
            for location, given in _installed(file, display_path(file, settings.root)):
                found.setdefault(given, location)
    return found


def _installed(file: Path, shown: str) -> Iterator[tuple[SourceLocation, str]]:
    text = file.read_text(encoding="utf-8", errors="replace")
    match code_language(file):
        case "python":
            for cell in python_cells(text)[1]:
                command, _, given = cell.argument.partition(" ")
                if cell.magic == "pip" and command == "install" and given.strip():
                    yield SourceLocation(shown, cell.line), given.strip()
        case "notebook":
            with suppress(InvalidNotebookError):
                for one in parse_notebook(text):
                    for line, command in one.skipped:
                        if found := re.fullmatch(r"[%!]pip\s+install\s+(.+)", command):
                            yield SourceLocation(cell_file(shown, one.number), line), found[1].strip()
        case _:
            return


def missing_package(module: str, packages: Mapping[str, SourceLocation]) -> tuple[list[str], list[str]]:
    """The facts and remedies for a module that cannot be imported."""
    top = module.partition(".")[0]
    named = {text: at for text, at in packages.items() if any(_provides(one, top) for one in _names(text))}
    chosen = named or dict(packages)
    facts = [f"{at} installs {text}" for text, at in chosen.items()]
    remedies = [f"install it beside Headrace:   pip install {text}" for text in chosen]
    return facts, remedies or [f"install the package of `{top}`, or put {top}.py beside the spec"]


def _names(text: str) -> Iterator[str]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    for word in words:
        if found := re.match(r"[A-Za-z0-9][\w.-]*", word):
            yield found[0]


def _provides(package: str, module: str) -> bool:
    """Whether a package can have a module, by their names: `python-dateutil` has `dateutil`."""
    plain = re.sub(r"[-_.]+", "", package.lower())
    wanted = module.lower().replace("_", "")
    return wanted == plain or plain in (f"python{wanted}", f"py{wanted}", f"{wanted}python")
