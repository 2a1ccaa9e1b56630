"""Follows a storage in a thread: keeps the index of its events, and the status of its pipelines."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.alerts.check import Alert, load_alerts
from headrace.dashboard.index import EventIndex, Progress
from headrace.errors import HeadraceError, first_line
from headrace.model.project import ProjectSettings
from headrace.storage.table_log import newest_version

if TYPE_CHECKING:
    from headrace.maintain.health import TableHealth
    from headrace.observe.snapshot import Snapshot
    from headrace.project.stored_pipeline import StoredPipeline

_logger = logging.getLogger(__name__)

_LOOK_S, _REMOTE_LOOK_S = 0.5, 5.0  # between two looks at the event log; in an object store, each has a price
_STATUS_S, _REMOTE_STATUS_S = 2.0, 15.0  # between two readings of the status
_QUIET = 4  # The status of a bucket is read so many times less often while its event log does not change
_SHARE = 4  # A status that takes long is read less often: it may take a fourth of the time
_HEALTH_S, _REMOTE_HEALTH_S = 60.0, 600.0
_WATCHED_S = 60.0  # how long after the last request the storage is followed


@dataclass
class Watcher:
    """The newest state of a storage. Any thread may read its fields; each is replaced as a whole."""

    settings: ProjectSettings
    index: EventIndex
    only: str | None = None  # the one pipeline that is shown
    revision: int = 0  # rises with each change that a page can show
    statuses: Mapping[str, Snapshot] = field(default_factory=dict)  # by pipeline
    alerts: Mapping[str, Sequence[Alert]] = field(default_factory=dict)  # by pipeline
    health: Mapping[str, TableHealth] = field(default_factory=dict)  # by dataset
    problem: str | None = None  # why the storage could not be read the last time
    is_ready: threading.Event = field(default_factory=threading.Event)
    _wake: threading.Event = field(default_factory=threading.Event)
    _asked: float = field(default_factory=time.monotonic)
    _read: tuple[int, int] = (-2, 0)  # the version of the event log that was read, and for which index
    _progress: Progress = field(default_factory=Progress)
    _status_due: float = 0.0
    _quiet_due: float = 0.0
    _health_due: float = 0.0

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="headrace-ui", daemon=True)
        self._stopped = self.index.stopped

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()
        self._thread.join(10)

    def touch(self) -> None:
        """Somebody looks: the storage is followed for some time."""
        was_idle = time.monotonic() - self._asked > _WATCHED_S
        self._asked = time.monotonic()
        if was_idle:
            self._wake.set()

    @property
    def pipelines(self) -> tuple[str, ...]:
        """The pipelines of the storage: pipelines that have run, and the one of the spec if it has tables."""
        if self.only is not None:
            return (self.only,)
        found = {row["pipeline"] for row in self.index.query("SELECT DISTINCT pipeline FROM definitions")}
        own = self.settings.name
        known = self.statuses.get(own)
        if not found or (known is not None and known.datasets):
            found.add(own)
        return tuple(sorted(found))

    def stored(self, pipeline: str) -> StoredPipeline:
        """The pipeline as the commands know it."""
        from headrace.project.pipeline import Pipeline

        return Pipeline(replace(self.settings, name=pipeline))

    def _run(self) -> None:
        look_s = _LOOK_S if self._is_local else _REMOTE_LOOK_S
        while not self._stopped.is_set():
            try:
                # The first status is not to wait for the index of a long event log.
                self._read_what_is_due()
                self._sync()
                self._report(None)
            except Exception as error:  # A storage that cannot be read now may be readable again.
                self._report(error)
                self.is_ready.set()
            self._wake.clear()
            idle = time.monotonic() - self._asked > _WATCHED_S
            self._wake.wait(10 * _WATCHED_S if idle else look_s)

    @property
    def _is_local(self) -> bool:
        return self.settings.storage.root.is_local

    def _sync(self) -> None:
        """Let the index have the new events; the status is read between two files."""
        newest = (newest_version(self.settings.storage.events), self.index.made)
        if newest != self._read:
            self._quiet_due = 0.0
            self.index.sync(self._read_what_is_due)
            self._read = newest
            self._changed()

    def _read_what_is_due(self) -> None:
        self._changed_by_index()
        began = time.monotonic()
        if began >= max(self._status_due, self._quiet_due):
            status_s = _STATUS_S if self._is_local else _REMOTE_STATUS_S
            self._read_statuses()
            ended = time.monotonic()
            self._status_due = ended + max(status_s, _SHARE * (ended - began))
            self._quiet_due = 0.0 if self._is_local else ended + _QUIET * status_s
            self.is_ready.set()
        elif began >= self._health_due:
            health_s = _HEALTH_S if self._is_local else _REMOTE_HEALTH_S
            self._read_health()
            ended = time.monotonic()
            self._health_due = ended + max(health_s, 10 * _SHARE * (ended - began))

    def _changed_by_index(self) -> None:
        """Tell pages that the index has got on."""
        if self.index.progress != self._progress:
            self._progress = self.index.progress
            self._changed()

    def _read_statuses(self) -> None:
        before, alerts = self.statuses, self.alerts
        self.statuses = {name: self.stored(name).status() for name in self.pipelines}
        storage = self.settings.storage
        self.alerts = {
            name: [one for one in load_alerts(storage, name) if one.fired is not None]
            for name in self.statuses
        }
        if (_shown(before), alerts) != (_shown(self.statuses), self.alerts):
            self._changed()

    def _read_health(self) -> None:
        before, found = self.health, self.stored(self.settings.name).table_health()
        self.health = {str(one.target.dataset): one for one in found if one.target.role == "table"}
        if before.keys() != self.health.keys():
            self._changed()

    def _changed(self) -> None:
        self.revision += 1

    def _report(self, error: Exception | None) -> None:
        text = None
        if error is not None:
            text = error.headline if isinstance(error, HeadraceError) else first_line(error)
            text = self.settings.redactor(text)
        if text != self.problem:
            if text is not None:
                _logger.warning("the storage cannot be read: %s", text)
            self.problem = text
            self._changed()


def _shown(statuses: Mapping[str, Snapshot]) -> dict[str, Any]:
    """The status without what changes with the clock alone."""
    found = {}
    for name, snapshot in statuses.items():
        data = snapshot.to_json()
        del data["at"]
        for one in data["datasets"]:
            del one["freshness_s"]
        found[name] = data
    return found
