"""PySpark's connection with a JVM: what this process changes to open it, and to forget it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping


def import_pyspark() -> None:
    """Imports PySpark while the JVM starts, and patches it to need fewer imports and JVM calls."""
    import pyspark.java_gateway
    import pyspark.sql  # noqa: F401

    from headrace.runtime.pyspark_patches import install

    install()


@contextlib.contextmanager
def py4j_quiet() -> Iterator[None]:
    """Suppresses py4j's message on the root logger that a JVM, which is being ended, did not answer."""

    def is_other(record: logging.LogRecord) -> bool:
        return record.getMessage() != "Exception while sending command."

    root = logging.getLogger()
    root.addFilter(is_other)
    try:
        yield
    finally:
        root.removeFilter(is_other)


def worker_environment() -> dict[str, str]:
    """Returns the variable that makes this Python run Spark's workers, not the `python3` in PATH."""
    return {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}


@contextlib.contextmanager
def changed_environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


@contextlib.contextmanager
def kept_interrupt() -> Iterator[None]:
    """Restores the handler of SIGINT: PySpark's cancels all jobs, Headrace stops between two batches."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)


def forget_gateway(*, is_reachable: bool = True) -> None:
    """Removes the gateway of a stopped session from PySpark, which would connect to the ended JVM.

    Args:
        is_reachable: Whether the gateway is closed; otherwise its connections are left alone.
    """
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    with SparkContext._lock:
        gateway = SparkContext._gateway
        SparkContext._gateway = None
        SparkContext._jvm = None
        SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    if gateway is not None and is_reachable:
        with contextlib.suppress(Exception):
            gateway.shutdown()
