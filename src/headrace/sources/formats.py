"""Formats of readers that Spark does not have, such as `cloudFiles`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from headrace.runtime.lazy_pyspark import DataFrame


@dataclass(frozen=True, kw_only=True)
class FormatRead:
    streaming: bool
    path: str | None
    options: Mapping[str, str]
    schema: Any  # the schema of the reader: DDL or a ``StructType``
    note: Callable[[str], None]


FormatReader = Callable[[FormatRead], "DataFrame"]

_readers: ContextVar[Mapping[str, FormatReader]] = ContextVar("headrace_formats")


def format_reader(format: str | None) -> FormatReader | None:
    """The reader of a format, by its name in any letter case; ``None`` for formats of Spark."""
    return _readers.get({}).get((format or "").lower())


@contextmanager
def reading_formats(readers: Mapping[str, FormatReader]) -> Iterator[None]:
    """Let the readers of the code within take further formats."""
    token = _readers.set(readers)
    try:
        yield
    finally:
        _readers.reset(token)
