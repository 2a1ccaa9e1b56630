"""Names and paths of other systems, as the keys `tables` and `paths` of the spec map them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

FOREIGN_PATH = re.compile(r"(?:dbfs:|abfss?:|wasbs?:|adl:|gs:|s3[an]?:|/dbfs/|/mnt/|/Volumes/|/Workspace/)")
"""The start of paths that another system has: such a path needs an entry under `paths`."""

ENTRY_MISSING = "if another system has it, name its path in "
"""The start of a remedy for a name or a path that has no entry."""

_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")


@dataclass(frozen=True)
class MappedPath:
    path: str
    rule: str


@dataclass(frozen=True)
class PathMap:
    """The entries of `paths`: prefixes of paths, and the locations that replace them."""

    # The location of each prefix; an absolute path, or a URI.
    targets: Mapping[str, str] = field(default_factory=dict)

    def find(self, path: str) -> MappedPath | None:
        """The entry of a path, the one with the longest prefix; ``None`` if there is none. A path below a
        target is never mapped again."""
        path = re.sub(r"^([a-zA-Z0-9]+):///", r"\1:/", path)
        if not self.targets or any(_below(path, target) is not None for target in self.targets.values()):
            return None
        for prefix in sorted(self.targets, key=len, reverse=True):
            rest = _below(path, prefix)
            if rest is not None:
                target = self.targets[prefix]
                return MappedPath(f"{target.rstrip('/')}/{rest}" if rest else target, prefix)
        return None

    def map(self, path: str) -> str:
        """The path that replaces this one; the same path if no entry has it."""
        found = self.find(path)
        return path if found is None else found.path


def _below(path: str, prefix: str) -> str | None:
    bare = prefix.rstrip("/")
    if not path.startswith(bare):
        return None
    rest = path[len(bare) :]
    return rest.lstrip("/") if not rest or rest.startswith("/") or bare.endswith(":") else None


@dataclass(frozen=True)
class MappedTable:
    rule: str
    path: str | None = None  # the path of a Delta table; ``None`` if the entry names a catalog
    parts: tuple[str, ...] = ()  # the name in one of Spark's catalogs


@dataclass(frozen=True)
class TableMap:
    """The entries of `tables`: names of tables, schemas (`a.b.*`) and catalogs (`a.*`) of other systems."""

    # The target of each pattern: an absolute path, a URI, or the name of a catalog.
    targets: Mapping[str, str] = field(default_factory=dict)

    def find(self, parts: tuple[str, ...]) -> MappedTable | None:
        """The entry of a name, the longest one; ``None`` if there is none. The case of names is ignored."""
        for pattern in sorted(self.targets, key=len, reverse=True):
            rest = _rest(parts, pattern)
            if rest is not None:
                return self._mapped(pattern, parts, rest)
        return None

    def _mapped(self, pattern: str, parts: tuple[str, ...], rest: tuple[str, ...]) -> MappedTable:
        target = self.targets[pattern]
        named = tuple(target.split("."))
        if is_name(target):
            return MappedTable(pattern, parts=(*named, *parts[len(parts) - 3 + len(named) :]))
        if not rest:
            return MappedTable(pattern, target)
        if _URI.match(target):
            return MappedTable(pattern, "/".join((target.rstrip("/"), *rest)))
        if (Path(target) / "tables").is_dir():
            # The storage of another pipeline has its tables by schema.
            rest = ("tables", *parts[-2:])
        path = target.rstrip("/")
        for part in rest:
            path = f"{path}/{_in_case_of_folder(Path(path), part)}"
        return MappedTable(pattern, path)


def _in_case_of_folder(folder: Path, name: str) -> str:
    """A name as a subfolder has it, if only one has it in other letter case."""
    if not folder.is_dir() or (folder / name).exists():
        return name
    found = [one.name for one in folder.iterdir() if one.name.casefold() == name.casefold()]
    return found[0] if len(found) == 1 else name


def is_name(target: str) -> bool:
    """Whether the target of a table is the name of a catalog, and not a path."""
    return re.fullmatch(r"\w+(\.\w+){0,2}", target) is not None


def _rest(parts: tuple[str, ...], pattern: str) -> tuple[str, ...] | None:
    """The parts of a name that match the ``*`` of a pattern; ``None`` if the name does not match."""
    wanted = tuple(part.strip("`").casefold() for part in pattern.split("."))
    given = tuple(part.casefold() for part in parts)
    if wanted[-1] != "*":
        return () if given == wanted else None
    fixed = len(wanted) - 1
    return parts[fixed:] if len(parts) > fixed and given[:fixed] == wanted[:-1] else None


def absolute_target(text: str, folder: Path) -> str:
    """The target of an entry as an absolute path, or the URI; relative paths start at the spec's folder."""
    if _URI.match(text):
        return text.removeprefix("file://") if text.startswith("file:///") else text
    return os.path.normpath(folder.absolute() / Path(text).expanduser())
