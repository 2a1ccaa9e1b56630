"""Notebooks in Jupyter's format: their cells, their commands, and the source locations within a cell."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.syntax.tokens import WHOLE_CELL, Cell, cell_bounds, find_cells

_CELL = re.compile(r"#cell(\d+)$")
_MAGIC = re.compile(r"%{1,2}(\w+)[ \t]*(.*)")
_LINE_MAGIC = re.compile(r"(?:%{1,2}|!)\s*\w.*")
_SHELL = re.compile(r"^!\s*")


@dataclass(frozen=True)
class NotebookCell:
    """A cell with code. Each line has the number that it has in the notebook."""

    number: int
    magic: str  # what runs it: ``python``, ``sql``, ``run``, or a command that is not run
    argument: str  # the rest of the line of the magic command
    line: int  # the line of the magic command, or the first one
    text: str  # the lines as they are
    source: str  # the lines without magic commands
    skipped: tuple[tuple[int, str], ...] = ()  # the lines with commands that are not run


class InvalidNotebookError(ValueError):
    """The file is not a notebook."""


def parse_notebook(text: str) -> tuple[NotebookCell, ...]:
    """The cells with code, in their order; numbers count all cells from 1."""
    try:
        document = json.loads(text)
        language = _language(document["metadata"]) if "metadata" in document else "python"
        found = [(number, cell) for number, cell in enumerate(document["cells"], 1)]
        return tuple(
            _parse_cell(number, _text(cell["source"]), language)
            for number, cell in found
            if cell["cell_type"] == "code"
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidNotebookError(f"{type(error).__name__}: {error}") from error


def cell_file(file: str | Path, number: int) -> str:
    """The name that a cell has in source locations and stack traces: ``orders.ipynb#cell3``."""
    return f"{file}#cell{number}"


def without_cell(filename: str) -> str:
    """The file of a location; other names are returned as they are."""
    return _CELL.sub("", filename)


def find_line(path: Path, line: int) -> str | None:
    """The line of a location in a cell; ``None`` if the path names no cell, or it has no such line."""
    found = _CELL.search(path.name)
    if found is None:
        return None
    try:
        cells = parse_notebook(Path(without_cell(str(path))).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return None
    lines = (one.text.split("\n") for one in cells if one.number == int(found[1]))
    return next((one[line - 1] for one in lines if 0 < line <= len(one)), None)


def python_cells(text: str) -> tuple[str, tuple[Cell, ...]]:
    """The text of an exported Python notebook, and its cells that are comments. Bare commands, such as
    ``%pip``, become comments.

    Databricks exports a cell with a command and Python code in this way. All lines keep their numbers.
    """
    lines = text.split("\n")
    for first, stop in cell_bounds(lines):
        cell = lines[first : stop - 1]
        begins = next((line for line in cell if line.strip() and not line.startswith("#")), "")
        if (found := _MAGIC.fullmatch(begins)) and found[1].lower() in WHOLE_CELL:
            start = cell.index(begins)
            cell[start:] = [f"# MAGIC {line}" for line in cell[start:]]
        else:
            for line, command in list(_without_commands(cell)):
                cell[line - 1] = f"# MAGIC {_SHELL.sub('%sh ', command)}"
        lines[first : stop - 1] = cell
    text = "\n".join(lines)
    return text, tuple(find_cells(text))


def _language(metadata: dict[str, dict[str, object]]) -> str:
    """The language of cells without a magic command."""
    for key in ("application/vnd.databricks.v1+notebook", "language_info", "kernelspec"):
        part = metadata.get(key) or {}
        if name := part.get("language") or (part.get("name") if key == "language_info" else None):
            return str(name).lower()
    return "python"


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _parse_cell(number: int, text: str, language: str) -> NotebookCell:
    lines = text.split("\n")
    first = next((index for index, line in enumerate(lines) if line.strip()), 0)
    magic, argument = "sql" if language == "sql" else "python", ""
    if (found := _MAGIC.fullmatch(lines[first])) is not None:
        word = found[1].lower()
        if word in WHOLE_CELL or word == "python3":
            magic, argument = word.removesuffix("3"), found[2].strip()
            # The statements of an SQL cell can begin behind the command.
            kept = argument if magic == "sql" else ""
            lines[first] = " " * found.start(2) + kept if kept else ""
    skipped = []
    if magic == "python":
        skipped = sorted(_without_commands(lines))
    return NotebookCell(number, magic, argument, first + 1, text, "\n".join(lines), tuple(skipped))


def _without_commands(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Blank the lines with commands for the notebook or the shell, where Python finds an error."""
    while any(map(_LINE_MAGIC.fullmatch, lines)):
        index = _first_error(lines)
        if index is None or not _LINE_MAGIC.fullmatch(lines[index]):
            return
        stop = index + 1
        while lines[stop - 1].endswith("\\") and stop < len(lines):
            stop += 1
        yield index + 1, " ".join(line.rstrip("\\").strip() for line in lines[index:stop])
        lines[index:stop] = [""] * (stop - index)


def _first_error(lines: list[str]) -> int | None:
    """The index of the line with a syntax error."""
    try:
        ast.parse("\n".join(lines))
    except SyntaxError as error:
        line = (error.lineno or 0) - 1
        return line if 0 <= line < len(lines) else None
    except ValueError:
        return None
    return None
