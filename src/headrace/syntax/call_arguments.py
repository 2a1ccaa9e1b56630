"""Source locations of the arguments of decorators and calls, found when an error is made."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from headrace.errors import SourceLocation


def argument_location(location: SourceLocation, argument: str, *texts: str) -> SourceLocation:
    """The location of an argument of the declaration or call at a line of a Python file.

    It is the location of the first of the texts that the argument holds as a string, such as the name of a
    column in ``cluster_by``; else that of the argument. Without such an argument, the line does not change.

    Args:
        location: The line of a ``def``, whose decorators have the argument, or of a call.
        argument: The name of the keyword.
        texts: Strings to search in the argument, or in all arguments if the call has no such keyword.
    """
    if location.file is None or location.column is not None:
        return location
    lines = linecache.getlines(location.file)
    calls = _calls(lines, location.line)
    keywords = [one for call in calls for one in call.keywords if one.arg == argument]
    searched: list[ast.AST] = [*keywords] or [
        part for call in calls for part in (*call.args, *(one.value for one in call.keywords))
    ]
    for text in texts:
        for part in searched:
            if (found := _string(part, text)) is not None:
                return _at(location, lines, found, text)
    unpacked = [one for call in calls for one in call.keywords if one.arg is None]
    for keyword in (*keywords, *unpacked):
        return _at(location, lines, keyword)
    return location


def return_location(location: SourceLocation) -> SourceLocation:
    """The location of the last ``return`` of the Python function whose ``def`` is at a line.

    Without a ``return``, the line does not change.
    """
    if location.file is None or location.column is not None:
        return location
    lines = linecache.getlines(location.file)
    functions = [one for one in _nodes(lines) if isinstance(one, ast.FunctionDef)]
    body = next((one.body for one in functions if one.lineno == location.line), [])
    # The functions within a query have a `return` of their own.
    returns = [one for one in body if isinstance(one, ast.Return)]
    return _at(location, lines, returns[-1]) if returns else location


def _nodes(lines: Sequence[str]) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse("".join(lines))))
    except (SyntaxError, ValueError):
        return []


def _calls(lines: Sequence[str], line: int) -> list[ast.Call]:
    """The decorators of the function at a line, or the calls that contain the line, innermost first."""
    found = []
    for node in _nodes(lines):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno == line:
            return [one for one in node.decorator_list if isinstance(one, ast.Call)]
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or node.lineno):
            found.append(node)
    return found[::-1]


def _string(node: ast.AST, text: str) -> ast.Constant | None:
    for one in ast.walk(node):
        held = one.value if isinstance(one, ast.Constant) else None
        if isinstance(held, str) and held.casefold() == text.casefold():
            return cast(ast.Constant, one)
    return None


def _at(
    location: SourceLocation,
    lines: Sequence[str],
    node: ast.keyword | ast.Constant | ast.Return,
    text: str = "",
) -> SourceLocation:
    """The location of a node, or of a text within it."""
    raw = lines[node.lineno - 1].encode()
    start = len(raw[: node.col_offset].decode())
    stop = len(raw[: node.end_col_offset].decode()) if node.end_lineno == node.lineno else None
    within = lines[node.lineno - 1].rstrip().casefold().find(text.casefold(), start, stop) if text else -1
    if within >= 0:
        start, stop = within, within + len(text)
    length = None if stop is None else stop - start
    return replace(location, line=node.lineno, column=start + 1, length=length)
