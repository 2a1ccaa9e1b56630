"""Requests to the broker that end at once if it refuses this client; the caller explains a refusal."""

from __future__ import annotations

import concurrent.futures
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.model.kafka_settings import KafkaConnection

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

Explain = Callable[[Sequence[str]], HeadraceError | None]
"""Finds the coded error behind what a client has reported; ``None`` for what may pass."""

_TURN_S = 0.02
_SILENCE_S = 2.0
"""Not every client that gets nowhere reports it."""

_PAUSE_S = 1.0
"""Seconds between two explanations: each looks at the broker's listeners."""

_SILENT = logging.getLogger("headrace.librdkafka.verify")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


def unexplained(reported: Sequence[str]) -> HeadraceError | None:
    """No explanation: every error counts as a missing answer."""
    return None


class BrokerRequests:
    """Makes clients, listens to what they report, and waits for their answers."""

    def __init__(self, connection: KafkaConnection, explain: Explain = unexplained) -> None:
        self.connection = connection
        self._explain = explain
        self._said: list[str] = []
        self._lost = False
        self._explain_at = 0.0

    def open(self, kind: Callable[..., Any], **settings: Any) -> Any:
        """A client of this kind, which reports here."""
        from confluent_kafka import KafkaException

        every = {**self.connection.for_librdkafka(), "log_level": "0", "error_cb": self._take, **settings}
        try:
            return kind(every, logger=_SILENT)
        except KafkaException as error:
            raise self.explained(error) or error from error

    def wait(self, future: concurrent.futures.Future[Any], client: Any, timeout_s: float) -> Any:
        """The answer."""
        began = time.monotonic()
        while not future.done():
            concurrent.futures.wait([future], _TURN_S)
            client.poll(0)
            waited_s = time.monotonic() - began
            lost = self._lost or waited_s > _SILENCE_S
            if not future.done() and lost and time.monotonic() >= self._explain_at:
                if (found := self._explain(self._said)) is not None:
                    raise found
                self._explain_at = time.monotonic() + _PAUSE_S
            if waited_s > timeout_s:
                raise TimeoutError(f"no answer within {timeout_s:g} s")
        return future.result()

    def explained(self, error: BaseException) -> HeadraceError | None:
        """The coded error behind a client's exception."""
        first = error.args[0] if error.args else error
        name = getattr(first, "name", None)
        code = name() if callable(name) else type(error).__name__
        return self._explain([*self._said, f"{code}\n{first}"])

    def _take(self, error: KafkaError) -> None:
        self._lost = self._lost or error.name() in ("_ALL_BROKERS_DOWN", "_AUTHENTICATION", "_SSL")
        if error.name() != "_ALL_BROKERS_DOWN":
            self._said = [*self._said[-4:], f"{error.name()}\n{error.str()}"]
