"""Imports of modules from a pipeline's folder: always from their source, and sent to workers by value."""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from headrace.declare.worker_modules import MARK, PipelineModules, Source, ship_imported_modules
from headrace.model.mappings import PathMap


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
    """Finds modules in a pipeline's folders, also those that a query imports when it is called."""

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
