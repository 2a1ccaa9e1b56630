"""SIGINT and SIGTERM while a command works."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

Handle = Callable[[int, Callable[[], object]], None]
"""Takes the number of a signal, and a function that does what the signal would have done otherwise."""


@contextmanager
def handling_signals(handle: Handle) -> Iterator[None]:
    """Call a function for SIGINT and SIGTERM, while the block runs in the main thread.

    Args:
        handle: The function. It can interrupt the main thread anywhere.
    """
    if threading.current_thread() is not threading.main_thread():
        # Python allows signal handlers in the main thread only.
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def received(number: int, frame: FrameType | None) -> None:
        otherwise = before[signal.Signals(number)]
        handle(number, partial(otherwise, number, frame) if callable(otherwise) else lambda: None)

    for one in before:
        signal.signal(one, received)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
