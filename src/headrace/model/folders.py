"""A folder whose files are a stream: which of its files belong to it, by Spark's rules."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

_SPECIAL = re.compile(r"[*?\[{]")
_SINK_LOG = "_spark_metadata"


class Entry(Protocol):
    """A file or a folder in the listing of a folder.

    A file that is deleted after the listing can raise `FileNotFoundError` for its size and its time.
    """

    @property
    def name(self) -> str: ...
    @property
    def is_folder(self) -> bool: ...
    @property
    def size(self) -> int: ...  # bytes of a file
    @property
    def modified_ms(self) -> int: ...  # when a file was last written, in milliseconds since 1970


@dataclass(frozen=True)
class FoundFile:
    """A file as it lies in its folder."""

    path: str
    size: int
    modified_ms: int  # when it was last written, in milliseconds since 1970


@dataclass(frozen=True, kw_only=True)
class FileFolder:
    """A folder, or a pattern of folders and files, as a stream of files reads it. Spark ignores names that
    begin with ``.`` or ``_``, and names that end in ``._COPYING_``."""

    path: str  # A local path; may hold ``*``, ``?``, ``[..]`` and ``{a,b}``
    recursive: bool = False  # whether folders below it count, too. Otherwise only those named `key=value` do
    glob: str | None = None  # A pattern that the names of files have to match

    @classmethod
    def of_identity(cls, identity: Mapping[str, Any]) -> FileFolder:
        """The folder of a files source, as its commits name it."""
        return cls(
            path=local_path(str(identity["path"])) or str(identity["path"]),
            recursive=bool(identity.get("recursive")),
            glob=identity.get("glob"),
        )

    @property
    def is_pattern(self) -> bool:
        return _SPECIAL.search(self.path) is not None

    @property
    def base(self) -> Path:
        """The folder that must be there: what comes before the first special character."""
        found = _SPECIAL.search(self.path)
        if found is None:
            return Path(self.path)
        return Path(self.path[: found.start()].rpartition("/")[0] or "/")

    @property
    def is_sinks(self) -> bool:
        """Whether a streaming sink of Spark's wrote it: then the sink's own log says what is in it."""
        return (Path(self.path) / _SINK_LOG).exists()

    def files(self) -> Iterator[FoundFile]:
        """The files that a stream would read, in no order; without those that vanish meanwhile."""
        yield from filter(self._chooses, self._all())

    def count_ignored(self) -> int:
        """The number of files in these folders that Spark ignores because of their name."""
        return sum(_is_hidden(found.path.rpartition("/")[2]) for found in self._all())

    def partition_columns(self) -> tuple[str, ...]:
        """The columns that folders named ``key=value`` give."""
        if self.recursive:
            return ()
        for path in self._possibly_keyed():
            above = Path(path).relative_to(self.base).parent.parts
            if columns := tuple(part.partition("=")[0] for part in above if "=" in part):
                return columns
        return ()

    def _chooses(self, found: FoundFile) -> bool:
        name = found.path.rpartition("/")[2]
        matches = self.glob is None or re.fullmatch(_pattern(self.glob), name) is not None
        return matches and not _is_hidden(name)

    def _possibly_keyed(self) -> Iterator[str]:
        """The files that can be in a folder named ``key=value``; those directly in the folder are not."""
        if self.is_pattern:
            yield from (file.path for file in self.files())
            return
        for entry in list(os.scandir(self.path)):
            if "=" in entry.name and entry.is_dir() and not _is_hidden(entry.name):
                yield from (file.path for file in self._below(entry.path, 1) if self._chooses(file))

    def _all(self) -> Iterator[FoundFile]:
        if not self.is_pattern:
            yield from self._below(self.path)
            return
        for path in _matching(self.path):
            if Path(path).is_dir():
                yield from self._below(path)
            else:
                yield from _found(path)

    def _below(self, folder: str, depth: int = 0) -> Iterator[FoundFile]:
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            if depth:
                return
            raise
        for entry in entries:
            if not entry.is_dir():
                yield from _found(entry.path)
            elif _is_hidden(entry.name):
                continue
            elif self.recursive or depth or "=" in entry.name:
                # Below a folder that is named for a value, Spark looks into all of them.
                yield from self._below(entry.path, depth + 1)


def local_path(uri: str) -> str | None:
    """The local path of a plain path or a ``file:`` URI; ``None`` for other URIs. As Hadoop does, a URI is
    read as a path: ``#`` and ``?`` are characters of names."""
    if uri.startswith("/"):
        return uri
    scheme, _, path = uri.partition(":")
    if path.startswith("//"):
        host, slash, below = path[2:].partition("/")
        path = slash + below if host in ("", "localhost") else ""
    return unquote(path) if scheme.lower() == "file" and path.startswith("/") else None


def _found(path: str) -> Iterator[FoundFile]:
    try:
        stat = Path(path).stat()
    except FileNotFoundError:
        return
    yield FoundFile(path, stat.st_size, stat.st_mtime_ns // 1_000_000)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def _matching(pattern: str) -> Iterator[str]:
    """The paths that a pattern of Hadoop's matches, part by part."""
    seen = set()
    for expanded in _expanded(pattern):
        found = ["/"]
        for part in expanded.strip("/").split("/"):
            found = [path for above in found for path in _children(above, part)]
        for path in found:
            if path not in seen:
                seen.add(path)
                yield path


def _children(folder: str, part: str) -> Iterator[str]:
    prefix = folder.rstrip("/")
    if not _SPECIAL.search(part):
        if Path(f"{prefix}/{part}").exists():
            yield f"{prefix}/{part}"
        return
    matches = re.compile(_pattern(part))
    try:
        names = sorted(one.name for one in Path(folder).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from (f"{prefix}/{name}" for name in names if matches.fullmatch(name) and not _is_hidden(name))


def _expanded(pattern: str) -> Iterator[str]:
    """A pattern without its braces: one for each choice, for a choice may hold a slash."""
    parts = re.split(r"(\{[^{}]*\})", pattern)
    yield from map("".join, product(*(p[1:-1].split(",") if p.startswith("{") else [p] for p in parts)))


@lru_cache
def _pattern(glob: str) -> str:
    """A pattern of Hadoop's for one name, as a regular expression."""
    found = []
    for expanded in _expanded(glob):
        text, at = "", 0
        while at < len(expanded):
            char = expanded[at]
            end = expanded.find("]", at + 2) if char == "[" else -1
            if char == "\\" and at + 1 < len(expanded):
                at += 1
                text += re.escape(expanded[at])
            elif char in "*?":
                text += ".*" if char == "*" else "."
            elif end > 0:
                inner = expanded[at + 1 : end]
                inner = "^" + inner[1:] if inner[0] in "^!" else inner
                text += f"[{inner}]"
                at = end
            else:
                text += re.escape(char)
            at += 1
        found.append(text)
    return "|".join(f"(?:{one})" for one in found)
