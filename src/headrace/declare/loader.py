"""Runs a pipeline's files, whose decorators and statements declare its datasets and flows.

In a Databricks notebook, the cells of other languages are comments. ``%sql`` cells declare tables as SQL
files do, and ``%run`` runs another file in the namespace of the notebook. The plan notes all others.
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

import headrace
from headrace.declare.auto_loader import CLOUD_FILES, read_cloud_files
from headrace.declare.dbutils import NO_DISPLAY, Dbutils
from headrace.declare.lakeflow import importable
from headrace.declare.packages import find_packages, missing_package
from headrace.declare.pipeline_files import find_files, path_parts
from headrace.declare.pipeline_imports import forget_modules, mark_modules, set_import_path
from headrace.declare.registry import ActivePipeline, Registry, activate_pipeline, spark
from headrace.declare.sql_files import declare_file, declare_text
from headrace.declare.sql_functions import find_calls_in
from headrace.errors import (
    FeatureUnsupportedError,
    HeadraceError,
    NothingDeclaredError,
    PipelineFileFailedError,
    SourceLocation,
)
from headrace.model.declarations import Declarations
from headrace.model.names import separate_names
from headrace.model.notes import suggestions
from headrace.model.project import ProjectSettings, code_language
from headrace.model.queries import finding_calls
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.runtime.places import working_in
from headrace.sources.formats import reading_formats
from headrace.syntax.locations import display_path, is_installed
from headrace.syntax.tokens import Cell, build_note, find_cells

_LOADING = threading.RLock()
"""Held while files run: modules, the import path and the working directory are those of the process. A file
can load another pipeline."""


def load_declarations(
    settings: ProjectSettings, session: Callable[[], SparkSession], schema_files: dict[str, str] | None = None
) -> Declarations:
    """Run the pipeline's files in order; ``session`` is called only if one uses ``spark`` at module level."""
    files = find_files(settings)
    read = {} if schema_files is None else schema_files
    with _LOADING:
        try:
            declarations = _load(files, settings, session, read)
        except PipelineFileFailedError as error:
            if not _lacks_session(error):
                raise
            # Calls of PySpark at module level, such as F.col and F.udf, need a session: start it and run the
            # files again, from the first.
            session()
            declarations = _load(files, settings, session, read)
    if not (declarations.datasets or declarations.flows):
        raise NothingDeclaredError(
            f"pipeline {settings.name} declares no dataset",
            facts=[f"{display_path(file, settings.root)} declares nothing" for file in files[:5]],
            remedies=[
                "decorate a query function with @hr.table or @hr.materialized_view",
                "or write CREATE STREAMING TABLE name AS SELECT ... in a .sql file",
            ],
            params={"paths": [display_path(file, settings.root) for file in files]},
        )
    return declarations


def _load(
    files: Sequence[Path],
    settings: ProjectSettings,
    session: Callable[[], SparkSession],
    schema_files: dict[str, str],
) -> Declarations:
    targets = [Path(one) for one in settings.paths.targets.values() if one.startswith("/")]
    folders = (*settings.code_folders, *targets)
    forget_modules()
    modules = set_import_path(folders, settings.paths, files, settings.root_path)
    before = set(sys.modules)

    def marked_session() -> SparkSession:
        # A file can send code of the pipeline to a worker while it loads: `spark.dataSource.register(..)`.
        found = session()
        mark_modules(set(sys.modules) - before, folders, modules)
        return found

    registry = Registry(settings.database)
    dbutils = Dbutils(settings)
    ran = {file.resolve() for file in files}
    active = ActivePipeline(settings, marked_session, registry, schema_files)
    with ExitStack() as stack:
        stack.enter_context(activate(active))
        # Spark's pipelines run files in the folder of the spec, so code opens files by relative paths.
        stack.enter_context(working_in(settings.root))
        stack.enter_context(importable(dbutils))
        try:
            for file in files:
                if code_language(file) == "sql":
                    declare_file(file, active)
                else:
                    with separate_names():
                        _run(file, active, dbutils, ran)
        finally:
            mark_modules(set(sys.modules) - before, folders, modules)
    return registry.declarations()


