"""PySpark's connection with a JVM: what this process changes to open it, and to forget it."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any

from headrace.runtime.lazy_pyspark import DataFrame, SparkSession, StructType
from headrace.runtime.submit import python_of

_PLAIN = (str, bytes, bytearray, bool, int, float, type(None))
_SINGLETON = "MODULE$"
_Get = Callable[[Any, str], Any]
_one_at_a_time = threading.Lock()
_GC_PAUSE_S = 10.0
_GC_SHARE = 0.01
_collecting = threading.Lock()
_next_gc_s = time.monotonic() + _GC_PAUSE_S
_quiet: ContextVar[bool] = ContextVar("headrace_quiet", default=False)


def import_pyspark() -> None:
    """Imports PySpark while the JVM starts, and patches it to need fewer imports and JVM calls."""
    import pyspark.java_gateway
    import pyspark.sql  # noqa: F401

    install()


@contextlib.contextmanager
def py4j_quiet() -> Iterator[None]:
    """Suppresses py4j's message that a JVM did not answer, while the JVM is being stopped."""

    def is_other(record: logging.LogRecord) -> bool:
        return record.getMessage() != "Exception while sending command."

    root = logging.getLogger()
    root.addFilter(is_other)
    try:
        yield
    finally:
        root.removeFilter(is_other)


def worker_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the variable that names the Python of Spark's workers."""
    return {"PYSPARK_PYTHON": python_of(settings)}


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
    `is_reachable`: whether the gateway is closed; otherwise its connections are left alone."""
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


@functools.cache
def install() -> None:
    """Patches PySpark and Py4J; further calls do nothing."""
    from py4j.clientserver import ClientServerConnection
    from py4j.java_gateway import JavaClass, JavaPackage, JVMView
    from pyspark.sql import functions
    from pyspark.sql.functions import builtin
    from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter

    # To find out whether the first argument that is not a plain value is a NumPy value, PySpark would import
    # NumPy and pandas. This takes a second in each command.
    NumpyScalarConverter.can_convert = _is_numpy("generic")
    NumpyArrayConverter.can_convert = _is_numpy("ndarray")
    functions.lit = builtin.lit = _light_literal(builtin.lit)
    for owner in (JVMView, JavaPackage, JavaClass):
        owner.__getattr__ = _kept(owner.__getattr__)
    if hasattr(socket, "TCP_QUICKACK"):
        # Calls of a function by the JVM, such as that of foreachBatch, have a connection of their own.
        for name in ("connect_to_java_server", "init_socket_from_python_server"):
            connect = getattr(ClientServerConnection, name)
            setattr(ClientServerConnection, name, _without_delays(connect))


def _is_numpy(name: str) -> Callable[[object, Any], bool]:
    def can_convert(self: object, obj: Any) -> bool:
        kind = getattr(sys.modules.get("numpy"), name, None)
        return kind is not None and isinstance(obj, kind) and (name == "generic" or obj.ndim == 1)

    return can_convert


def _light_literal(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a replacement for `lit`: the original imports PySpark's test tools, and with them pandas."""
    from pyspark.sql import Column
    from pyspark.sql.functions import builtin

    @functools.wraps(original)
    def lit(col: Any) -> Any:
        if isinstance(col, Column):
            return col
        can_be_numpy = "numpy" in sys.modules and type(col) not in _PLAIN
        if can_be_numpy or isinstance(col, list | Enum):
            return original(col)
        return builtin._invoke_function("lit", col)

    return lit


def _kept(original: _Get) -> _Get:
    """Returns a replacement for a name lookup of Py4J that looks up each package, class and method once. The
    original needs seven JVM calls for each ``jvm.org.apache.spark.sql.SparkSession.active``."""
    from py4j.java_gateway import JavaClass, JavaMember, JavaPackage

    @functools.wraps(original)
    def get(self: Any, name: str) -> Any:
        found = original(self, name)
        # Py4J returns a package for an unknown name. A jar that is added later can make it a class.
        is_package = isinstance(found, JavaPackage) and name.islower()
        if is_package or isinstance(found, JavaClass | JavaMember) or name == _SINGLETON:
            self.__dict__[name] = found
        return found

    return get


