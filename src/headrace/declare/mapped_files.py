"""Python's own functions for files, which find mapped paths of another system while files are loaded.

The functions are replaced while at least one pipeline is being loaded. Only code of a thread that loads one
gets other paths, and only for paths below a prefix of `paths`.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import RLock
from typing import Any

from headrace.model.mappings import PathMap

_WITH_ONE_PATH = (
    *("stat", "lstat", "listdir", "scandir", "open", "access", "readlink"),
    *("mkdir", "rmdir", "remove", "unlink", "chmod", "utime", "truncate"),
)
_WITH_TWO_PATHS = ("rename", "replace", "link", "symlink")
_KEYWORDS = ("path", "file", "src", "dst")
_DBFS = "/dbfs/"
"""Where the files of `dbfs:/` are for Python, on the other platform."""

_paths: ContextVar[PathMap | None] = ContextVar("headrace_mapped_files", default=None)
_lock = RLock()
_loading = 0
_originals: list[tuple[Any, str, Any]] = []


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
    global _loading
    with _lock:
        _loading += 1
        if _loading > 1:
            return
        replaced = [(owner, "open", 1) for owner in (builtins, io)]
        replaced += [(os, name, 1) for name in _WITH_ONE_PATH]
        replaced += [(os, name, 2) for name in _WITH_TWO_PATHS]
        for owner, name, count in replaced:
            original = getattr(owner, name)
            _originals.append((owner, name, original))
            setattr(owner, name, _mapped(original, count))


def _leave() -> None:
    global _loading
    with _lock:
        _loading -= 1
        while not _loading and _originals:
            setattr(*_originals.pop())


def _mapped(original: Callable[..., Any], count: int) -> Callable[..., Any]:
    """A function whose first arguments are paths."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if (paths := _paths.get()) is None:
            return original(*args, **kwargs)
        found = [_find(one, paths) for one in args[:count]]
        named = {name: _find(kwargs[name], paths) for name in _KEYWORDS if name in kwargs}
        return original(*found, *args[count:], **{**kwargs, **named})

    return call


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
