"""Source locations: of calls, functions, exceptions, and of names within a statement."""

from __future__ import annotations

import ast
import itertools
import linecache
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, cast

from headrace.errors import SourceLocation

_LIBRARIES = frozenset({"headrace", "pyspark", "py4j", "delta"})
"""Packages between a user's line and Spark, by name: on a cluster they can be installed anywhere."""

_FOLDERS = [
    # Headrace itself can be installed from a folder of source code.
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")),
]
# A virtual environment may be a symbolic link.
_INSTALLED = tuple(form for path in _FOLDERS for form in (path, str(Path(path).resolve())))
_DEF = re.compile(r"\s*(async\s+)?def\s")
_DECORATOR_LINES = 50  # how far below its first decorator the `def` of a function is searched
_STATEMENT_LINES = 60  # how far below its first line a statement is searched for a name
_located: ContextVar[SourceLocation | None] = ContextVar("headrace_located", default=None)


def display_path(path: str | Path, root: Path | None) -> str:
    """The path relative to the pipeline's folder if it is inside, else unchanged."""
    if root is None:
        return str(path)
    absolute = Path(path).absolute()
    for folder in (root, root.resolve()):
        if absolute.is_relative_to(folder):
            return str(absolute.relative_to(folder))
    return str(path)


def is_installed(filename: str) -> bool:
    """Whether a file belongs to Python or to an installed package, and not to the user's own code."""
    return filename.startswith(("<frozen", *_INSTALLED))


@contextmanager
def located_at(location: SourceLocation | None) -> Iterator[None]:
    """Give `caller` a location for the code within; ``None`` lets it search the stack."""
    token = _located.set(location)
    try:
        yield
    finally:
        _located.reset(token)


def caller(root: Path | None) -> SourceLocation:
    """The innermost line of the user's code that led to this call, or the location of `located_at`."""
    if (located := _located.get()) is not None:
        return located
    if (frame := _users_frame()) is not None:
        return _loaded(frame.f_code.co_filename, root, frame.f_lineno)
    return SourceLocation("<unknown>", 1)


def called_name(default: str) -> str:
    """The function that the innermost line of the user's code calls, as this line writes it; ``default`` if
    there is no such line. A decorator begins with ``@``, as ``default`` does."""
    frame = None if _located.get() is not None else _users_frame()
    if frame is None:
        return default
    positions = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    name = function_at(linecache.getlines(frame.f_code.co_filename), positions)
    return default if name is None else default[: default.startswith("@")] + name


def function_at(lines: Sequence[str], positions: Sequence[int | None]) -> str | None:
    """The name of a function that is called between two positions, whose columns count bytes."""
    first, last, start, stop = positions
    if first is None or last is None or start is None or stop is None or not 0 < last <= len(lines):
        return None
    found = [line.encode() for line in lines[first - 1 : last]]
    found[-1] = found[-1][:stop]
    found[0] = found[0][start:]
    try:
        node = ast.parse(b"(" + b"".join(found) + b")", mode="eval").body
    except (SyntaxError, ValueError):
        return None
    function = node.func if isinstance(node, ast.Call) else node
    name = ast.unparse(function)
    return name if re.fullmatch(r"\w+(\.\w+)*", name) else None


def _users_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_users(frame):
        frame = frame.f_back
    return frame


def innermost(traceback: TracebackType | None, root: Path | None) -> SourceLocation | None:
    """The last line of the user's code that an exception passed through."""
    found = None
    while traceback is not None:
        if _is_users(traceback.tb_frame):
            found = _loaded(traceback.tb_frame.f_code.co_filename, root, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def function_location(function: Callable[..., Any], root: Path | None) -> SourceLocation | None:
    """The line of a function's ``def``; ``None`` if it is not written in Python."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    # The code object starts at the first decorator; a reader looks for the `def` below it.
    lines = linecache.getlines(code.co_filename)
    first = code.co_firstlineno
    for number in range(first, min(len(lines), first + _DECORATOR_LINES) + 1):
        if _DEF.match(lines[number - 1]):
            return _loaded(code.co_filename, root, number)
    return _loaded(code.co_filename, root, first)


def _loaded(file: str, root: Path | None, line: int) -> SourceLocation:
    return SourceLocation(display_path(file, root), line, file=file)


def pinpoint(location: SourceLocation, text: str, root: Path | None) -> SourceLocation:
    """The location of a quoted name at or below a line; the line if the name is not found."""
    quoted = re.compile(rf"""["'][^"'\n]*?({re.escape(text)})[^"'\n]*?["']""")
    lines = _lines(location, root)
    for number, line in enumerate(lines[location.line - 1 : location.line - 1 + _STATEMENT_LINES]):
        if number and re.match(r"\s*(async\s+def|def|class|@)\b", line):
            break
        if found := quoted.search(line):
            column = found.start(1) + 1
            return replace(location, line=location.line + number, column=column, length=len(text))
    return location


def pinpoint_sql(
    location: SourceLocation, sql: str, start: int, stop: int, root: Path | None
) -> SourceLocation:
    """The location of characters of an SQL text, if its column is known or the file has the text once."""
    if location.column is not None:
        above = sql.count("\n", 0, start)
        column = start - sql.rfind("\n", 0, start) if above else location.column + start
        return replace(location, line=location.line + above, column=column, length=stop - start + 1)
    content = "".join(_lines(location, root))
    if content.count(sql) != 1:
        return location
    offset = content.index(sql) + start
    line = content.count("\n", 0, offset) + 1
    column = offset - (content.rfind("\n", 0, offset) + 1) + 1
    return replace(location, line=line, column=column, length=stop - start + 1)


def _lines(location: SourceLocation, root: Path | None) -> list[str]:
    path = Path(location.path)
    if root is not None and not path.is_absolute():
        path = root / path
    return linecache.getlines(str(path))


def _is_users(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package not in _LIBRARIES and not is_installed(frame.f_code.co_filename)


_TRACE = re.compile(r"Traceback \(most recent call last\):\n((?:[ \t]+.*\n)+)([A-Za-z_][\w.]*(?::[^\n]*)?)")
_FRAME = re.compile(r'File "([^"]*)", line (\d+), in (\S+)')
_SHOWN = 150


@dataclass(frozen=True)
class Raised:
    function: str
    location: SourceLocation
    exception: str


def find_raised(text: str, root: Path | None) -> Raised | None:
    """The innermost function of the pipeline's files in a trace of Python; ``None`` if there is none."""
    for trace, exception in _TRACE.findall(text):
        for path, line, function in reversed(_FRAME.findall(trace)):
            shown = display_path(path, root)
            if not is_installed(path) and not Path(shown).is_absolute():
                return Raised(function, SourceLocation(shown, int(line)), exception.strip()[:_SHOWN])
    return None


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
    """The location of the last ``return`` of the function whose ``def`` is at a line; without one, the
    line."""
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
    raw = lines[node.lineno - 1].encode()
    start = len(raw[: node.col_offset].decode())
    stop = len(raw[: node.end_col_offset].decode()) if node.end_lineno == node.lineno else None
    within = lines[node.lineno - 1].rstrip().casefold().find(text.casefold(), start, stop) if text else -1
    if within >= 0:
        start, stop = within, within + len(text)
    length = None if stop is None else stop - start
    return replace(location, line=node.lineno, column=start + 1, length=length)
