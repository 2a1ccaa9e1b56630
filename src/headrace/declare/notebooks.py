"""Databricks notebooks that were exported as source files: ``# Databricks notebook source``.

The cells of other languages are comments in such a file. Of these, ``%sql`` cells declare tables as SQL files
do, and ``%run`` runs another file in the namespace of the notebook. The plan notes all others.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.declare.activation import activate
from headrace.declare.dbutils import NO_DISPLAY
from headrace.declare.file_errors import build_file_error
from headrace.declare.registry import ActivePipeline
from headrace.declare.sql_files import declare_file, declare_text
from headrace.errors import HeadraceError
from headrace.model.project import code_language
from headrace.syntax.locations import display_path
from headrace.syntax.notebook_cells import Cell, build_note, find_cells

_PREFIX = re.compile(r"^# MAGIC(?: %sql\b)?", re.IGNORECASE)
_HEADER = b"# Databricks notebook source"
_ARGUMENTS = re.compile(r"\s+\$\w+\s*=")
_CALL = "__headrace_cell__"
"""The function that runs a cell which is a comment of the file."""


def run_file(file: Path, namespace: dict[str, Any], active: ActivePipeline, ran: set[Path]) -> None:
    """Run the code of a Python file.

    Args:
        ran: The files whose declarations are registered by their own run; ``%run`` adds its own.
    """
    # Compiled here rather than imported: a cached file could be older than an edit in the same second,
    # and no cache is written beside the user's files.
    content = file.read_bytes()
    code: bytes | str = content
    if content.removeprefix(b"\xef\xbb\xbf").startswith(_HEADER):
        cells = _Cells(file, namespace, active, ran)
        code = cells.code
        namespace.update({"display": NO_DISPLAY, "displayHTML": NO_DISPLAY, _CALL: cells})
    try:
        exec(compile(code, str(file), "exec", dont_inherit=True), namespace)
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:
        raise build_file_error(error, file, active.settings.root) from error


class _Cells:
    """Runs the cells of a notebook that are comments in its file."""

    def __init__(self, file: Path, namespace: dict[str, Any], active: ActivePipeline, ran: set[Path]) -> None:
        self._file = file
        self._namespace = namespace
        self._active = active
        self._ran = ran
        self._path = display_path(file, active.settings.root)
        self._lines = file.read_bytes().decode("utf-8-sig").split("\n")
        self._cells = {cell.line: cell for cell in find_cells("\n".join(self._lines))}

    @property
    def code(self) -> str:
        """The notebook with a call in the line of each cell that is run; all lines keep their numbers."""
        lines = list(self._lines)
        for cell in self._cells.values():
            if cell.magic in ("sql", "run"):
                lines[cell.line - 1] = f"{_CALL}({cell.line})"
            else:
                self._note(cell)
        return "\n".join(lines)

    def __call__(self, line: int) -> None:
        cell = self._cells[line]
        if cell.magic == "run":
            if not self._run(cell.argument):
                self._note(cell)
        elif self._active.registry is not None:
            declare_text(self._sql(cell), self._path, self._active, is_notebook=True)

    def _note(self, cell: Cell) -> None:
        if cell.magic != "md" and self._active.registry is not None:
            self._active.registry.add_note(build_note(cell, self._path))

    def _sql(self, cell: Cell) -> str:
        """The statements of a cell, at the line and column that they have in the file."""
        lines = self._lines[cell.line - 1 : cell.stop - 1]
        cleaned = (_PREFIX.sub(lambda found: " " * len(found[0]), line) for line in lines)
        return "\n" * (cell.line - 1) + "\n".join(cleaned)

    def _run(self, argument: str) -> bool:
        """Run another file in the namespace; false if there is no such file."""
        named = _ARGUMENTS.split(argument)[0].strip().strip("\"'")
        given = self._file.parent / named
        candidates = (given.with_name(f"{given.name}{suffix}") for suffix in (".py", ".sql", ""))
        found = next((one.resolve() for one in candidates if named and one.is_file()), None)
        if found is None:
            return False
        active = self._active if found not in self._ran else replace(self._active, registry=None)
        self._ran.add(found)
        if code_language(found) == "sql":
            if active.registry is not None:
                declare_file(found, active)
            return True
        before = {name: self._namespace[name] for name in ("__file__", _CALL)}
        self._namespace["__file__"] = str(found)
        with activate(active):
            run_file(found, self._namespace, active, self._ran)
        self._namespace.update(before)
        return True
