"""Runs a pipeline's files, whose decorators and statements declare its datasets and flows."""

from __future__ import annotations

import importlib
import linecache
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from traceback import extract_tb
from types import CodeType, ModuleType

from headrace.declare.auto_loader import CLOUD_FILES, read_cloud_files
from headrace.declare.dbutils import Dbutils
from headrace.declare.lakeflow import importable
from headrace.declare.notebooks import FileRun, find_guard, run_file
from headrace.declare.pipeline_files import find_files, path_parts
from headrace.declare.reads import decode_registered
from headrace.declare.registry import ActivePipeline, Registry, activate_pipeline, spark
from headrace.declare.sql_files import declare_file
from headrace.declare.sql_functions import find_calls_in
from headrace.declare.worker_modules import MARK, PipelineModules, Source, ship_imported_modules
from headrace.errors import NothingDeclaredError, PipelineFileFailedError, SourceLocation
from headrace.model.declarations import Declarations
from headrace.model.names import separate_names
from headrace.model.project import PathMap, ProjectSettings, code_language
from headrace.model.queries import finding_calls
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.runtime.places import working_in
from headrace.sources.requests import reading_formats
from headrace.storage.mapped_files import mapping_files
from headrace.syntax.locations import display_path


def forget_modules() -> None:
    """Forget the modules of an earlier load: their files may have changed."""
    for name, module in list(sys.modules.items()):
        if getattr(module, "__dict__", {}).get(MARK) is not None:
            del sys.modules[name]
    importlib.invalidate_caches()
    linecache.checkcache()


def set_import_path(
    folders: Sequence[Path], paths: PathMap, files: Sequence[Path], root_path: Path | None = None
) -> PipelineModules:
    """Let files and queries import modules of the pipeline, until another pipeline is loaded.

    Modules of the first folder are imported by their names. The files also import modules of their own
    folders, as notebooks do, and those beside the folder `transformations`, as on Databricks, if no other
    module has the name.
    """
    others = [entry for entry in sys.path if not isinstance(entry, _PipelineFolder)]
    roots = [one.parent for file in files for one in file.parents if one.name == "transformations"]
    below = (*filter(None, [root_path]), *(file.parent for file in files), *roots)
    beside = dict.fromkeys(one for one in below if one != folders[0])
    sys.path[:] = [_PipelineFolder(folders[0]), *others, *map(_PipelineFolder, beside)]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _PipelineFinder)]
    # Behind the finders of other tools, such as pytest's for test modules.
    finder = _PipelineFinder(folders)
    sys.meta_path.insert(sys.meta_path.index(PathFinder), finder)
    sys.path_hooks[:] = [hook for hook in sys.path_hooks if not isinstance(hook, _MappedFolders)]
    if paths.targets:
        sys.path_hooks.insert(0, _MappedFolders(paths))
        for entry in [entry for entry in sys.path_importer_cache if paths.find(entry)]:
            del sys.path_importer_cache[entry]
    return finder.modules


def mark_modules(names: set[str], folders: Sequence[Path], modules: PipelineModules) -> None:
    """Mark the modules of the pipeline's folders, and let Spark send their functions to workers by value."""
    for name in names:
        module = sys.modules.get(name)
        if module is not None and _is_below(getattr(module, "__file__", None), folders):
            _mark(module, modules)
            modules.read_bodies(name, str(module.__file__))


def _mark(module: ModuleType, modules: PipelineModules) -> None:
    """A worker cannot import the module by name, so its functions are pickled by value."""
    module.__dict__[MARK] = modules
    if "pyspark" in sys.modules:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(module)
        ship_imported_modules()


def _is_below(origin: str | None, folders: Sequence[Path]) -> bool:
    path = None if origin is None else Path(origin).absolute()
    root = next((one for one in folders if path and path.is_relative_to(one)), None)
    if path is None or root is None:
        return False
    # A virtual environment inside of the pipeline's folder is not the pipeline's code.
    parts = path.relative_to(root).parts
    return "site-packages" not in parts and not any(part.startswith(".") for part in parts)


class _MappedFolders:
    """Finds the modules of entries of ``sys.path`` that are paths of another system."""

    def __init__(self, paths: PathMap) -> None:
        self._paths = paths

    def __call__(self, entry: str) -> FileFinder:
        found = self._paths.find(entry)
        if found is None:
            raise ImportError(entry)
        return FileFinder(found.path, (SourceFileLoader, SOURCE_SUFFIXES))


class _PipelineFolder(str):
    """An entry of ``sys.path`` that a load has added, and that the next load removes."""


class _PipelineFinder(MetaPathFinder):
    """Finds the modules in the folders of a pipeline. A query can import one while it runs."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self.modules = PipelineModules(self.find_spec)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        if not _is_below(spec.origin, self._folders):
            return None
        spec.loader = _PipelineLoader(spec.loader.name, spec.loader.path, self.modules)
        spec.cached = None
        return spec


class _PipelineLoader(SourceFileLoader):
    """Loads a module from its source: a cached file could be older than an edit in the same second."""

    def __init__(self, name: str, path: str, modules: PipelineModules) -> None:
        super().__init__(name, path)
        self._modules = modules

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        text = self.get_data(path)
        self._modules.add(fullname, Source(text, path, self.is_package(fullname)))
        code: CodeType = self.source_to_code(text, path)
        return code

    def exec_module(self, module: ModuleType) -> None:
        _mark(module, self._modules)
        super().exec_module(module)


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
    name = ".".join(path_parts(file.with_suffix(""), active.settings.root))
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
