"""Lines of a pipeline's files, around a declaration or an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from headrace.dashboard.site import PipelineView
from headrace.model.project import code_language

_DECORATORS, _LONGEST = 12, 40  # lines of a declaration before and after its place
_LARGEST = 2 << 20  # bytes of a file that is shown


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    path: str
    line: int
    lines: tuple[tuple[int, str], ...]  # with their numbers; none if the file is not here


def find_excerpt(view: PipelineView, place: Any, *, before: int = 3, after: int = 3) -> Excerpt | None:
    """The lines around a source location; ``None`` without one. Only files of the pipeline's code are read:
    locations come from the event log, which others may have written."""
    path, line = (place.get("path"), place.get("line")) if isinstance(place, Mapping) else (None, None)
    if not isinstance(path, str) or type(line) is not int:
        return None
    file = _code_file(view, path)
    texts = () if file is None else _read(file)
    first = max(line - before, 1)
    chosen = texts[first - 1 : line + after]
    shown = tuple((first + n, view.settings.redactor(text)) for n, text in enumerate(chosen))
    return Excerpt(path=path, line=line, lines=shown)


def find_declaration(view: PipelineView, place: Any) -> Excerpt | None:
    """The lines of a declaration: with its decorators, up to the next blank line before a new statement."""
    found = find_excerpt(view, place, before=_DECORATORS, after=_LONGEST)
    if found is None:
        return None
    line = found.line
    before = [one for one in found.lines if one[0] < line]
    first = next((number + 1 for number, text in reversed(before) if not text.strip()), 0)
    last = line + _LONGEST
    for (number, text), (_, below) in pairwise(found.lines):
        if number >= line and not text.strip() and below[:1] not in (" ", "\t", "", ")", "#"):
            last = number - 1
            break
    return replace(found, lines=tuple(one for one in found.lines if first <= one[0] <= last))


def _code_file(view: PipelineView, path: str) -> Path | None:
    if not view.is_own or not view.settings.file.exists():
        return None
    try:
        file = (view.settings.root / path).resolve()
    except (OSError, ValueError):  # such as a NUL in the path
        return None
    folders = [folder.resolve() for folder in view.settings.code_folders]
    is_code = code_language(file) in ("python", "sql") or file == view.settings.file.resolve()
    return file if is_code and any(file.is_relative_to(one) for one in folders) else None


def _read(file: Path) -> tuple[str, ...]:
    try:
        if file.stat().st_size > _LARGEST:
            return ()
        return tuple(file.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return ()
