"""Patches of PySpark and Py4J that save imports and JVM calls, and do not change results."""

from __future__ import annotations

import functools
import socket
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

_PLAIN = (str, bytes, bytearray, bool, int, float, type(None))
_SINGLETON = "MODULE$"

_Get = Callable[[Any, str], Any]


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
    NumpyScalarConverter.can_convert = _is_numpy_scalar
    NumpyArrayConverter.can_convert = _is_numpy_array
    functions.lit = builtin.lit = _light_literal(builtin.lit)
    for owner in (JVMView, JavaPackage, JavaClass):
        owner.__getattr__ = _kept(owner.__getattr__)
    if hasattr(socket, "TCP_QUICKACK"):
        # Calls of a function by the JVM, such as that of foreachBatch, have a connection of their own.
        for name in ("connect_to_java_server", "init_socket_from_python_server"):
            connect = getattr(ClientServerConnection, name)
            setattr(ClientServerConnection, name, _without_delays(connect))


def _is_numpy_scalar(self: object, obj: object) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return hasattr(numpy, "generic") and isinstance(obj, numpy.generic)


def _is_numpy_array(self: object, obj: object) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return hasattr(numpy, "ndarray") and isinstance(obj, numpy.ndarray) and obj.ndim == 1


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
    """Returns a replacement for a name lookup of Py4J that looks up each package, class and method once.

    The original needs seven JVM calls for each ``jvm.org.apache.spark.sql.SparkSession.active``.
    """
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
    """Returns a replacement for a method that sets up a connection: answers above 8 KB arrive at once.

    The JVM writes an answer in parts of 8 KB, and sends the second part only when the first is acknowledged.
    By default, Linux acknowledges it after 40 ms.
    """

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
