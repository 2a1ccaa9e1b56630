"""Finds the files of a pipeline by the patterns in its spec; each command that reads a spec needs it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePath

from headrace.errors import PipelineFilesMissingError, SourceLocation
from headrace.model.notes import nearest_path
from headrace.model.project import ProjectSettings, code_language


def find_files(settings: ProjectSettings) -> list[Path]:
    found: set[Path] = set()
    for number, pattern in enumerate(settings.libraries):
        _check_pattern(settings.root, pattern, settings.places.get(f"libraries.{number}"))
        found.update(_matches(settings, pattern))
    files = sorted(file for file in found if code_language(file) is not None)
    if not files:
        folder = re.split(r"[*?[]", settings.libraries[0])[0].rpartition("/")[0] or "."
        raise PipelineFilesMissingError(
            f"pipeline {settings.name} has no files: nothing matches {', '.join(settings.libraries)}",
            location=settings.places.get("libraries" if len(settings.libraries) > 1 else "libraries.0"),
            facts=[f"a pattern is relative to the folder {settings.root}"],
            remedies=[f"correct the pattern, or put a .py or .sql file into {folder}"],
            params={"libraries": list(settings.libraries), "path": str(settings.root)},
        )
    return files


def _matches(settings: ProjectSettings, pattern: str) -> Iterator[Path]:
    root = settings.root
    # `folder/**` matches only folders in Python's glob; in Spark's spec it means all files below.
    rest = os.path.normpath(f"{pattern}/*" if pattern.endswith("**") else pattern)
    start = root
    while rest.startswith("../"):
        start, rest = start.parent, rest.removeprefix("../")
    for path in start.glob(rest):
        below = path_parts(path, root)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in below)
        if path.is_file() and not hidden:
            yield path


def relative_path(path: Path, folder: Path) -> str:
    return os.path.relpath(path.absolute(), folder.absolute())


def path_parts(file: Path, root: Path) -> tuple[str, ...]:
    """The parts of a file's path from the pipeline's folder, without those that lead out of it."""
    return tuple(part for part in Path(os.path.relpath(file, root)).parts if part != "..")


def _check_pattern(root: Path, pattern: str, location: SourceLocation | None) -> None:
    """Refuse a pattern that can never match."""
    named = Path(os.path.normpath(root / pattern))
    is_glob = any(sign in pattern for sign in "*?[")
    if PurePath(pattern).is_absolute():
        problem, remedy = (
            "is an absolute path",
            "write a path from the folder of the spec, such as ../shared/**",
        )
    elif is_glob or (named.is_file() and code_language(named) is not None):
        return
    elif named.is_dir():
        problem, remedy = "is a folder", f"write {pattern.rstrip('/')}/** for all files below it"
    else:
        near = nearest_path(str(named))
        problem, remedy = (
            "does not exist, or is not a Python or SQL file, or a notebook",
            "name a .py, .sql or .ipynb file, or a glob such as transformations/**"
            if near is None
            else f"did you mean `{relative_path(Path(near), root)}`?",
        )
    raise PipelineFilesMissingError(
        f"`libraries` names {pattern}, which {problem}",
        location=location,
        facts=[f"looked in {root}"],
        remedies=[remedy],
        params={"libraries": [pattern], "path": str(root)},
    )
