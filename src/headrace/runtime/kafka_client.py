"""Clients of librdkafka that say at once why they cannot work, for all that talk to Kafka without Spark.

By itself librdkafka goes on trying until a request's time is over, and reports a wrong password in a
callback that nobody asked for.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import HeadraceError
from headrace.model.connections import KafkaConnection
from headrace.runtime.kafka_faults import find_fault, refused_settings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

T = TypeVar("T")

_TURN_S = 0.02
_SILENCE_S = 2.0
"""Not every client that gets nowhere reports it."""

_GRACE_S = 1.0
"""How long the other brokers of a cluster have to let a client in that one of them turned away."""


class ClientErrors:
    """What one client has reported of its connections; hand `settings` to the client.

    Args:
        connection: How the cluster is to be reached.

    Example:
        >>> client_errors = ClientErrors(connection)  # doctest: +SKIP
        >>> producer = client_errors.open(Producer)  # doctest: +SKIP
        >>> client_errors.check()  # doctest: +SKIP
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._said: list[str] = []
        self._turned_away: float | None = None
        self._all_down = False
        self._fault: HeadraceError | None = None
        self._look_at = 0.0
        self._waiting = 0
        self._lock = threading.Lock()

    def open(self, kind: Callable[..., T], settings: dict[str, Any] | None = None) -> T:
        """A client of this kind: ``AdminClient``, ``Consumer`` or ``Producer``.

        Args:
            kind: Its class.
            settings: Settings of its own.

        Raises:
            SpecInvalidError: The client does not begin with such settings.
        """
        from confluent_kafka import KafkaException

        every = {
            **self._connection.for_librdkafka(),
            # librdkafka prints to stderr by itself; a user sees our errors instead.
            "log_level": "0",
            "error_cb": self._take,
            **(settings or {}),
        }
        try:
            return kind(every, logger=SILENT)
        except KafkaException as error:
            raise refused_settings(self._connection, error.args[0].str()) from error

    def check(self, *, silent: bool = False) -> None:
        """Raise what the client was turned away with, once it is clear that it was.

        Args:
            silent: Whether the client has been waiting for longer than an answer takes.

        Raises:
            KafkaLoginError: By the login.
            KafkaTlsError: By the encryption.
            KafkaForbiddenError: By a missing right.
        """
        if self._fault is None and (silent or self._is_lost()) and time.monotonic() >= self._look_at:
            self._fault = find_fault(self._connection, self._said)
            self._look_at = time.monotonic() + _GRACE_S
        if self._fault is not None:
            raise self._fault

    def explain(self, error: BaseException) -> HeadraceError | None:
        """The coded error behind a client's exception, together with what it had reported before."""
        first = error.args[0] if error.args else error
        name = getattr(first, "name", None)
        code = name() if callable(name) else type(error).__name__
        return find_fault(self._connection, [*self._said, f"{code}\n{first}"])

    def wait(self, future: concurrent.futures.Future[T], client: Any, timeout_s: float) -> T:
        """The future's result, or at once the reason why there will be none.

        Raises:
            HeadraceError: The client was turned away.
            TimeoutError: Nothing came in time.
        """
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
        """What was reported since the last question has passed, unless it is reported again."""
        with self._lock:
            self._waiting += 1
            if self._waiting > 1:
                return
        client.poll(0)
        self._said, self._turned_away, self._all_down = [], None, False

    @property
    def last(self) -> str:
        """The last thing that was said."""
        return self._said[-1].partition("\n")[2] if self._said else ""

    def _is_lost(self) -> bool:
        if self._all_down:
            return True
        return self._turned_away is not None and time.monotonic() - self._turned_away > _GRACE_S

    def _take(self, error: KafkaError) -> None:
        from confluent_kafka import KafkaError as Codes

        if error.code() == Codes._ALL_BROKERS_DOWN:
            self._all_down = True
            return
        if error.code() in (Codes._AUTHENTICATION, Codes._SSL) and self._turned_away is None:
            self._turned_away = time.monotonic()
        self._said = [*self._said[-4:], f"{error.name()}\n{error.str()}"]


def _silent() -> logging.Logger:
    logger = logging.getLogger("headrace.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


SILENT = _silent()
"""Where librdkafka's own log lines go."""
