"""Places in the user's files: of a call, of an exception, of a name within a statement."""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType

from headrace.errors import SourceLocation

_LIBRARIES = frozenset({"headrace", "pyspark", "py4j", "delta"})
"""Packages whose frames lie between a user's line and Spark, by name: a cluster keeps them anywhere."""

_INSTALLED = tuple(
    str(Path(path).resolve())
    for key, path in sysconfig.get_paths().items()
    if key in {"stdlib", "platstdlib", "purelib", "platlib"}
)
_STATEMENT_LINES = 60
"""How far below its first line a statement is searched for a name."""


def caller(root: Path | None) -> SourceLocation:
    """The innermost line of the user's that led to this call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_users(frame):
            return SourceLocation(displayed(frame.f_code.co_filename, root), frame.f_lineno)
        frame = frame.f_back
    return SourceLocation("<unknown>", 1)


def innermost(traceback: TracebackType | None, root: Path | None) -> SourceLocation | None:
    """The last line of the user's that an exception passed through."""
    found = None
    while traceback is not None:
        if _is_users(traceback.tb_frame):
            found = SourceLocation(
                displayed(traceback.tb_frame.f_code.co_filename, root), traceback.tb_lineno
            )
        traceback = traceback.tb_next
    return found


def displayed(filename: str, root: Path | None) -> str:
    """The path relative to the pipeline's folder where it lies inside, else as it is."""
    if root is None:
        return filename
    absolute = Path(filename).absolute()
    for folder in (root, root.resolve()):
        if absolute.is_relative_to(folder):
            return str(absolute.relative_to(folder))
    return filename


def pinpoint(location: SourceLocation, text: str, root: Path | None) -> SourceLocation:
    """The place of a quoted name at or below a line, as far as it is found; else the line."""
    quoted = re.compile(rf"""["'][^"'\n]*?({re.escape(text)})[^"'\n]*?["']""")
    lines = _lines(location, root)
    for number, line in enumerate(lines[location.line - 1 : location.line - 1 + _STATEMENT_LINES]):
        if number and _starts_definition(line):
            break
        if found := quoted.search(line):
            column = found.start(1) + 1
            return replace(location, line=location.line + number, column=column, length=len(text))
    return location


def pinpoint_sql(
    location: SourceLocation, sql: str, start: int, stop: int, root: Path | None
) -> SourceLocation:
    """The place of characters of an SQL text whose literal stands near the line that runs it.

    Args:
        location: The line of the call.
        sql: The text, as Spark got it.
        start: The first character's index in ``sql``.
        stop: The last character's index, inclusive.
        root: The pipeline's folder.
    """
    content = "".join(_lines(location, root))
    if content.count(sql) != 1:
        return location
    offset = content.index(sql) + start
    line = content.count("\n", 0, offset) + 1
    column = offset - (content.rfind("\n", 0, offset) + 1) + 1
    return replace(location, line=line, column=column, length=stop - start + 1)


def _lines(location: SourceLocation, root: Path | None) -> list[str]:
    path = Path(location.path)
    if root is not None and not path.is_absolute():
        path = root / path
    return linecache.getlines(str(path))


def _starts_definition(line: str) -> bool:
    return re.match(r"\s*(async\s+def|def|class|@)\b", line) is not None


def _is_users(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if package in _LIBRARIES:
        return False
    filename = frame.f_code.co_filename
    return not filename.startswith(("<frozen", *_INSTALLED))
