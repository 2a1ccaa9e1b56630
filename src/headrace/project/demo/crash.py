"""The moment of the crash: a batch that Spark has planned and not finished."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.model.names import TableName
from headrace.state.identity import generations, load_identity
from headrace.state.offset_log import load_state
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_log import find_batch

_LOOK_S = 0.001


@dataclass(frozen=True)
class Crash:
    """The state of the storage after a SIGKILL."""

    flow: str
    planned: int  # the last ``offsets/N``
    finished: int  # the last ``commits/N``
    checkpoint: Location
    in_table: bool  # whether the table already held batch N, so that the next start must skip it

    @property
    def inside_batch(self) -> bool:
        """Whether the process was killed during a batch."""
        return self.planned > self.finished


def await_batch(
    storage: Storage, dataset: TableName, flow: str, *, timeout_s: float, check: Callable[[], None]
) -> bool:
    """Wait until a batch has started; ``False`` after a timeout."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        check()
        known = generations(storage.flow_checkpoints(dataset, flow))
        if known:
            state = load_state(known[-1])
            # The first batches of a process are slow; a crash there would show less.
            if state.last_planned > state.last_finished:
                return True
        time.sleep(_LOOK_S)
    return False


def look_at_crash(storage: Storage, dataset: TableName, flow: str) -> Crash:
    """The state of the storage after the process has ended."""
    path = generations(storage.flow_checkpoints(dataset, flow))[-1]
    state = load_state(path)
    checkpoint = load_identity(path).checkpoint
    held = find_batch(storage.table(dataset), checkpoint, state.last_planned)
    return Crash(
        flow=flow,
        planned=state.last_planned,
        finished=state.last_finished,
        checkpoint=path,
        in_table=held is not None,
    )
