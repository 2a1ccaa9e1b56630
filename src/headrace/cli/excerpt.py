"""An error as text: the code, the place with its line underlined, the facts, the remedies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from headrace.errors import HeadraceError, SourceLocation

DOCS = "docs/errors.md"


def error_lines(error: HeadraceError, folders: Sequence[Path] = ()) -> list[str]:
    """The error as styled lines.

    Args:
        error: What went wrong.
        folders: Where the location's relative path may start; the first that holds the file wins.
    """
    head = click.style(f"error[{error.code}]", fg="red", bold=True)
    lines = [f"{head} {click.style(error.summary, bold=True)}"]
    if error.location is not None:
        lines += _place_lines(error.location, folders)
    lines += [f"  {line}" for fact in error.facts for line in fact.splitlines() or [""]]
    for index, remedy in enumerate(error.remedies):
        label = click.style("help:", fg="cyan") if index == 0 else "     "
        lines.append(f"  {label} {remedy}")
    lines.append(click.style(f"  docs: {DOCS}#{error.code.lower()}", dim=True))
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
    # Tabs would put the carets elsewhere than the eye expects.
    lines += [f"{gap}{bar}", f" {click.style(number, fg='blue', bold=True)} {bar} {source.expandtabs(4)}"]
    if location.column is not None:
        start = len(source[: location.column - 1].expandtabs(4))
        length = min(location.length or 1, max(1, len(source) - location.column + 1))
        lines.append(f"{gap}{bar} {' ' * start}{click.style('^' * length, fg='red', bold=True)}")
    return lines


def _source_line(location: SourceLocation, folders: Sequence[Path]) -> str | None:
    for folder in (*folders, Path()):
        try:
            lines = (folder / location.path).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        if 1 <= location.line <= len(lines) and lines[location.line - 1].strip():
            return lines[location.line - 1].rstrip()
    return None
