"""Imports of modules from a pipeline's folder: always from their source, and sent to workers by value."""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

_MARK = "__headrace_pipeline__"
"""Set on every module that came from a pipeline's folder, with the folder as its value."""


def forget_modules() -> None:
    """Forget the modules of an earlier load: their files may have changed."""
    for name, module in list(sys.modules.items()):
        if getattr(module, "__dict__", {}).get(_MARK) is not None:
            del sys.modules[name]
    importlib.invalidate_caches()
    linecache.checkcache()


def set_import_path(root: Path) -> None:
    """Let files and queries import modules beside the spec, until another pipeline is loaded."""
    others = [entry for entry in sys.path if not isinstance(entry, _PipelineFolder)]
    sys.path[:] = [_PipelineFolder(root), *others]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _PipelineFinder)]
    # Behind the finders of other tools, such as pytest's for test modules.
    sys.meta_path.insert(sys.meta_path.index(PathFinder), _PipelineFinder(root))


def mark_modules(names: set[str], root: Path) -> None:
    """Mark the modules of the pipeline's folder, and let Spark send their functions to workers by value."""
    for name in names:
        module = sys.modules.get(name)
        if module is not None and _is_below(getattr(module, "__file__", None), root):
            _mark(module, root)


def _mark(module: ModuleType, root: Path) -> None:
    """A worker cannot import the module by name, so its functions are pickled by value."""
    module.__dict__[_MARK] = str(root)
    if "pyspark" in sys.modules:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(module)


def _is_below(origin: str | None, root: Path) -> bool:
    if origin is None or not Path(origin).absolute().is_relative_to(root):
        return False
    # A virtual environment inside of the pipeline's folder is not the pipeline's code.
    parts = Path(origin).absolute().relative_to(root).parts
    return "site-packages" not in parts and not any(part.startswith(".") for part in parts)


class _PipelineFolder(str):
    """An entry of ``sys.path`` that a load has added, and that the next load removes."""


class _PipelineFinder(MetaPathFinder):
    """Finds modules in a pipeline's folder, also those that a query imports when it is called."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        if not _is_below(spec.origin, self._root):
            return None
        spec.loader = _PipelineLoader(spec.loader.name, spec.loader.path, self._root)
        spec.cached = None
        return spec


class _PipelineLoader(SourceFileLoader):
    """Loads a module from its source.

    A cached file could be older than an edit in the same second, so none is read, and none is written.
    """

    def __init__(self, name: str, path: str, root: Path) -> None:
        super().__init__(name, path)
        self._root = root

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code

    def exec_module(self, module: ModuleType) -> None:
        _mark(module, self._root)
        super().exec_module(module)
