"""Queries as values: what a flow or a view computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import SourceLocation
from headrace.model.names import NamesInUse, names_in_use


@dataclass(frozen=True, order=True)
class Edit:
    """Characters of a text and their replacement; ``stop`` is exclusive."""

    start: int
    stop: int
    text: str


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits made; they do not overlap."""
    for edit in sorted(edits, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.stop :]
    return text


def original_index(index: int, edits: Iterable[Edit]) -> int:
    """The index in the original text of a character of the edited text; in an edit, its start."""
    shift = 0
    for edit in sorted(edits):
        if index < edit.start + shift:
            break
        if index < edit.start + shift + len(edit.text):
            return edit.start
        shift += len(edit.text) - (edit.stop - edit.start)
    return index - shift


@dataclass(frozen=True)
class PythonQuery:
    """A Python function that returns a ``pyspark.sql.DataFrame`` and needs no arguments."""

    function: Callable[[], Any]  # the function. It sees the globals and closure values of its declaration
    location: SourceLocation  # the line of its ``def``
    # The globals of the modules that it uses, as they were at its declaration, by the id of the module's
    # dictionary.
    declared: Mapping[int, Mapping[str, Any]] = field(default_factory=dict, repr=False, compare=False)
    names: NamesInUse = field(default_factory=names_in_use)


@dataclass(frozen=True)
class SqlCall:
    """A table function in an SQL query, such as ``STREAM read_kafka(..)``; Headrace reads its rows."""

    start: int  # the index of its first character in the statement after the edits
    stop: int  # the index behind its last character
    location: SourceLocation
    read: Callable[[], Any] = field(repr=False, compare=False)  # gives its rows, as a `pyspark.sql.DataFrame`
    # Whether its columns depend on nothing but the statement, the settings and schema files.
    is_known: bool = True
    hides: tuple[Edit, ...] = ()  # the edits that keep the hidden columns of its rows out of ``*``


@dataclass(frozen=True, kw_only=True)
class SqlQuery:
    statement: str
    begins: SourceLocation  # the location of the statement's first character
    location: SourceLocation
    start: int  # the index of the query's first character in the statement after the edits
    stop: int  # the index behind its last character
    prefix: str = ""  # what Spark gets before these characters
    edits: tuple[Edit, ...] = ()
    calls: tuple[SqlCall, ...] = ()
    names: NamesInUse = field(default_factory=NamesInUse)
    # What makes the rows of the flow from the rows of the query; `None` if they are the same.
    then: Callable[[Any], Any] | None = field(default=None, repr=False, compare=False)


Query = PythonQuery | SqlQuery
"""What a flow or a view computes. Every `match` over the kinds ends in `assert_never`."""

FindCalls = Callable[[str, SourceLocation], Sequence[SqlCall]]
"""Finds the table functions of an SQL text that begins at a location."""

_find_calls: ContextVar[FindCalls | None] = ContextVar("headrace_find_calls", default=None)


def table_functions(text: str, location: SourceLocation) -> Sequence[SqlCall]:
    """The table functions of an SQL text in Python code that Headrace reads."""
    find = _find_calls.get()
    return () if find is None else find(text, location)


@contextmanager
def finding_calls(find: FindCalls) -> Iterator[None]:
    """Find the table functions of SQL texts in the Python code that runs in the block."""
    with _set(_find_calls, find):
        yield


_name: ContextVar[str | None] = ContextVar("headrace_query", default=None)


def running_query() -> str | None:
    """The name of the flow or view whose query function runs in this thread."""
    return _name.get()


@contextmanager
def running(name: str) -> Iterator[None]:
    """Name the flow or view whose query function runs in the block."""
    with _set(_name, name):
        yield


@contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
