"""Finds the expectation whose condition raised an error, from Spark's message."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.model.declarations import Expectation

_SQL = re.compile(r"== SQL \(line \d+, position \d+\) == ")
_PYTHON = re.compile(r'File "([^"]*)", line (\d+)')


def find_raising(text: str, expectations: Sequence[Expectation]) -> Expectation | None:
    """The expectation whose condition is in Spark's message; ``None`` if no condition is.

    Spark shows the text of a condition in SQL, and the line of a Python function. It does not show which
    Column has failed.
    """
    flat = " ".join(text.split())
    shown = [flat[found.end() :] for found in _SQL.finditer(flat)]
    lines = {(path.rpartition("/")[2], int(line)) for path, line in _PYTHON.findall(flat)}
    raised = [
        one
        for one in expectations
        if (
            any(sql.startswith(one.text) for sql in shown)
            if isinstance(one.condition, str)
            else (one.location.path.rpartition("/")[2], one.location.line) in lines
        )
    ]
    # A condition can begin with the text of another one.
    return max(raised, key=lambda one: len(one.text), default=None)


def raised_by(text: str, expectations: Sequence[Expectation]) -> str | None:
    """The fact that names what raised an error in a query whose rows are checked; ``None`` without checks."""
    if not expectations:
        return None
    found = find_raising(text, expectations)
    if found is not None:
        return f"raised by the condition of the expectation `{found.name}` ({found.location}): {found.text}"
    names = ", ".join(f"`{one.name}`" for one in expectations)
    return f"raised by the query, or by a condition of its expectations {names}"
