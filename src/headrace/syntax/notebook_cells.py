"""The cells of Databricks notebooks that are comments in a source file, such as ``# MAGIC %sql``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from headrace.errors import SourceLocation
from headrace.model.notes import Note

_CELL_ENDS = re.compile(r"^(?:#|--) COMMAND -+\s*$")
_MAGIC = re.compile(r"^(?:#|--) MAGIC %(\w+)[ \t]*(.*)$")
_REMEDIES = {
    "pip": "install the packages in the environment of Headrace",
    "python": "move the code to a Python file",
}


@dataclass(frozen=True)
class Cell:
    """A cell whose lines are comments of the file."""

    magic: str  # the word behind ``%``
    argument: str
    line: int
    stop: int


def find_cells(text: str) -> Iterator[Cell]:
    """The cells of a notebook that begin with a magic command."""
    lines = text.split("\n")
    ends = [number for number, line in enumerate(lines, 1) if _CELL_ENDS.match(line)]
    for first, stop in pairwise([0, *ends, len(lines) + 1]):
        for number in range(first + 1, stop):
            line = lines[number - 1]
            if found := _MAGIC.match(line):
                yield Cell(found[1].lower(), found[2].strip(), number, stop)
                break
            if line.strip() and not line.startswith(("#", "--")):
                break


def build_note(cell: Cell, path: str) -> Note:
    """The note about a cell that is not run."""
    text = f"the cell `%{cell.magic}` is not run"
    if cell.magic == "run":
        text = f"`%run {cell.argument}` is not run: there is no such file"
    location = SourceLocation(path, cell.line)
    return Note(level="note", text=text, location=location, remedy=_REMEDIES.get(cell.magic))
