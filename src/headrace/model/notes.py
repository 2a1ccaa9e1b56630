"""Notes: warnings and hints that do not stop a run."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple

import headrace
from headrace.errors import SourceLocation, did_you_mean, nearest


@dataclass(frozen=True, kw_only=True)
class Note:
    """A warning or a hint about the pipeline; it does not stop a run."""

    level: Literal["warning", "note"]
    text: str
    location: SourceLocation
    remedy: str | None = None


_WRONG_CALL = re.compile(r"(\w+)\(\) (got an unexpected keyword argument '(\w+)'|.+)")
_IMPORTED = re.compile(r"cannot import name '(\w+)'")
_POSITIONAL = "query_function"


class WrongCall(NamedTuple):
    function: str
    argument: str | None  # the keyword that the function does not have
    problem: str


def wrong_call(error: BaseException) -> WrongCall | None:
    """What Python says against the arguments of a call of one of our functions."""
    found = _WRONG_CALL.match(str(error)) if isinstance(error, TypeError) else None
    if found is None or found[1] not in headrace.__all__:
        return None
    problem = f": {found[2]}" if found[3] is None else f" has no argument `{found[3]}`"
    return WrongCall(found[1], found[3], problem)


def suggestions(error: BaseException) -> list[str]:
    """Remedies for a misspelt argument of ours, or a misspelt attribute, name or file."""
    if (call := wrong_call(error)) is not None and call.argument is not None:
        function = getattr(headrace, call.function)
        known = [one for one in inspect.signature(function).parameters if one != _POSITIONAL]
        return list(did_you_mean(call.argument, known, f"its arguments: {', '.join(known)}"))
    match error:
        case AttributeError(name=str(name), obj=owner):
            return list(did_you_mean(name, _attributes(owner)))
        case NameError(name=str(name)):
            return list(did_you_mean(name, _names_at(error)))
        case ImportError(name=str(module)) if (missing := _IMPORTED.search(str(error))) is not None:
            return list(did_you_mean(missing[1], _attributes(sys.modules.get(module))))
        case FileNotFoundError(filename=str(path)):
            near_path = nearest_path(path)
            return [] if near_path is None else [f"did you mean `{near_path}`?"]
    return []


def _attributes(owner: object) -> list[str]:
    listed = getattr(owner, "__all__", None) if isinstance(owner, ModuleType) else None
    # A class can compute its list in code of the user.
    with contextlib.suppress(Exception):
        return [one for one in listed or dir(owner) if not one.startswith("_")]
    return []


def _names_at(error: BaseException) -> list[str]:
    """The names that the code which has raised an error could read."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return []
    frame = trace.tb_frame
    return [one for one in (*frame.f_locals, *frame.f_globals, *frame.f_builtins) if not one.startswith("_")]


def nearest_path(path: str) -> str | None:
    """The path of an existing file or folder whose name is most like a missing one; ``None`` if none is."""
    missing = Path(path)
    for part in (missing, *missing.parents):
        if part.parent.is_dir() and not part.exists():
            with contextlib.suppress(OSError):
                names = [one.name for one in part.parent.iterdir() if not one.name.startswith(".")]
                near = nearest(part.name, names)
                found = part.parent / near / missing.relative_to(part) if near else None
                return str(found) if found is not None and found.exists() else None
    return None