def _lacks_session(error: PipelineFileFailedError) -> bool:
    """Whether PySpark refused a call because there was no session."""
    cause = error.__cause__
    if isinstance(cause, AssertionError):
        # F.col and F.expr check it with an assertion.
        innermost = extract_tb(cause.__traceback__)[-1]
        return "pyspark" in Path(innermost.filename).parts and "_active_spark_context" in (
            innermost.line or ""
        )
    condition = getattr(cause, "getCondition", lambda: None)()
    return bool(condition == "SESSION_OR_CONTEXT_NOT_EXISTS")


def _run(file: Path, active: ActivePipeline, dbutils: Dbutils, ran: set[Path]) -> None:
    root = active.settings.root
    name = ".".join(path_parts(file.with_suffix(""), root))
    loaded = sys.modules.get(name)
    origin = getattr(loaded, "__file__", None)
    if origin is not None and Path(origin).resolve() == file.resolve():
        # An earlier file has imported it: its decorators have run.
        vars(loaded).setdefault("spark", spark)
        return
    taken = loaded is not None or name.partition(".")[0] in sys.stdlib_module_names
    module = ModuleType(f"headrace_pipeline.{name}" if taken else name)
    module.__dict__.update(__file__=str(file), spark=spark, dbutils=dbutils)
    sys.modules[module.__name__] = module
    run_file(file, module.__dict__, active, ran)


_PREFIX = re.compile(r"^# MAGIC(?: %sql\b)?", re.IGNORECASE)
_NOTEBOOK = b"# Databricks notebook source"
_RUN_ARGUMENTS = re.compile(r"\s+\$\w+\s*=")
_CALL = "__headrace_cell__"  # the function that runs a cell which is a comment of the file


def run_file(file: Path, namespace: dict[str, Any], active: ActivePipeline, ran: set[Path]) -> None:
    """Run the code of a Python file; ``ran`` has the files whose declarations their own run registers."""
    # Compiled here rather than imported: a cached file could be older than an edit in the same second,
    # and no cache is written beside the user's files.
    content = file.read_bytes()
    code: bytes | str = content
    if content.removeprefix(b"\xef\xbb\xbf").startswith(_NOTEBOOK):
        cells = _Cells(file, namespace, active, ran)
        code = cells.code
        namespace.update({"display": NO_DISPLAY, "displayHTML": NO_DISPLAY, _CALL: cells})
    try:
        exec(compile(code, str(file), "exec", dont_inherit=True), namespace)
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:
        packages = partial(find_packages, {file, *ran}, active.settings)
        raise build_file_error(error, file, active.settings.root, packages) from error


class _Cells:
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
        named = _RUN_ARGUMENTS.split(argument)[0].strip().strip("\"'")
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


@contextmanager
def activate(active: ActivePipeline) -> Iterator[ActivePipeline]:
    """Make a pipeline the active one of this thread, for code that uses ``spark`` or reads a source."""
    with (
        activate_pipeline(active),
        reading_formats({CLOUD_FILES: read_cloud_files}),
        finding_calls(find_calls_in),
    ):
        yield active


_AUTO_CDC = "create_auto_cdc_flow"
_HEADRACE = Path(headrace.__file__).parent
_SHOWN_LINES = 6  # the lines of an exception's text that the error shows; Spark's texts can be very long


def build_file_error(
    error: BaseException, file: Path, root: Path, packages: Callable[[], Mapping[str, SourceLocation]]
) -> HeadraceError:
    shown = display_path(file, root)
    location = _location(error, file, root)
    if any(frame.name == _AUTO_CDC for frame in traceback.extract_tb(error.__traceback__)):
        # Spark's own function needs packages of Spark Connect before it asks the registry.
        return FeatureUnsupportedError(
            "this version does not support AUTO CDC flows", location=location, params={"what": _AUTO_CDC}
        )
    # The text of a KeyError is only the key's repr.
    text = f"key {error} does not exist" if isinstance(error, KeyError) else str(error)
    first, *rest = text.splitlines() or [""]
    kind = type(error).__name__
    remedies = suggestions(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        rest, remedies = missing_package(error.name, packages())
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
        remedies=[*remedies, f"correct {location}; --debug prints the stack trace"],
        params={"path": shown, "exception": kind},
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
