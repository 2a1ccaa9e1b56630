"""Runs a pipeline's files, whose decorators declare its datasets and flows."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path, PurePath
from types import ModuleType
from typing import TYPE_CHECKING

from headrace.declare.file_errors import build_file_error
from headrace.declare.pipeline_imports import forget_modules, mark_modules, set_import_path
from headrace.declare.registry import ActivePipeline, Registry, activate
from headrace.declare.session import spark
from headrace.errors import (
    FeatureUnsupportedError,
    HeadraceError,
    NothingDeclaredError,
    PipelineFileFailedError,
    PipelineFilesMissingError,
    SourceLocation,
)
from headrace.model.declarations import Declarations
from headrace.model.project import ProjectSettings
from headrace.syntax.locations import display_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPARK_PIPELINES = re.compile(r"^\s*(from|import)\s+pyspark\b.*\bpipelines\b", re.MULTILINE)


def load_declarations(
    settings: ProjectSettings,
    session: Callable[[], SparkSession],
    schema_files: dict[str, str] | None = None,
) -> Declarations:
    """Run the pipeline's files in sorted order, and return their declarations.

    Args:
        settings: The pipeline's settings; its globs say which files are run.
        session: Gives the Spark session; called only if a file uses ``spark`` at module level.
        schema_files: Gets the hash of each file that a schema was read from.

    Raises:
        PipelineFilesMissingError: The globs match no Python file.
        PipelineFileFailedError: A file raised an exception.
        NothingDeclaredError: The files declare no dataset.
        FeatureUnsupportedError: A file is written in SQL.
        HeadraceError: A declaration is wrong.
    """
    files = find_files(settings)
    read = {} if schema_files is None else schema_files
    try:
        declarations = _load(files, settings, session, read)
    except PipelineFileFailedError as error:
        if not _lacks_session(error):
            raise
        # Some calls of PySpark at module level, such as F.udf, need a session: start it and run the files
        # again, from the first.
        session()
        declarations = _load(files, settings, session, read)
    if not (declarations.datasets or declarations.flows):
        raise NothingDeclaredError(
            f"pipeline {settings.name} declares no dataset",
            facts=[f"{display_path(file, settings.root)} declares nothing" for file in files[:5]],
            remedies=["decorate a query function with @hr.table or @hr.materialized_view"],
            params={"files": [display_path(file, settings.root) for file in files]},
        )
    return declarations


def _load(
    files: Sequence[Path],
    settings: ProjectSettings,
    session: Callable[[], SparkSession],
    schema_files: dict[str, str],
) -> Declarations:
    forget_modules()
    set_import_path(settings.root)
    before = set(sys.modules)

    def marked_session() -> SparkSession:
        # A file can send code of the pipeline to a worker while it loads: `spark.dataSource.register(..)`.
        found = session()
        mark_modules(set(sys.modules) - before, settings.root)
        return found

    registry = Registry(settings.database)
    active = ActivePipeline(settings, marked_session, registry, schema_files)
    with ExitStack() as stack:
        stack.enter_context(activate(active))
        if any(_SPARK_PIPELINES.search(_source(file)) for file in files):
            stack.enter_context(_spark_registry(active))
        try:
            for file in files:
                _run(file, active)
        finally:
            mark_modules(set(sys.modules) - before, settings.root)
    return registry.declarations()


def _lacks_session(error: PipelineFileFailedError) -> bool:
    """Whether PySpark refused a call because there was no session."""
    cause = error.__cause__
    condition = getattr(cause, "getCondition", lambda: None)()
    return bool(condition == "SESSION_OR_CONTEXT_NOT_EXISTS")


# -- files ---------------------------------------------------------------------------------------


def find_files(settings: ProjectSettings) -> list[Path]:
    """The pipeline's Python files, in sorted order, each once."""
    found: set[Path] = set()
    for pattern in settings.libraries:
        found.update(_matches(settings, pattern))
    sql = sorted(file for file in found if file.suffix == ".sql")
    if sql:
        shown = display_path(sql[0], settings.root)
        raise FeatureUnsupportedError(
            f"{shown} is an SQL file, which this version does not support",
            location=SourceLocation(shown, 1),
            remedies=["write the query as spark.sql(..) in a @hr.table or @hr.materialized_view function"],
            params={"files": [display_path(file, settings.root) for file in sql]},
        )
    files = sorted(file for file in found if file.suffix == ".py")
    if not files:
        raise PipelineFilesMissingError(
            f"pipeline {settings.name} has no files: nothing matches {', '.join(settings.libraries)}",
            facts=[f"looked in {settings.root}"],
            remedies=["put a Python file there, or change `libraries` in the spec"],
            params={"libraries": list(settings.libraries), "root": str(settings.root)},
        )
    return files


def _matches(settings: ProjectSettings, pattern: str) -> Iterator[Path]:
    root = settings.root
    _check_pattern(root, pattern)
    # `folder/**` matches only folders in Python's glob; in Spark's spec it means all files below.
    for file in root.glob(f"{pattern}/*" if pattern.endswith("**") else pattern):
        below = file.relative_to(root).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in below)
        if file.is_file() and not hidden:
            yield file


def _check_pattern(root: Path, pattern: str) -> None:
    """Refuse a pattern that can never match."""
    named = root / pattern
    is_glob = any(sign in pattern for sign in "*?[")
    if PurePath(pattern).is_absolute() or ".." in PurePath(pattern).parts:
        problem, remedy = (
            "is outside of the folder of the spec",
            "move the files below the folder of the spec",
        )
    elif is_glob or (named.is_file() and named.suffix in (".py", ".sql")):
        return
    elif named.is_dir():
        problem, remedy = "is a folder", f"write {pattern.rstrip('/')}/** for all files below it"
    else:
        problem, remedy = (
            "does not exist or is not a Python file",
            "name a .py file, or a glob such as transformations/**",
        )
    raise PipelineFilesMissingError(
        f"`libraries` names {pattern}, which {problem}",
        facts=[f"looked in {root}"],
        remedies=[remedy],
        params={"libraries": [pattern], "root": str(root)},
    )


def _source(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


# -- modules -------------------------------------------------------------------------------------


def _run(file: Path, active: ActivePipeline) -> None:
    root = active.settings.root
    name = ".".join(file.relative_to(root).with_suffix("").parts)
    loaded = sys.modules.get(name)
    if loaded is not None and _is_file_of(loaded, file):
        # An earlier file has imported it: its decorators have run.
        loaded.__dict__.setdefault("spark", spark)
        return
    taken = loaded is not None or name.partition(".")[0] in sys.stdlib_module_names
    module = ModuleType(f"headrace_pipeline.{name}" if taken else name)
    module.__dict__.update(__file__=str(file), spark=spark)
    sys.modules[module.__name__] = module
    try:
        # Compiled here rather than imported: a cached file could be older than an edit in the same second,
        # and no cache is written beside the user's files.
        exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), module.__dict__)
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:
        raise build_file_error(error, file, root) from error


def _is_file_of(module: ModuleType, file: Path) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and Path(origin).resolve() == file.resolve()


def _spark_registry(active: ActivePipeline) -> AbstractContextManager[None]:
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context

    from headrace.declare.compat import SparkRegistry

    context: AbstractContextManager[None] = graph_element_registration_context(SparkRegistry(active))
    return context
