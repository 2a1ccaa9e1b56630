"""The modules of a pipeline that functions import in their bodies: a worker gets their texts.

Functions are pickled by value, because a worker cannot import a pipeline's modules by name. An import in the
body of a function runs on the worker, so the texts of such modules go with the function. So do the texts of
modules that the body names literally: ``importlib.import_module("helper")``. Functions with
``functools.lru_cache`` go by value, too.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

MARK = "__headrace_pipeline__"  # set on every module that came from a pipeline's folder

_IMPORTS = ("import_module", "__import__")
"""Functions that import a module by its name."""
_NO_STEPS = ("EXTENDED_ARG", "CACHE", "PUSH_NULL")

_Find = Callable[[str, Sequence[str] | None], ModuleSpec | None]


class Source(NamedTuple):
    text: bytes
    file: str
    is_package: bool


class PipelineModules:
    """The modules of one load of a pipeline. A later load, of changed files, has an object of its own.
    `find`: finds a module in the pipeline's folders; ``None`` if it comes from elsewhere."""

    def __init__(self, find: _Find) -> None:
        self._find = find
        self._known: dict[str, Source | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker gets the module's dictionary, with the mark; it needs no more than that it is set.
        return bool, (True,)

    def add(self, name: str, source: Source) -> None:
        self._known[name] = source

    def read_bodies(self, name: str, file: str) -> None:
        """Read now what the functions of a loaded file import in their bodies: it may be edited before they
        are called."""
        known = self._known.get(name)
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            text = Path(file).read_bytes() if known is None else known.text
            is_package = known is not None and known.is_package
            self.read_imported(_compiled(text, file), name if is_package else name.rpartition(".")[0])

    def read_imported(self, code: CodeType, package: str) -> dict[str, Source]:
        """The modules that code imports anywhere, and those that these import."""
        found: dict[str, Source] = {}
        waiting = [*_imported(code, package)]
        while waiting:
            name = waiting.pop()
            source = None if name in found else self._source(name)
            if source is None:
                continue
            found[name] = source
            above = name.rpartition(".")[0]
            waiting += _imported(_compiled(source.text, source.file), name if source.is_package else above)
            while above:
                # A folder without __init__.py is a package, too.
                found.setdefault(above, self._source(above) or Source(b"", above, True))
                above = above.rpartition(".")[0]
        return found

    def _source(self, name: str) -> Source | None:
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def _read(self, name: str) -> Source | None:
        """A module that has not been imported yet."""
        top = name.partition(".")[0]
        loaded = sys.modules.get(top)
        is_foreign = loaded is not None and MARK not in vars(loaded) and getattr(loaded, "__file__", None)
        if is_foreign or top in sys.stdlib_module_names:
            return None
        path: Sequence[str] | None = None
        own: ModuleSpec | None = None
        parts = name.split(".")
        for number in range(len(parts)):
            full = ".".join(parts[: number + 1])
            own = self._find(full, path)
            found = own or PathFinder.find_spec(full, path)
            if found is None:
                return None
            path = found.submodule_search_locations
        if own is None or own.origin is None:
            return None
        return Source(Path(own.origin).read_bytes(), own.origin, path is not None)


def _compiled(text: bytes, file: str) -> CodeType:
    code: CodeType = compile(text, file, "exec", dont_inherit=True)
    return code


def _imported(code: CodeType, package: str) -> Iterator[str]:
    """The absolute names of everything that code imports, also in the functions that it defines."""
    steps = [one for one in dis.get_instructions(code) if one.opname not in _NO_STEPS]
    for call, first in pairwise(steps):
        is_import = call.argval in _IMPORTS and call.opname.startswith("LOAD_")
        if is_import and first.opname == "LOAD_CONST" and isinstance(first.argval, str):
            with contextlib.suppress(ImportError):
                yield resolve_name(first.argval, package)
    for level, names, step in zip(steps, steps[1:], steps[2:], strict=False):
        if step.opname == "IMPORT_NAME":
            above = package.split(".")
            base = above[: len(above) - level.argval + 1] if level.argval else []
            module = ".".join(filter(None, (*base, step.argval)))
            yield module
            yield from (f"{module}.{name}" for name in names.argval or ())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imported(constant, package)


@cache
def ship_imported_modules() -> None:
    """Let PySpark send the modules that a function imports in its body together with the function."""
    from pyspark.cloudpickle import cloudpickle

    original: Callable[[FunctionType], Any] = cloudpickle._function_getstate

    def with_modules(function: FunctionType) -> Any:
        state, slots = original(function)
        modules = _global(function, MARK)
        if isinstance(modules, PipelineModules):
            package = _global(function, "__package__") or ""
            if found := modules.read_imported(function.__code__, package):
                # What is in this list is only unpickled, before the function can be called.
                slots["_cloudpickle_submodules"].append(_Shipped(found))
        return state, slots

    cloudpickle._function_getstate = with_modules
    cloudpickle.Pickler._dispatch_table[functools._lru_cache_wrapper] = _with_cache


def _with_cache(cached: Any) -> Any:
    """Pickle a function with a cache by value: by default, it is its name, which a worker cannot import."""
    function = getattr(cached, "__wrapped__", None)
    if not isinstance(function, FunctionType) or not isinstance(_global(function, MARK), PipelineModules):
        return cached.__reduce__()
    given = cached.cache_parameters()
    names: Any = functools
    return type(cached), (function, given["maxsize"], given["typed"], names._CacheInfo), vars(cached)


def _global(function: FunctionType, name: str) -> Any:
    # `get` misses the globals that a query takes from its module (`syntax.bindings.DeclaredGlobals`).
    try:
        return function.__globals__[name]
    except KeyError:
        return None


class _Shipped:
    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources

    def __reduce__(self) -> tuple[Any, ...]:
        return _provide, ({name: tuple(source) for name, source in self._sources.items()},)


def _provide(sources: dict[str, tuple[bytes, str, bool]]) -> None:
    """Let a worker import modules from their texts. Runs on the worker, which may lack Headrace."""
    import sys
    from importlib.util import spec_from_loader

    if any(type(one).__name__ == "_PipelineFinder" for one in sys.meta_path):
        # The process of the pipeline itself.
        return
    finder: Any = next((one for one in sys.meta_path if type(one).__name__ == "HeadraceSources"), None)
    if finder is None:

        class HeadraceSources:
            def __init__(self) -> None:
                self.sources: dict[str, tuple[bytes, str, bool]] = {}

            def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
                if name not in self.sources:
                    return None
                _, file, is_package = self.sources[name]
                return spec_from_loader(name, self, origin=file, is_package=is_package)  # type: ignore[arg-type]

            def create_module(self, spec: object) -> None:
                return None

            def exec_module(self, module: Any) -> None:
                text, module.__file__, _ = self.sources[module.__name__]
                exec(compile(text, module.__file__, "exec", dont_inherit=True), module.__dict__)

        finder = HeadraceSources()
        sys.meta_path.insert(0, finder)
    if any(finder.sources.get(name) != source for name, source in sources.items()):
        # Modules that import a changed one have its old functions.
        for name in {*finder.sources, *sources}:
            sys.modules.pop(name, None)
        finder.sources.update(sources)


_provide.__module__ = "__main__"
"""So it is pickled by value."""
