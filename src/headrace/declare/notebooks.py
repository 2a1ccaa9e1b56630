"""Runs the code of a pipeline's files: Python, and the cells of notebooks.

In a notebook that Databricks exported as a Python file, the cells of other languages are comments. ``%sql``
cells declare tables as SQL files do, and ``%run`` runs another file in the namespace of the notebook. The
plan notes all others. In notebooks of Jupyter's format, cells begin with the same commands.
"""

from __future__ import annotations

import ast
import linecache
import re
import shlex
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import headrace
from headrace import errors
from headrace.declare.dbutils import NO_DISPLAY
from headrace.declare.registry import ActivePipeline, activate_pipeline
from headrace.declare.sql_files import declare_file, declare_text
from headrace.errors import HeadraceError, PipelineFileFailedError, SourceLocation
from headrace.model.notes import suggestions, wrong_call
from headrace.model.project import ProjectSettings, code_language
from headrace.storage.mapped_files import find_unmapped
from headrace.syntax.ipynb import InvalidNotebookError, NotebookCell, cell_file, parse_notebook, python_cells
from headrace.syntax.locations import argument_location, display_path, function_at, is_installed
from headrace.syntax.tokens import Cell, build_note

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


_PREFIX = re.compile(r"^# MAGIC(?: %sql\b)?", re.IGNORECASE)
_NOTEBOOK = b"# Databricks notebook source"
_RUN_ARGUMENTS = re.compile(r"\s+\$\w+\s*=")
_CALL = "__headrace_cell__"  # the function that runs a cell which is a comment of the file


@dataclass(frozen=True)
class FileRun:
    """One run of a file. `ran`: the files whose declarations their own run registers."""

    file: Path
    namespace: dict[str, Any]
    active: ActivePipeline
    ran: set[Path]
    is_notebook: bool = False  # whether a notebook runs it


def run_file(run: FileRun) -> None:
    try:
        if code_language(run.file) == "notebook":
            _run_ipynb(run)
        else:
            _run_python(run)
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:
        packages = partial(find_packages, {run.file, *run.ran}, run.active.settings)
        raise build_file_error(error, run.file, run.active.settings, packages) from error


def _run_python(run: FileRun) -> None:
    # Compiled here rather than imported: a cached file could be older than an edit in the same second,
    # and no cache is written beside the user's files.
    content = run.file.read_bytes()
    code: bytes | str = content
    is_notebook = content.removeprefix(b"\xef\xbb\xbf").startswith(_NOTEBOOK)
    if is_notebook:
        cells = _Cells(run)
        code = cells.code
        run.namespace.update({"display": NO_DISPLAY, "displayHTML": NO_DISPLAY, _CALL: cells})
    exec(compile_file(code, str(run.file), is_notebook=is_notebook or run.is_notebook), run.namespace)


def _run_ipynb(run: FileRun) -> None:
    shown = display_path(run.file, run.active.settings.root)
    try:
        cells = parse_notebook(run.file.read_text(encoding="utf-8-sig"))
    except (InvalidNotebookError, UnicodeDecodeError) as error:
        raise PipelineFileFailedError(
            f"{shown} is not a valid notebook: {error}",
            location=SourceLocation(shown, 1),
            remedies=["export the notebook again, or save it as a Python file"],
            params={"path": shown, "exception": type(error).__name__},
        ) from error
    run.namespace.update({"display": NO_DISPLAY, "displayHTML": NO_DISPLAY})
    for cell in cells:
        _run_cell(run, cell, cell_file(shown, cell.number))


def _run_cell(run: FileRun, cell: NotebookCell, shown: str) -> None:
    for line, command in cell.skipped:
        note = build_note(Cell(command.split()[0].lstrip("%!"), "", line, line), shown)
        if run.active.registry is not None:
            run.active.registry.add_note(replace(note, text=f"the line `{command}` is not run"))
    if cell.magic == "python":
        name = cell_file(run.file, cell.number)
        # Stack traces and `inspect` read the lines of a cell here: no file has this name.
        linecache.cache[name] = (len(cell.source), None, cell.source.splitlines(keepends=True), name)
        exec(compile_file(cell.source, name, is_notebook=True), run.namespace)
    elif cell.magic == "sql":
        if run.active.registry is not None:
            declare_text(cell.source, shown, run.active, is_notebook=True)
    elif cell.magic != "run" or not run_other(cell.argument, run):
        _note(run.active, Cell(cell.magic, cell.argument, cell.line, cell.line), shown)


