"""Whether a flow runs, has been stopped, or has failed: from its lease and from the event log."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from headrace.model.events import (
    BatchCommitted,
    Event,
    FlowFailed,
    FlowFinished,
    FlowRetrying,
    FlowStarted,
    ViewFailed,
    ViewRefreshed,
    ViewUpToDate,
)
from headrace.model.names import TableName
from headrace.observe.events import event_from_json
from headrace.state.lease import EXPIRES_S
from headrace.storage.layout import Storage

FlowState = Literal["new", "running", "retrying", "stopped", "failed"]

_TAIL_BYTES = 512 * 1024
_UPDATES = 5


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The process that holds a lease."""

    pid: int
    host: str


@dataclass(frozen=True, kw_only=True)
class LastFailure:
    """What last went wrong with a flow or a view, and was not followed by success.

    Args:
        error: As `HeadraceError.to_dict` gives it.
        final: Whether it was given up.
        dataset: What it feeds, or the view itself.
        is_latest: Whether it happened in the newest update.
    """

    error: Mapping[str, Any]
    final: bool
    dataset: TableName
    is_latest: bool = False


def find_driver(lease: Path) -> Driver | None:
    """The live process behind a lease; ``None`` where there is none."""
    try:
        held = json.loads(lease.read_text(encoding="utf-8"))
        beaten = time.time() - float(held["heartbeat"]) <= EXPIRES_S
        driver = Driver(pid=int(held["pid"]), host=str(held["host"]))
        if driver.host != socket.gethostname():
            return driver if beaten else None
        # A pid is used again: the time of creation tells the processes apart.
        created = psutil.Process(driver.pid).create_time()
        return driver if beaten and abs(created - float(held["started"])) < 1.0 else None
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None


def load_troubles(storage: Storage) -> dict[str, LastFailure]:
    """What troubles each flow or view, by the flow's or the dataset's name; from the last updates."""
    settled: dict[str, LastFailure | None] = {}
    files = sorted(storage.events.glob("*.jsonl"))[-_UPDATES:] if storage.events.is_dir() else []
    for file in reversed(files):
        for event in reversed(list(_last_events(file))):
            name, trouble = _outcome(event, is_latest=file == files[-1])
            if name is not None:
                settled.setdefault(name, trouble)
    return {name: trouble for name, trouble in settled.items() if trouble is not None}


def _outcome(event: Event, *, is_latest: bool) -> tuple[str | None, LastFailure | None]:
    match event:
        case FlowFailed() | FlowRetrying():
            final = isinstance(event, FlowFailed)
            trouble = LastFailure(error=event.error, final=final, dataset=event.dataset, is_latest=is_latest)
            return event.flow, trouble
        case FlowStarted() | FlowFinished() | BatchCommitted():
            return event.flow, None
        case ViewFailed():
            trouble = LastFailure(error=event.error, final=True, dataset=event.dataset, is_latest=is_latest)
            return str(event.dataset), trouble
        case ViewRefreshed() | ViewUpToDate():
            return str(event.dataset), None
        case _:
            return None, None


def _last_events(file: Path) -> Iterator[Event]:
    """The events at the end of a log, which can be very long."""
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - _TAIL_BYTES))
            lines = stream.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines[1:] if size > _TAIL_BYTES else lines:
        try:
            event = event_from_json(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            # A line that is being written right now, or that another version wrote.
            continue
        if event is not None:
            yield event
