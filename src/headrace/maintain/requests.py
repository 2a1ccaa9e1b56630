"""Requests to compact a table whose flow is running: only its process knows when no batch runs.

`headrace maintain` writes a request. The flow's process marks it as taken, compacts the table between two
batches, and writes an answer. If that process ends, the command takes the flow's lease, and compacts the
table itself.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.model.names import TableName
from headrace.storage.layout import Storage
from headrace.storage.location import Location

_ASKED, _TAKEN = "asked", "taken"


def ask_flow(storage: Storage, table: TableName) -> str:
    """Ask the process that runs the flow of a table to compact it; returns the id of the request."""
    own = uuid.uuid4().hex
    _request(storage, table).replace(_text(own, _ASKED))
    return own


def find_requests(storage: Storage) -> frozenset[str]:
    """The names of the tables with a request."""
    return frozenset(name.removesuffix(".json") for name in storage.care_requests.list_files())


def take_request(storage: Storage, table: TableName) -> str | None:
    """Mark a request as taken, and return its id; ``None`` if there is none, or if it is already taken."""
    file = _request(storage, table)
    try:
        held = file.read_bytes()
        found = json.loads(held)
        own, state = str(found["id"]), found["state"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return own if state == _ASKED and file.swap(held, _text(own, _TAKEN)) else None


def answer_request(storage: Storage, table: TableName, request: str, outcome: Mapping[str, Any]) -> None:
    """Write the result, and remove the request."""
    _answer(storage, table).replace_json({"id": request, **outcome})
    _remove(_request(storage, table), request)


def load_answer(storage: Storage, table: TableName, request: str) -> Mapping[str, Any] | None:
    """The answer to a request; ``None`` if there is none yet."""
    found = _answer(storage, table).find_json()
    return found if isinstance(found, dict) and found.get("id") == request else None


def withdraw_request(storage: Storage, table: TableName, request: str) -> None:
    """Remove a request and its answer, because the command no longer waits."""
    _remove(_request(storage, table), request)
    _remove(_answer(storage, table), request)


def _remove(file: Location, request: str) -> None:
    """Delete a file, unless it belongs to another request."""
    found = file.find_json()
    if isinstance(found, dict) and found.get("id") == request:
        file.delete()


def _request(storage: Storage, table: TableName) -> Location:
    return storage.care_requests / f"{table}.json"


def _answer(storage: Storage, table: TableName) -> Location:
    return storage.care_answers / f"{table}.json"


def _text(request: str, state: str) -> str:
    return json.dumps({"id": request, "state": state})


class Turns:
    """Lets any number of batches of a table run at once, or one compaction."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._batches = 0
        self._is_alone = False

    @contextmanager
    def batch(self, stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Run a batch in the block: waits until no compaction runs or waits, then holds off compactions.
        `stopped`: returns whether to stop waiting, because a batch that begins now is refused anyway."""
        with self._condition:
            while self._is_alone and not stopped():
                self._condition.wait(0.1)
            self._batches += 1
        try:
            yield
        finally:
            with self._condition:
                self._batches -= 1
                self._condition.notify_all()

    @contextmanager
    def compaction(self, within_s: float, stopped: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Run a compaction in the block. New batches wait; the block begins when the running ones have ended.
        `within_s`: the maximum number of seconds to wait. Yields whether no batch runs. If false, a batch is
        still running or another compaction is."""
        deadline = time.monotonic() + within_s
        with self._condition:
            if self._is_alone:
                yield False
                return
            self._is_alone = True
            while self._batches and time.monotonic() < deadline and not stopped():
                self._condition.wait(0.1)
            is_free = not self._batches
        try:
            yield is_free
        finally:
            with self._condition:
                self._is_alone = False
                self._condition.notify_all()
