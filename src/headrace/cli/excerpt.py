"""An error as text: the code, the source location with its line, the facts, the remedies."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Sequence
from pathlib import Path

import click

from headrace.errors import HeadraceError, SourceLocation, more_command
from headrace.model.texts import wrap

_LONGEST = 200
"""Characters of a line that are shown."""


def error_lines(error: HeadraceError, folders: Sequence[Path] = (), width: int | None = None) -> list[str]:
    """The error as styled lines.

    Args:
        folders: Where the location's relative path may start; the first that holds the file wins.
    """
    head = click.style(f"error[{error.code}]", fg="red", bold=True)
    lines = wrap(f"{head} {click.style(error.summary, bold=True)}", width, rest="  ")
    if error.location is not None:
        lines += _place_lines(error.location, folders)
    for fact in error.facts:
        for line in fact.splitlines():
            lines += wrap(line, width, "  ", "    ")
    for index, remedy in enumerate(error.remedies):
        label = click.style("help:", fg="cyan") if index == 0 else "     "
        lines += wrap(remedy, width, f"  {label} ", " " * 8)
    lines.append(click.style(f"  more: {more_command(error.code)}", dim=True))
    return lines


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
    # Tabs would put the carets elsewhere than the eye expects.
    lines += [f"{gap}{bar}", f" {click.style(number, fg='blue', bold=True)} {bar} {source.expandtabs(4)}"]
    if column is not None:
        start = len(source[: column - 1].expandtabs(4))
        length = min(location.length or 1, max(1, len(source) - column + 1))
        lines.append(f"{gap}{bar} {' ' * start}{click.style('^' * length, fg='red', bold=True)}")
    return lines


def _source_line(location: SourceLocation, folders: Sequence[Path]) -> str | None:
    if location.path.startswith("<"):
        # Statements that were typed, and not read from a file.
        return linecache.getline(location.path, location.line).rstrip() or None
    for folder in (*folders, Path()):
        try:
            # The place can be in a file of data, which is larger than a file of code.
            with (folder / location.path).open(encoding="utf-8", errors="replace") as lines:
                found = next(itertools.islice(lines, max(location.line, 1) - 1, None), "")
        except OSError:
            continue
        if found.strip():
            return found.rstrip()
    return None
