"""A hash of a query's plan, equal in every process that plans the same query."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from headrace.model.project import code_language
from headrace.plan.logical import LogicalPlan
from headrace.storage.location import Location

_LEAF = re.compile(r"(Streaming(?:Execution)?Relation(?:V2)?|FileSource(?=\[))(?: |\[).*")
"""A plan of one stream prints as its source."""
_OBJECT = re.compile(r"@[0-9a-f]{4,}\b")
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_SEED = re.compile(r"\b((?:rand|randn|shuffle|uuid|randstr|uniform)\([^()]*?)(?:Some\()?-?\d{6,}\)?(?=[,)])")
_OPTIONAL_SEED = re.compile(r"\bSome\(-?\d{6,}\)")
_SAMPLE_SEED = re.compile(r"\b(Sample [\d.E-]+, [\d.E-]+, (?:true|false), )-?\d+")
_LAMBDA = re.compile(r"\blambda \w+#")
"""PySpark numbers the variables of lambda functions per process."""
_SPLITS = re.compile(r"splits=\w+(?:\(\d+\))?")
_TABLE_EXPRESSION = re.compile(r"\b(CTERelationDef|CTERelationRef|UnionLoop|UnionLoopRef) (\d+)")
_OBSERVED = re.compile(r"\b(CollectMetrics .*), \d+$", re.MULTILINE)
"""Spark numbers the DataFrames of a process."""
_EQUAL = {
    _OBSERVED: r"\1",
    _OBJECT: "",
    _UUID: "uuid",
    _SEED: r"\1seed",
    _OPTIONAL_SEED: "seed",
    _SAMPLE_SEED: r"\1seed",
    _LAMBDA: "lambda #",
    _SPLITS: "splits",
    _TABLE_EXPRESSION: r"\1 #t\2",
}
_ID = re.compile(r"#(t?\d+)(L?)")


def fingerprint(
    plan: LogicalPlan, sources: Iterable[str], code: Callable[[], str], expectations: Iterable[str] = ()
) -> str:
    """The hash of a plan.

    Args:
        sources: A description of each streaming relation, in order, that is equal in all profiles.
        code: Gives a hash of the pipeline's code; called only if the plan has Python functions or rows,
            which its text does not show.
    """
    digest = hashlib.sha256(canonical(plan.text, sources).encode())
    if plan.opaque:
        digest.update(code().encode())
    for condition in expectations:
        digest.update(condition.encode())
    return digest.hexdigest()[:32]


def canonical(text: str, sources: Iterable[str] = ()) -> str:
    """A plan's text without the parts that differ between two analyses of the same query."""
    remaining = iter(sources)
    lines = [
        _LEAF.sub(lambda found: f"{found[1]} {next(remaining, '')}", line) if _LEAF.search(line) else line
        for line in text.splitlines()
    ]
    text = "\n".join(lines)
    for pattern, replacement in _EQUAL.items():
        text = pattern.sub(replacement, text)
    numbers: dict[str, int] = {}
    return _ID.sub(lambda found: f"#{numbers.setdefault(found[1], len(numbers))}{found[2]}", text)


class CodeDigest:
    """A hash of the pipeline's Python and SQL files, computed at the first call."""

    def __init__(self, folders: Sequence[Path], storage: Location) -> None:
        self._folders = folders
        self._storage = storage
        self._value: str | None = None

    def __call__(self) -> str:
        if self._value is None:
            self._value = _code_digest(self._folders, self._storage)
        return self._value


def _code_digest(folders: Sequence[Path], storage: Location) -> str:
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(code_files(folder, storage)):
            digest.update(str(path.relative_to(folder)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def code_files(folder: Path, storage: Location) -> Iterator[Path]:
    """The Python and SQL files of a folder, without hidden folders, virtual environments and the storage."""
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name == "__pycache__" or str(path.absolute()) == storage.path:
            continue
        if code_language(path) is not None and path.is_file():
            yield path
        elif path.is_dir() and not (path / "pyvenv.cfg").exists():
            yield from code_files(path, storage)
