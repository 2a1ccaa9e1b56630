"""Queries as values: what a flow or a view computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import SourceLocation


@dataclass(frozen=True)
class PythonQuery:
    """A Python function that returns a ``pyspark.sql.DataFrame`` and needs no arguments.

    Args:
        function: The function. It sees the globals and closure values of its declaration.
        location: The line of its ``def``.
        declared: The globals of the modules that it uses, as they were at its declaration, by the id
            of the module's dictionary.
    """

    function: Callable[[], Any]
    location: SourceLocation
    declared: Mapping[int, Mapping[str, Any]] = field(default_factory=dict, repr=False, compare=False)


Query = PythonQuery

_name: ContextVar[str | None] = ContextVar("headrace_query", default=None)


def running_query() -> str | None:
    """The name of the flow or view whose query function runs in this thread."""
    return _name.get()


@contextmanager
def running(name: str) -> Iterator[None]:
    """Name the flow or view whose query function runs in the block."""
    token = _name.set(name)
    try:
        yield
    finally:
        _name.reset(token)
