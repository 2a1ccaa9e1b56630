"""Notes: warnings and hints that do not stop a run."""

from __future__ import annotations

import difflib
import inspect
import re
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

import headrace
from headrace.errors import SourceLocation


@dataclass(frozen=True, kw_only=True)
class Note:
    """A warning or a hint about the pipeline; it does not stop a run."""

    level: Literal["warning", "note"]
    text: str
    location: SourceLocation
    remedy: str | None = None


_UNEXPECTED = re.compile(r"(\w+)\(\) got an unexpected keyword argument '(\w+)'")
_POSITIONAL = "query_function"


def suggestions(error: BaseException) -> list[str]:
    """Remedies for a misspelt argument or function of ours; empty for everything else."""
    found = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    if found is not None and found[1] in headrace.__all__:
        known = [
            one for one in inspect.signature(getattr(headrace, found[1])).parameters if one != _POSITIONAL
        ]
        near = difflib.get_close_matches(found[2].lower(), known, n=1)
        return [f"did you mean `{near[0]}`?" if near else f"{found[1]} takes {', '.join(known)}"]
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        ours = error.obj.__name__.startswith("headrace")
        near = difflib.get_close_matches(error.name or "", error.obj.__all__, n=1) if ours else []
        return [f"did you mean `{near[0]}`?"] if near else []
    return []
