"""Clients of librdkafka that fail at once if they cannot work, for all uses of Kafka without Spark.

By itself librdkafka retries until the timeout of a request, and reports a wrong password only in a
callback.
"""

from __future__ import annotations

import concurrent.futures
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import HeadraceError
from headrace.model.kafka_settings import KafkaConnection
from headrace.runtime.kafka_faults import find_fault, refused_settings
from headrace.runtime.lazy_pyspark import LazyModule

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

T = TypeVar("T")

confluent: Any = LazyModule("confluent_kafka")
confluent_admin: Any = LazyModule("confluent_kafka.admin")
"""The client's modules, which are imported at their first use."""

_TURN_S = 0.02
_SILENCE_S = 2.0  # not every client that cannot connect reports an error

_GRACE_S = 1.0
"""The time that the other brokers of a cluster have to accept a client that one broker has refused."""


class ClientErrors:
    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._reports: list[str] = []
        self._refused: float | None = None
        self._all_down = False
        self._fault: HeadraceError | None = None
        self._next_probe = 0.0
        self._waiting = 0
        self._lock = threading.Lock()

    def open(self, kind: Callable[..., T], settings: dict[str, Any] | None = None) -> T:
        """Returns a new client. `kind`: its class: ``AdminClient``, ``Consumer`` or ``Producer``."""
        from confluent_kafka import KafkaException

        all_settings = {
            **self._connection.for_librdkafka(),
            # By default librdkafka prints to stderr; the user sees our errors instead.
            "log_level": "0",
            "error_cb": self._take,
            **(settings or {}),
        }
        try:
            return kind(all_settings, logger=SILENT)
        except KafkaException as error:
            raise refused_settings(self._connection, error.args[0].str()) from error

    def check(self, *, silent: bool = False) -> None:
        """Raises an error if the cluster has refused the client. `silent`: whether an answer is overdue."""
        if self._fault is None and (silent or self._is_lost()) and time.monotonic() >= self._next_probe:
            self._fault = find_fault(self._connection, self._reports)
            self._next_probe = time.monotonic() + _GRACE_S
        if self._fault is not None:
            raise self._fault

    def explain(self, error: BaseException) -> HeadraceError | None:
        """Returns the coded error behind a client's exception and its earlier reports, or None."""
        first = error.args[0] if error.args else error
        name = getattr(first, "name", None)
        code = name() if callable(name) else type(error).__name__
        return find_fault(self._connection, [*self._reports, f"{code}\n{first}"])

    def wait(self, future: concurrent.futures.Future[T], client: Any, timeout_s: float) -> T:
        began = time.monotonic()
        self._begin(client)
        try:
            while not future.done():
                concurrent.futures.wait([future], _TURN_S)
                client.poll(0)
                waited_s = time.monotonic() - began
                if not future.done():
                    self.check(silent=waited_s > _SILENCE_S)
                if waited_s > timeout_s:
                    raise TimeoutError(self.last or f"no answer within {timeout_s:g} s")
            return future.result()
        finally:
            with self._lock:
                self._waiting -= 1

    def _begin(self, client: Any) -> None:
        """Forgets earlier reports; an error that persists is reported again."""
        with self._lock:
            self._waiting += 1
            if self._waiting > 1:
                return
        client.poll(0)
        self._reports, self._refused, self._all_down = [], None, False

    @property
    def last(self) -> str:
        return self._reports[-1].partition("\n")[2] if self._reports else ""

    def _is_lost(self) -> bool:
        if self._all_down:
            return True
        return self._refused is not None and time.monotonic() - self._refused > _GRACE_S

    def _take(self, error: KafkaError) -> None:
        from confluent_kafka import KafkaError as Codes

        if error.code() == Codes._ALL_BROKERS_DOWN:
            self._all_down = True
            return
        if error.code() in (Codes._AUTHENTICATION, Codes._SSL) and self._refused is None:
            self._refused = time.monotonic()
        self._reports = [*self._reports[-4:], f"{error.name()}\n{error.str()}"]


SILENT = logging.getLogger("headrace.librdkafka")
"""The logger of librdkafka's log lines."""
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False


def connection_errors(servers: str, timeout_s: float) -> list[str]:
    """The error of each address in a list such as ``a:9092,b:9092``; none if one connection succeeds."""
    reasons = []
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            reasons.append(f"{server.strip() or 'no address'}: {why}")
        else:
            return []
    return reasons
