"""Runs a pipeline's files, whose decorators and statements declare its datasets and flows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir
from pathlib import Path, PurePath
from traceback import extract_tb
from types import ModuleType
from typing import TYPE_CHECKING

from headrace.declare.activation import activate
from headrace.declare.dbutils import Dbutils
from headrace.declare.lakeflow import importable
from headrace.declare.notebooks import run_file
from headrace.declare.pipeline_imports import forget_modules, mark_modules, set_import_path
from headrace.declare.registry import ActivePipeline, Registry
from headrace.declare.session import spark
from headrace.declare.sql_files import declare_file
from headrace.errors import (
    NothingDeclaredError,
    PipelineFileFailedError,
    PipelineFilesMissingError,
)
from headrace.model.declarations import Declarations
from headrace.model.names import separate_names
from headrace.model.project import ProjectSettings, code_language
from headrace.syntax.locations import display_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def load_declarations(
    settings: ProjectSettings,
    session: Callable[[], SparkSession],
    schema_files: dict[str, str] | None = None,
) -> Declarations:
    """Run the pipeline's files in sorted order, and return their declarations.

    Args:
        settings: The pipeline's settings; its globs say which files are run.
        session: Gives the Spark session; called only if a file uses ``spark`` at module level.

    Raises:
        PipelineFilesMissingError: The globs match no Python or SQL file.
        PipelineFileFailedError: A file raised an exception.
        NothingDeclaredError: The files declare no dataset.
        SqlInvalidError: A statement of an SQL file is wrong.
        FeatureUnsupportedError: A statement of an SQL file is not supported.
        HeadraceError: A declaration is wrong.
    """
    files = find_files(settings)
    read = {} if schema_files is None else schema_files
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
            params={"files": [display_path(file, settings.root) for file in files]},
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
    set_import_path(folders, settings.paths, files, settings.root_path)
    before = set(sys.modules)

    def marked_session() -> SparkSession:
        # A file can send code of the pipeline to a worker while it loads: `spark.dataSource.register(..)`.
        found = session()
        mark_modules(set(sys.modules) - before, folders)
        return found

    registry = Registry(settings.database)
    dbutils = Dbutils(settings)
    ran = {file.resolve() for file in files}
    active = ActivePipeline(settings, marked_session, registry, schema_files)
    with ExitStack() as stack:
        stack.enter_context(activate(active))
        # Spark's pipelines run files in the folder of the spec, so code opens files by relative paths.
        stack.enter_context(chdir(settings.root))
        stack.enter_context(importable(dbutils))
        try:
            for file in files:
                if code_language(file) == "sql":
                    declare_file(file, active)
                else:
                    with separate_names():
                        _run(file, active, dbutils, ran)
        finally:
            mark_modules(set(sys.modules) - before, folders)
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


# -- files ---------------------------------------------------------------------------------------


def find_files(settings: ProjectSettings) -> list[Path]:
    """The pipeline's Python and SQL files, in sorted order, each once."""
    found: set[Path] = set()
    for pattern in settings.libraries:
        found.update(_matches(settings, pattern))
    files = sorted(file for file in found if code_language(file) is not None)
    if not files:
        raise PipelineFilesMissingError(
            f"pipeline {settings.name} has no files: nothing matches {', '.join(settings.libraries)}",
            facts=[f"looked in {settings.root}"],
            remedies=["put a Python or SQL file there, or change `libraries` in the spec"],
            params={"libraries": list(settings.libraries), "root": str(settings.root)},
        )
    return files


def _matches(settings: ProjectSettings, pattern: str) -> Iterator[Path]:
    root = settings.root
    _check_pattern(root, pattern)
    # `folder/**` matches only folders in Python's glob; in Spark's spec it means all files below.
    rest = os.path.normpath(f"{pattern}/*" if pattern.endswith("**") else pattern)
    start = root
    while rest.startswith("../"):
        start, rest = start.parent, rest.removeprefix("../")
    for path in start.glob(rest):
        below = _parts(path, root)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in below)
        if path.is_file() and not hidden:
            yield path


def _parts(file: Path, root: Path) -> tuple[str, ...]:
    """The parts of a file's path from the pipeline's folder, without those that lead out of it."""
    return tuple(part for part in Path(os.path.relpath(file, root)).parts if part != "..")


def _check_pattern(root: Path, pattern: str) -> None:
    """Refuse a pattern that can never match."""
    named = Path(os.path.normpath(root / pattern))
    is_glob = any(sign in pattern for sign in "*?[")
    if PurePath(pattern).is_absolute():
        problem, remedy = (
            "is an absolute path",
            "write a path from the folder of the spec, such as ../shared/**",
        )
    elif is_glob or (named.is_file() and code_language(named) is not None):
        return
    elif named.is_dir():
        problem, remedy = "is a folder", f"write {pattern.rstrip('/')}/** for all files below it"
    else:
        problem, remedy = (
            "does not exist, or is not a Python or SQL file",
            "name a .py or .sql file, or a glob such as transformations/**",
        )
    raise PipelineFilesMissingError(
        f"`libraries` names {pattern}, which {problem}",
        facts=[f"looked in {root}"],
        remedies=[remedy],
        params={"libraries": [pattern], "root": str(root)},
    )


# -- modules -------------------------------------------------------------------------------------


def _run(file: Path, active: ActivePipeline, dbutils: Dbutils, ran: set[Path]) -> None:
    root = active.settings.root
    name = ".".join(_parts(file.with_suffix(""), root))
    loaded = sys.modules.get(name)
    if loaded is not None and _is_file_of(loaded, file):
        # An earlier file has imported it: its decorators have run.
        loaded.__dict__.setdefault("spark", spark)
        return
    taken = loaded is not None or name.partition(".")[0] in sys.stdlib_module_names
    module = ModuleType(f"headrace_pipeline.{name}" if taken else name)
    module.__dict__.update(__file__=str(file), spark=spark, dbutils=dbutils)
    sys.modules[module.__name__] = module
    run_file(file, module.__dict__, active, ran)


def _is_file_of(module: ModuleType, file: Path) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and Path(origin).resolve() == file.resolve()
