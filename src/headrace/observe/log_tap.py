"""What Headrace's modules log in this process, led into the logs of the updates that run."""

from __future__ import annotations

import logging
import threading
from typing import Final

_OURS = "headrace"


class Tap:
    """Leads what Headrace's modules log into the logs that are open, and changes nothing for others.

    A finer level on the logger would also reach the handlers of the process, for these have no level
    of their own as a rule. So lines stop here while a log is open, and those that would have gone on
    without it are passed on. Updates that run in one process at once share such lines.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[logging.Handler] = []
        self._relay = _Relay(logging.NOTSET, logging.NOTSET, True)

    def open(self, handler: logging.Handler) -> None:
        with self._lock:
            logger = logging.getLogger(_OURS)
            if not self._open:
                self._relay = _Relay(logger.level, logger.getEffectiveLevel(), logger.propagate)
                for own in list(logger.handlers):
                    self._relay.handlers.append(own)
                    logger.removeHandler(own)
                logger.propagate = False
                logger.addHandler(self._relay)
            self._open.append(handler)
            logger.addHandler(handler)
            logger.setLevel(min(self._relay.least, *(one.level for one in self._open)))

    def close(self, handler: logging.Handler) -> None:
        with self._lock:
            logger = logging.getLogger(_OURS)
            logger.removeHandler(handler)
            self._open.remove(handler)
            if self._open:
                logger.setLevel(min(self._relay.least, *(one.level for one in self._open)))
                return
            logger.removeHandler(self._relay)
            for own in self._relay.handlers:
                logger.addHandler(own)
            logger.propagate = self._relay.propagates
            logger.setLevel(self._relay.own_level)


class _Relay(logging.Handler):
    """Passes on to the process's own handlers what would have come to them."""

    def __init__(self, own_level: int, least: int, propagates: bool) -> None:
        super().__init__()
        self.own_level = own_level
        self.least = least
        self.propagates = propagates
        self.handlers: list[logging.Handler] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < self.least:
            return
        for handler in self.handlers:
            if record.levelno >= handler.level:
                handler.handle(record)
        if self.propagates:
            logging.getLogger().callHandlers(record)


TAP: Final = Tap()
"""Python's loggers belong to the process, and so does what is changed on them."""
