"""What was probably meant by a name of ours that does not exist."""

from __future__ import annotations

import difflib
import inspect
import re

import headrace

_UNEXPECTED = re.compile(r"(\w+)\(\) got an unexpected keyword argument '(\w+)'")
_POSITIONAL = "query_function"
_NOT_YET = {
    "create_auto_cdc": "this version has no AUTO CDC flows",
    "apply_changes": "this version has no AUTO CDC flows",
    "create_sink": "this version has no sinks beside Delta tables",
}
"""Names of Lakeflow's, by how they begin, that users will look for."""


def suggestions(error: BaseException) -> list[str]:
    """Remedies for a misspelt argument or function of ours; empty for everything else."""
    found = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    if found is not None and found[1] in headrace.__all__:
        known = [
            one for one in inspect.signature(getattr(headrace, found[1])).parameters if one != _POSITIONAL
        ]
        near = difflib.get_close_matches(found[2].lower(), known, n=1)
        return [f"did you mean `{near[0]}`?" if near else f"{found[1]} takes {', '.join(known)}"]
    if isinstance(error, AttributeError) and error.obj is headrace:
        name = error.name or ""
        if missing := next((text for start, text in _NOT_YET.items() if name.startswith(start)), None):
            return [missing]
        near = difflib.get_close_matches(name, headrace.__all__, n=1)
        return [f"did you mean `{near[0]}`?"] if near else []
    return []
