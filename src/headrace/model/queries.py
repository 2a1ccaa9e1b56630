"""Queries as values: what a flow or a view computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
