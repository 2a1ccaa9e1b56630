"""A folder whose files are a stream: which of its files belong to it, by Spark's rules."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any, Protocol
from urllib.parse import unquote

_SPECIAL = re.compile(r"[*?\[{]")
_S3 = ("s3", "s3a")
"""Schemes of Hadoop's that name the same objects: two spellings of a lake would be two leases."""
_SINK_LOG = "_spark_metadata"


class Entry(Protocol):
    """A file or a folder in the listing of a folder. A file that is deleted after the listing can raise
    `FileNotFoundError` for its size and its time."""

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
    path: str
    size: int
    modified_ms: int  # when it was last written, in milliseconds since 1970


class Folders(Protocol):
    def entries(self, folder: str) -> Sequence[Entry]:
        """Return the files and folders of a folder, without order; none if the folder does not exist."""

    def exists(self, path: str) -> bool:
        """Return whether there is a file or a folder at this path."""


@dataclass(frozen=True, kw_only=True)
class FileFolder:
    """A folder, or a pattern of folders and files, as a stream of files reads it. Spark ignores names that
    begin with ``.`` or ``_``, and names that end in ``._COPYING_``."""

    path: str  # may hold ``*``, ``?``, ``[..]`` and ``{a,b}``
    storage: Folders = field(repr=False, compare=False)
    recursive: bool = False  # whether folders below count, too; otherwise only those named ``key=value``
    glob: str | None = None  # a pattern that the names of files have to match

    @classmethod
    def of_identity(cls, identity: Mapping[str, Any], storage: Folders) -> FileFolder:
        return cls(
            path=plain_path(str(identity["path"])),
            storage=storage,
            recursive=bool(identity.get("recursive")),
            glob=identity.get("glob"),
        )

    @property
    def is_pattern(self) -> bool:
        return _SPECIAL.search(self.path) is not None

    @property
    def base(self) -> str:
        """The folder that must be there: what comes before the first special character."""
        found = _SPECIAL.search(self.path)
        return self.path if found is None else self.path[: found.start()].rpartition("/")[0] or "/"

    @property
    def is_sinks(self) -> bool:
        """Whether a streaming sink of Spark wrote the folder; the log of the sink then lists its files."""
        return self.storage.exists(f"{self.path}/{_SINK_LOG}")

    def exists(self) -> bool:
        return self.storage.exists(self.base)

    def files(self) -> Iterator[FoundFile]:
        """The files that a stream would read, in no order; files that vanish meanwhile are left out. Raises
        `OSError` if the folder does not exist or cannot be listed."""
        yield from filter(self._chooses, self._all())

    def count_ignored(self) -> int:
        """The number of files in these folders that Spark ignores because of their name."""
        return sum(_is_hidden(found.path.rpartition("/")[2]) for found in self._all())

    def partition_columns(self) -> tuple[str, ...]:
        """The columns that folders named ``key=value`` give."""
        if self.recursive:
            return ()
        for path in self._possibly_keyed():
            above = path.removeprefix(self.base).strip("/").split("/")[:-1]
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
        for entry in self.storage.entries(self.path):
            if "=" in entry.name and entry.is_folder and not _is_hidden(entry.name):
                below = self._below(f"{self.path}/{entry.name}", 1)
                yield from (file.path for file in below if self._chooses(file))

    def _all(self) -> Iterator[FoundFile]:
        if not self.is_pattern:
            yield from self._below(self.path)
            return
        for path, entry in self._matching().items():
            yield from self._below(path) if entry.is_folder else _found(path, entry)

    def _below(self, folder: str, depth: int = 0) -> Iterator[FoundFile]:
        entries = self.storage.entries(folder)
        if not entries and not depth and not self.storage.exists(folder):
            raise FileNotFoundError(f"{folder} does not exist")
        for entry in entries:
            path = f"{folder.rstrip('/')}/{entry.name}"
            if not entry.is_folder:
                yield from _found(path, entry)
            elif _is_hidden(entry.name):
                continue
            elif self.recursive or depth or "=" in entry.name:
                # Below a folder that is named for a value, Spark looks into all of them.
                yield from self._below(path, depth + 1)

    def _matching(self) -> dict[str, Entry]:
        """The paths that a pattern of Hadoop's matches, part by part."""
        found: dict[str, Entry] = {}
        for expanded in _expanded(self.path):
            special = _SPECIAL.search(expanded)
            base = expanded[: special.start() if special else None].rpartition("/")[0]
            folders: dict[str, Entry | None] = {base: None}
            for part in expanded.removeprefix(base).strip("/").split("/"):
                folders = {path: entry for above in folders for path, entry in self._children(above, part)}
            found |= {path: entry for path, entry in folders.items() if entry is not None}
        return found

    def _children(self, folder: str, part: str) -> Iterator[tuple[str, Entry]]:
        is_pattern = _SPECIAL.search(part) is not None
        matches = re.compile(_pattern(part) if is_pattern else re.escape(part))
        for entry in sorted(self.storage.entries(folder or "/"), key=lambda entry: entry.name):
            if matches.fullmatch(entry.name) and not (is_pattern and _is_hidden(entry.name)):
                yield f"{folder}/{entry.name}", entry


def plain_path(uri: str) -> str:
    """A path as it is, a ``file:`` URI as its path, and a URI of S3 in one spelling and without
    percent-encoding; another URI is returned unchanged. As Hadoop does, a URI is read as a path: ``#`` and
    ``?`` are characters of names."""
    scheme, _, path = uri.partition(":")
    if scheme.lower() in _S3 and path.startswith("//"):
        return f"s3:{unquote(path)}"
    if scheme.lower() != "file":
        return uri
    if path.startswith("//"):
        host, slash, below = path[2:].partition("/")
        path = slash + below if host in ("", "localhost") else ""
    return unquote(path) if path.startswith("/") else uri


def _found(path: str, entry: Entry) -> Iterator[FoundFile]:
    with contextlib.suppress(FileNotFoundError):
        yield FoundFile(path, entry.size, entry.modified_ms)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


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
