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


def method_location(location: SourceLocation, name: str) -> tuple[SourceLocation, str | None, str | None]:
    """The location of the call of a method at a line, the text of its object, and that of the call if it can
    be moved: its only variable is the session."""
    lines = [] if location.file is None else linecache.getlines(location.file)
    for node in _nodes(lines):
        method = node.func if isinstance(node, ast.Call) else node
        if isinstance(method, ast.Attribute) and (method.attr, method.end_lineno) == (name, location.line):
            stop = len(lines[location.line - 1].encode()[: method.end_col_offset].decode())
            location = replace(location, column=stop - len(name) + 1, length=len(name))
            is_free = {one.id for one in ast.walk(method) if isinstance(one, ast.Name)} == {"spark"}
            return location, _text(lines, method.value), _text(lines, node) if is_free else None
    return location, None, None


def _text(lines: Sequence[str], node: ast.AST) -> str:
    """The source of an expression, in one line."""
    text = ast.get_source_segment("".join(lines), node) or ""
    return text if text and "\n" not in text else ast.unparse(node)


def udf_declared(location: SourceLocation, name: str) -> tuple[SourceLocation, str]:
    """Where a function of Spark is made of a Python function, and the remedy that declares that its result
    changes. `location`: a line of the query's file; it does not change if that file has no such line."""
    lines = [] if location.file is None else linecache.getlines(location.file)
    declare = f"declare that the result of {name}() changes"
    for node in _nodes(lines):
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef) and node.name == name else []
        for one in decorators:
            if "udf" in ast.unparse(one):
                below = f"{declare}, in a line below it:   {name} = {name}.asNondeterministic()"
                return _at(location, lines, one), below
        is_udf = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("udf")
        if isinstance(node, ast.Call) and is_udf and node.args and ast.unparse(node.args[0]) == name:
            return _at(location, lines, node), f"{declare}:   {_text(lines, node)}.asNondeterministic()"
    return location, f"{declare}:   F.udf(..).asNondeterministic()"


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
    location: SourceLocation, lines: Sequence[str], node: ast.keyword | ast.expr | ast.Return, text: str = ""
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
