"""The names that a Python function reads, and what they mean when it is declared and when it is called.

Python looks globals and closure variables up when a function is called. A query is called after its
file has run to its end, so in a loop every query would see the values of the last round. `bind` gives
it the values of its declaration; names that are bound later are looked up at the call.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from headrace.errors import SourceLocation
from headrace.model.queries import PythonQuery, Query, SqlQuery
from headrace.syntax.locations import function_location, is_installed

READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_WRITES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_CELL_WRITES = frozenset({"STORE_DEREF", "DELETE_DEREF"})

_MEMBERS = (FunctionType, staticmethod, classmethod, property)
_Written = frozenset[tuple[int, str]]
"""Globals that functions assign, by the id of the module's dictionary and the name."""


class DeclaredGlobals(dict[str, Any]):
    """The globals of a bound function: those of its declaration, then those of its module now."""

    def __init__(self, declared: Mapping[str, Any], module: Mapping[str, Any]) -> None:
        super().__init__(declared)
        self._module = module

    def __missing__(self, name: str) -> Any:
        return self._module[name]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._module


@dataclass(frozen=True)
class ReboundGlobal:
    """A global that a query's helper function reads, and that was assigned again after the declaration."""

    helper: str
    name: str
    location: SourceLocation | None  # the helper function's line


def bind(function: Callable[[], Any], location: SourceLocation) -> PythonQuery:
    """A query whose function keeps the globals and closure values that are bound now.

    Values are not copied: a dict that the file fills later is the same dict. Globals that the function
    or one of its helpers assigns with ``global`` stay shared with the module.
    """
    reached = list(_reachable(function))
    written = frozenset((id(one.__globals__), name) for one in reached for name in _names(one, _WRITES))
    modules = {id(one.__globals__): one.__globals__ for one in reached}
    return PythonQuery(
        _bound(function, written, {}), location, {key: {**module} for key, module in modules.items()}
    )


def required_parameters(function: Callable[..., Any]) -> list[str]:
    """The parameters without a default; none for a callable written in C that has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in variable]


def find_rebound(query: Query, root: Any) -> Iterator[ReboundGlobal]:
    """The globals that a query's helpers read and that have another value than at its declaration."""
    if isinstance(query, SqlQuery):
        return
    reached = [one for one in _reachable(query.function) if not isinstance(one.__globals__, DeclaredGlobals)]
    written = {(id(one.__globals__), name) for one in reached for name in _names(one, _WRITES)}
    for helper in reached:
        module = helper.__globals__
        before = query.declared.get(id(module), {})
        for name in sorted(_names(helper, READS)):
            known = name in before and name in module and (id(module), name) not in written
            if known and before[name] is not module[name]:
                yield ReboundGlobal(helper.__name__, name, function_location(helper, root))


def _bound(value: Any, written: _Written, done: dict[int, Any]) -> Any:
    """A callable with the bindings of now; other values are returned as they are."""
    match value:
        case FunctionType():
            return done[id(value)] if id(value) in done else _bound_function(value, written, done)
        case MethodType():
            return MethodType(_bound(value.__func__, written, done), value.__self__)
        case functools.partial():
            return functools.partial(_bound(value.func, written, done), *value.args, **value.keywords)
        case _:
            return value


def _bound_function(function: FunctionType, written: _Written, done: dict[int, Any]) -> FunctionType:
    code, module = function.__code__, function.__globals__
    shared = {name for key, name in written if key == id(module)}
    # An assignment of a global goes to the dictionary that the function holds, so it holds the module's.
    own = is_installed(code.co_filename) or not shared.isdisjoint(_names(function, _WRITES))
    globals_ = (
        module
        if own
        else DeclaredGlobals({key: value for key, value in module.items() if key not in shared}, module)
    )
    assigned = _names(function, _CELL_WRITES)
    fill: list[tuple[CellType, Any]] = []
    cells = tuple(
        _cell(cell, fill, shared=name in assigned)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
    )
    copy = FunctionType(code, globals_, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
    copy.__doc__, copy.__annotations__ = function.__doc__, function.__annotations__
    copy.__dict__ = function.__dict__
    done[id(function)] = copy
    for cell, value in fill:
        # A decorator's wrapper holds the function that it wraps.
        cell.cell_contents = _bound(value, written, done)
    return copy


def _cell(cell: CellType, fill: list[tuple[CellType, Any]], *, shared: bool) -> CellType:
    """A cell of its own for a value that is bound; a name that is bound later keeps its cell."""
    try:
        value = cell.cell_contents
    except ValueError:
        return cell
    if shared:
        return cell
    own = CellType()
    fill.append((own, value))
    return own


def _reachable(value: Any) -> Iterator[FunctionType]:
    """The user's functions that a callable can call by its names, itself first."""
    waiting: list[Any] = [value]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, FunctionType):
            if is_installed(one.__code__.co_filename):
                continue
            yield one
        waiting.extend(_next(one))


def _next(value: Any) -> Iterator[Any]:
    """The values that a call of a value may lead to."""
    match value:
        case FunctionType():
            yield from _named(value)
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):
                    yield cell.cell_contents
        case MethodType() | staticmethod() | classmethod():
            yield value.__func__
        case functools.partial():
            yield value.func
        case property():
            yield value.fget
        case type():
            yield from (one for one in vars(value).values() if isinstance(one, _MEMBERS))
        case ModuleType():
            return
        case _:
            yield inspect.getattr_static(value, "__wrapped__", None)
            yield type(value)


def _named(function: FunctionType) -> Iterator[Any]:
    """The globals that a function names, and what it names of the user's modules among them."""
    names = {name for code in codes(function.__code__) for name in code.co_names}
    found = function.__globals__
    for value in [found[name] for name in names if name in found]:
        yield value
        if isinstance(value, ModuleType) and not is_installed(getattr(value, "__file__", None) or "<frozen"):
            yield from (vars(value)[inner] for inner in names & vars(value).keys())


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def _names(function: FunctionType, operations: frozenset[str]) -> set[str]:
    numbers = {dis.opmap[name] for name in operations & dis.opmap.keys()}
    return {
        str(one.argval)
        for code in codes(function.__code__)
        if not numbers.isdisjoint(code.co_code[::2])
        for one in dis.get_instructions(code)
        if one.opname in operations
    }
