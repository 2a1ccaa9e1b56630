"""The progress of a download of jars, on standard error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PLAIN_INTERVAL_S = 5.0

FETCHING = threading.Event()
"""Set while the terminal shows the progress of a download."""

Shown = Callable[[int, int, int, int], None]


@contextmanager
def show_fetch() -> Iterator[Shown]:
    """Shows a progress bar on a terminal, and plain lines elsewhere.

    Yields a function of jars done, all jars, bytes done, all bytes.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain(console.file.write)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    FETCHING.set()
    try:
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("Fetching jars", total=None)

            def update(jars_done: int, jars_total: int, bytes_done: int, bytes_total: int) -> None:
                text = f"Fetching jars {jars_done}/{jars_total}"
                progress.update(task, description=text, completed=bytes_done, total=bytes_total)

            yield update
    finally:
        FETCHING.clear()


def _plain(write: Callable[[str], object]) -> Shown:
    last = [0.0]
    finished = [False]

    def update(jars_done: int, jars_total: int, bytes_done: int, bytes_total: int) -> None:
        now = time.monotonic()
        if jars_done < jars_total and now - last[0] < _PLAIN_INTERVAL_S:
            return
        if finished[0]:
            return
        last[0], finished[0] = now, jars_done == jars_total
        megabytes = f"{bytes_done / 1e6:.0f} of {bytes_total / 1e6:.0f} MB"
        write(f"Fetching jars: {jars_done} of {jars_total}, {megabytes}\n")

    return update