def _without_delays(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a replacement for a method that sets up a connection: answers above 8 KB arrive at once. The
    JVM writes an answer in parts of 8 KB, and sends the second part only when the first is acknowledged. By
    default, Linux acknowledges it after 40 ms."""

    @functools.wraps(original)
    def connect(self: Any, *args: Any) -> None:
        original(self, *args)
        if not self.ssl_context:
            timeout_s = self.socket.gettimeout()
            self.socket = _PromptSocket(fileno=self.socket.detach())
            self.socket.settimeout(timeout_s)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.stream = self.socket.makefile("rb")

    return connect


class _PromptSocket(socket.socket):
    """A socket that acknowledges at once what it has received."""

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        received = super().recv_into(*args, **kwargs)
        # The option holds until the next packets only.
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return received


@contextmanager
def kept_active_session(session: SparkSession) -> Iterator[None]:
    from pyspark.sql.session import SparkSession as ClassicSession

    jvm: Any = session._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    in_python, in_java = ClassicSession._activeSession, sessions.getActiveSession()
    try:
        yield
    finally:
        ClassicSession._activeSession = in_python
        if in_java.isDefined():
            sessions.setActiveSession(in_java.get())
        else:
            sessions.clearActiveSession()


@contextmanager
def active_session(session: SparkSession) -> Iterator[None]:
    jvm: Any = session._jvm
    with kept_active_session(session):
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
        yield


def new_frame(session: SparkSession, data: Any, schema: StructType | None = None) -> DataFrame:
    """A DataFrame of rows, as `createDataFrame` makes it; the active session does not change."""
    with _one_at_a_time, kept_active_session(session):
        return session.createDataFrame(data, schema)


def frame_of_plan(session: SparkSession, plan: Any) -> DataFrame:
    from pyspark.sql.classic.dataframe import DataFrame

    jvm: Any = session._jvm
    datasets = getattr(jvm.org.apache.spark.sql.classic, "Dataset$")
    return DataFrame(getattr(datasets, "MODULE$").ofRows(session._jsparkSession, plan), session)


def named_frame(frame: DataFrame, parts: Sequence[str]) -> DataFrame:
    """A DataFrame whose columns are also qualified by the name of a table: `table.column`,
    `schema.table.column`."""
    jvm: Any = frame.sparkSession._jvm
    catalyst = jvm.org.apache.spark.sql.catalyst
    *qualifier, name = parts
    alias = catalyst.AliasIdentifier(name, jvm.PythonUtils.toSeq(qualifier))
    analyzed = frame._jdf.queryExecution().analyzed()
    return frame_of_plan(frame.sparkSession, catalyst.plans.logical.SubqueryAlias(alias, analyzed))


def release_unused() -> None:
    """Free objects of the JVM that Python no longer uses: plans, broadcast tables, snapshots.

    An object of py4j whose methods were called refers to itself, so only Python's garbage collector frees it,
    and until then the JVM keeps its part. The collector looks at all objects only after many new ones in
    Python, which says nothing about the JVM: its heap can be full long before.

    Call it after each piece of work that a command can repeat for days. It looks every ten seconds at most,
    for a hundredth of the time at most, and never in a command that is shorter.
    """
    global _next_gc_s
    if time.monotonic() < _next_gc_s or not _collecting.acquire(blocking=False):
        return
    try:
        started_s = time.monotonic()
        gc.collect()
        ended_s = time.monotonic()
        _next_gc_s = ended_s + max(_GC_PAUSE_S, (ended_s - started_s) / _GC_SHARE)
    finally:
        _collecting.release()


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
        PySparkLogger.getLogger(name).addFilter(lambda _: not _quiet.get())
