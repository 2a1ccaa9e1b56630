"""Keeps PySpark from printing the errors that Headrace reports itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_quiet: ContextVar[bool] = ContextVar("headrace_quiet", default=False)


def is_quiet() -> bool:
    """Whether Headrace reports what the code of this thread raises, so that PySpark need not print it."""
    return _quiet.get()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PySpark from printing the errors that the code within raises."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def silence_loggers() -> None:
    """PySpark prints each failed analysis to stderr as JSON of several kilobytes, before it raises."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).addFilter(lambda _: not is_quiet())
