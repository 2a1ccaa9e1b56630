"""Paths of other systems in code and in functions of Python, as `paths` in the spec maps them."""

from __future__ import annotations

import builtins
import functools
import glob
import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import RLock
from typing import Any

from headrace.errors import PathUnmappedError, SourceLocation
from headrace.model.folders import FileFolder
from headrace.model.project import ENTRY_MISSING, FOREIGN_PATH, PathMap, ProjectSettings
from headrace.storage.layout import locate

_WITH_ONE_PATH = (
    *("stat", "lstat", "listdir", "scandir", "open", "access", "readlink"),
    *("mkdir", "rmdir", "remove", "unlink", "chmod", "utime", "truncate"),
    *("statvfs", "listxattr", "getxattr", "setxattr", "removexattr"),
)
_WITH_TWO_PATHS = ("rename", "replace", "link", "symlink")
_KEYWORDS = ("path", "file", "src", "dst")
_DBFS = "/dbfs/"
"""Where the files of `dbfs:/` are for Python, on the other platform."""

_paths: ContextVar[PathMap | None] = ContextVar("headrace_mapped_files", default=None)
_lock = RLock()
_running = 0
_originals: list[tuple[Any, str, Any]] = []
_SUPPORTS = (os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks)
"""The functions with further arguments, among which `shutil` looks for a function before it calls it."""


@contextmanager
def mapping_files(paths: PathMap) -> Iterator[None]:
    """Map paths in `open` and `os` within the block, and so in `os.path`, `pathlib`, `glob` and `shutil`."""
    if not paths.targets:
        yield
        return
    token = _paths.set(paths)
    _enter()
    try:
        yield
    finally:
        _leave()
        _paths.reset(token)


def _enter() -> None:
    global _running
    with _lock:
        _running += 1
        if _running > 1:
            return
        replaced = [(owner, "open", 1) for owner in (builtins, io)]
        replaced += [(os, name, 1) for name in _WITH_ONE_PATH if hasattr(os, name)]
        replaced += [(os, name, 2) for name in _WITH_TWO_PATHS]
        # In Python 3.13 a class of `glob`, which `Path.glob` uses, keeps two functions of `os`.
        globber: Any = getattr(glob, "_StringGlobber", None)
        replaced += [(globber, name, 1) for name in ("lstat", "scandir") if name in vars(globber or object)]
        for owner, name, count in replaced:
            mapped = _Mapped(getattr(owner, name), count)
            _originals.append((owner, name, vars(owner)[name]))
            setattr(owner, name, mapped)
            for group in _SUPPORTS:
                if mapped.original in group:
                    group.add(mapped)


def _leave() -> None:
    global _running
    with _lock:
        _running -= 1
        while not _running and _originals:
            owner, name, original = _originals.pop()
            for group in _SUPPORTS:
                group.discard(getattr(owner, name))
            setattr(owner, name, original)


class _Mapped:
    """A function whose first arguments are paths. As an attribute of a class it does not become a method:
    the functions of `os`, which are written in C, do not either."""

    def __init__(self, original: Callable[..., Any], count: int) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self._count = count

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (paths := _paths.get()) is None:
            return self.original(*args, **kwargs)
        found = [_find(one, paths) for one in args[: self._count]]
        named = {name: _find(kwargs[name], paths) for name in _KEYWORDS if name in kwargs}
        return self.original(*found, *args[self._count :], **{**kwargs, **named})

    def __reduce__(self) -> Any:
        # A worker gets the function itself.
        return functools.partial, (self.original,)


def _find(given: Any, paths: PathMap) -> Any:
    """The path that replaces this one; file descriptors and other paths are returned as they are."""
    if not isinstance(given, str | os.PathLike):
        return given
    text = os.fspath(given)
    if not isinstance(text, str) or not text.startswith("/"):
        return given
    found = paths.find(text)
    if found is None and text.startswith(_DBFS):
        found = paths.find(f"dbfs:/{text.removeprefix(_DBFS)}")
    return given if found is None else found.path


_LOCAL = re.compile(r"/|dbfs:")
"""Paths that only a mapping can make readable; Spark may have a connector for the others."""


def mapped_path(path: str, settings: ProjectSettings, location: SourceLocation | None = None) -> str:
    """The path that Spark gets for a path in a pipeline's code.

    An entry of `paths` replaces it. Else a relative path starts at the folder of the pipeline's data, and a
    URI stays as it is.
    """
    found = settings.paths.find(path)
    if found is not None:
        return found.path
    foreign = FOREIGN_PATH.match(path)
    if foreign and _LOCAL.match(path) and not _exists(path, settings):
        prefix = foreign[0]
        key = f'"{prefix}"' if prefix.endswith(":") else prefix.rstrip("/")
        entry = f"{key}: ./{prefix.strip('/:').lower()}"
        raise PathUnmappedError(
            f"the path {path} is of another system, and no entry of `paths` has it",
            location=location,
            remedies=[f"{ENTRY_MISSING}{settings.spec_to_edit}:   paths: {{{entry}}}"],
            params={"path": path, "prefix": prefix},
        )
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", path):
        # The names of files in Spark's logs begin with the scheme of the path.
        return re.sub(r"^s3a://", "s3://", path, flags=re.IGNORECASE)
    return os.path.normpath(settings.data_folder / path)


def find_unmapped(
    error: BaseException, settings: ProjectSettings, location: SourceLocation
) -> PathUnmappedError | None:
    """The error for a missing file whose path is of another system, and in no entry of `paths`."""
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        try:
            mapped_path(error.filename, settings, location)
        except PathUnmappedError as unmapped:
            return unmapped
    return None


def _exists(path: str, settings: ProjectSettings) -> bool:
    mapped = any(path.startswith(target) for target in settings.paths.targets.values())
    return path.startswith("/") and (mapped or FileFolder(path=path, storage=locate(path).files).exists())
