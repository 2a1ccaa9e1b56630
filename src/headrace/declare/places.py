"""Where in the user's files something was declared."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from headrace.errors import SourceLocation

_DEF = re.compile(r"\s*(async\s+)?def\s")
_SPARK = "/pyspark/pipelines/"
_OURS = str(Path(__file__).resolve().parents[1])


def display_path(path: str | Path, root: Path | None) -> str:
    """The path relative to the pipeline's folder where it lies inside, else as it is."""
    if root is None:
        return str(path)
    absolute = Path(path).absolute()
    for folder in (root, root.resolve()):
        if absolute.is_relative_to(folder):
            return str(absolute.relative_to(folder))
    return str(path)


def function_location(function: Callable[..., Any], root: Path | None) -> SourceLocation | None:
    """The line of the function's ``def``; ``None`` for what is not written in Python."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    # The code object starts at the first decorator; a reader looks for the `def` below it.
    lines = linecache.getlines(code.co_filename)
    for number in range(code.co_firstlineno, min(len(lines), code.co_firstlineno + 50) + 1):
        if _DEF.match(lines[number - 1]):
            return SourceLocation(display_path(code.co_filename, root), number)
    return SourceLocation(display_path(code.co_filename, root), code.co_firstlineno)


def caller_location(root: Path | None) -> SourceLocation:
    """The line outside of Headrace that led to this call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    if frame is None:
        return SourceLocation("<unknown>", 1)
    return SourceLocation(display_path(frame.f_code.co_filename, root), frame.f_lineno)


def _is_ours(frame: FrameType) -> bool:
    # Spark's decorators lie between a user's file and us where a pipeline is written with them.
    filename = frame.f_code.co_filename
    return filename.startswith(_OURS) or _SPARK in filename