def _note(active: ActivePipeline, cell: Cell, path: str) -> None:
    if cell.magic != "md" and active.registry is not None:
        active.registry.add_note(build_note(cell, path))


def run_other(argument: str, run: FileRun) -> bool:
    """Run the file that ``%run`` names in the namespace of a notebook. Return whether the file exists."""
    named = _RUN_ARGUMENTS.split(argument)[0].strip().strip("\"'")
    given = run.file.parent / named
    candidates = (given.with_name(f"{given.name}{suffix}") for suffix in (".py", ".sql", ".ipynb", ""))
    found = next((one.resolve() for one in candidates if named and one.is_file()), None)
    if found is None:
        return False
    active = run.active if found not in run.ran else replace(run.active, registry=None)
    run.ran.add(found)
    if code_language(found) == "sql":
        if active.registry is not None:
            declare_file(found, active)
        return True
    before = {name: run.namespace[name] for name in ("__file__", _CALL) if name in run.namespace}
    run.namespace["__file__"] = str(found)
    with activate_pipeline(active):
        run_file(replace(run, file=found, active=active, is_notebook=True))
    run.namespace.update(before)
    return True


class _Cells:
    """The cells of a Python file that are comments."""

    def __init__(self, run: FileRun) -> None:
        file, active = run.file, run.active
        self._run = run
        self._active = active
        self._path = display_path(file, active.settings.root)
        text, cells = python_cells(file.read_bytes().decode("utf-8-sig"))
        self._lines = text.split("\n")
        self._cells = {cell.line: cell for cell in cells}

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
            if not run_other(cell.argument, self._run):
                self._note(cell)
        elif self._active.registry is not None:
            declare_text(self._sql(cell), self._path, self._active, is_notebook=True)

    def _note(self, cell: Cell) -> None:
        _note(self._active, cell, self._path)

    def _sql(self, cell: Cell) -> str:
        """The statements of a cell, at the line and column that they have in the file."""
        lines = self._lines[cell.line - 1 : cell.stop - 1]
        cleaned = (_PREFIX.sub(lambda found: " " * len(found[0]), line) for line in lines)
        return "\n" * (cell.line - 1) + "\n".join(cleaned)


_PIPELINES = frozenset({"dlt", "databricks.pipelines", "pyspark.pipelines"})
"""The modules that are imported by files which Databricks runs as main programs."""


def compile_file(code: bytes | str, filename: str, *, is_notebook: bool = False) -> CodeType:
    """The code of a file, or of a cell of a notebook, as its platform would run it.

    Databricks runs notebooks and the files of its pipelines as the main program, so the condition
    ``__name__ == "__main__"`` holds in them. ``__name__`` itself stays the name of the module, by which
    functions reach workers.
    """
    text = code.encode() if isinstance(code, str) else code
    if b"__main__" not in text:
        return compile(code, filename, "exec", dont_inherit=True)
    tree = ast.parse(code, filename)
    if is_notebook or _is_for_pipelines(tree):
        tree = ast.fix_missing_locations(_Holds().visit(tree))
    return compile(tree, filename, "exec", dont_inherit=True)


def find_guard(code: bytes | str) -> int | None:
    """The line of the first ``if __name__ == "__main__"`` that does not hold; ``None`` if there is none."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return None
    if _is_for_pipelines(tree):
        return None
    return next((node.lineno for node in ast.walk(tree) if isinstance(node, ast.If) and _guards(node)), None)


def _guards(node: ast.If) -> bool:
    return any(_is_guard(one) for one in ast.walk(node.test))


def _is_guard(node: ast.AST) -> bool:
    match node:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            pair = (left, right) if isinstance(left, ast.Name) else (right, left)
            match pair:
                case ast.Name(id="__name__"), ast.Constant(value="__main__"):
                    return True
    return False


class _Holds(ast.NodeTransformer):
    """Replaces the condition by its value."""

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        return ast.copy_location(ast.Constant(True), node) if _is_guard(node) else node


def _is_for_pipelines(tree: ast.AST) -> bool:
    return any(name in _PIPELINES for node in ast.walk(tree) for name in _imported(node))


def _imported(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (one.name for one in names)
        case ast.ImportFrom(module=str(module), names=names, level=0):
            yield module
            yield from (f"{module}.{one.name}" for one in names)
