"""Runs a pipeline's files, whose decorators and statements declare its datasets and flows."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

from headrace.declare.auto_loader import CLOUD_FILES, read_cloud_files
from headrace.declare.dbutils import Dbutils
from headrace.declare.lakeflow import importable
from headrace.declare.notebooks import FileRun, find_guard, run_file
from headrace.declare.pipeline_files import find_files, path_parts
from headrace.declare.pipeline_imports import forget_modules, mark_modules, set_import_path
from headrace.declare.reads import decode_registered
from headrace.declare.registry import ActivePipeline, Registry, activate_pipeline, spark
from headrace.declare.sql_files import declare_file
from headrace.declare.sql_functions import find_calls_in
from headrace.errors import NothingDeclaredError, PipelineFileFailedError, SourceLocation
from headrace.model.declarations import Declarations
from headrace.model.names import separate_names
from headrace.model.project import ProjectSettings, code_language
from headrace.model.queries import finding_calls
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.runtime.places import working_in
from headrace.sources.formats import reading_formats
from headrace.storage.mapped_files import mapping_files
from headrace.syntax.locations import display_path

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
        guards = list(_guards(files, settings.root))
        raise NothingDeclaredError(
            f"pipeline {settings.name} declares no dataset",
            facts=[f"{display_path(file, settings.root)} declares nothing" for file in files[:5]] + guards,
            remedies=[
                *(["move the declarations out of the `if`"] if guards else []),
                "decorate a query function with @hr.table or @hr.materialized_view",
                "or write CREATE STREAMING TABLE name AS SELECT ... in a .sql file",
            ],
            params={"paths": [display_path(file, settings.root) for file in files]},
        )
    return declarations


def _guards(files: Sequence[Path], root: Path) -> Iterator[str]:
    for file in files:
        if code_language(file) == "python" and (line := find_guard(file.read_bytes())) is not None:
            location = SourceLocation(display_path(file, root), line)
            yield f'{location}: `if __name__ == "__main__"` does not hold, since Headrace imports the file'


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
        stack.enter_context(mapping_files(settings.paths))
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
    run_file(FileRun(file, module.__dict__, active, ran))


@contextmanager
def activate(active: ActivePipeline) -> Iterator[ActivePipeline]:
    """Make a pipeline the active one of this thread, for code that uses ``spark`` or reads a source."""
    with (
        activate_pipeline(active),
        reading_formats({CLOUD_FILES: read_cloud_files}, decode_registered),
        finding_calls(find_calls_in),
    ):
        yield active
