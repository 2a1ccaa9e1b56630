"""The errors of exceptions that a pipeline's files raise while they are loaded."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import headrace
from headrace.declare.packages import missing_package
from headrace.errors import (
    ArgumentInvalidError,
    FeatureUnsupportedError,
    HeadraceError,
    PipelineFileFailedError,
    SourceLocation,
)
from headrace.model.notes import suggestions, wrong_call
from headrace.model.project import ProjectSettings
from headrace.storage.mapped_paths import find_unmapped
from headrace.syntax.call_arguments import argument_location
from headrace.syntax.locations import display_path, function_at, is_installed

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
        return FeatureUnsupportedError(
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
    return PipelineFileFailedError(
        summary,
        location=location,
        facts=[line for line in rest if line.strip()][:_SHOWN_LINES],
        remedies=remedies or [f"correct {location}; --debug prints the stack trace"],
        params={"path": shown, "exception": kind},
    )


def _invalid_argument(error: BaseException, root: Path) -> ArgumentInvalidError | None:
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
    return ArgumentInvalidError(
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
