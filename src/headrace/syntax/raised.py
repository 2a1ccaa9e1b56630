"""The exception of a function of the user, found in Spark's message."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import SourceLocation
from headrace.syntax.locations import display_path, is_installed

_TRACE = re.compile(r"Traceback \(most recent call last\):\n((?:[ \t]+.*\n)+)([A-Za-z_][\w.]*(?::[^\n]*)?)")
_FRAME = re.compile(r'File "([^"]*)", line (\d+), in (\S+)')
_SHOWN = 150


@dataclass(frozen=True)
class Raised:
    """What a function of the user has raised, and where."""

    function: str
    location: SourceLocation
    exception: str


def find_raised(text: str, root: Path | None) -> Raised | None:
    """The innermost function of the pipeline's files in a trace of Python; ``None`` if there is none."""
    for trace, exception in _TRACE.findall(text):
        for path, line, function in reversed(_FRAME.findall(trace)):
            shown = display_path(path, root)
            if not is_installed(path) and not Path(shown).is_absolute():
                return Raised(function, SourceLocation(shown, int(line)), exception.strip()[:_SHOWN])
    return None
