"""Spark's task metrics by batch and refresh, from Spark's status store.

The event log asks for it in its own thread, at most once a second and for all flows together: two calls to
the JVM, which no batch waits for.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.errors import HeadraceError
from headrace.model.event_forms import Event
from headrace.model.events import BatchCommitted, BatchWork, ViewRefreshed
from headrace.plan.stages import RefreshCost
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.state.lease import VIEW
from headrace.state.ledger import record_cost
from headrace.storage.layout import Storage

_LOG = logging.getLogger(__name__)

_STREAMING = re.compile(r"(.+)\nid = \S+\nrunId = \S+\nbatch = (\d+)", re.DOTALL)
"""The description that Spark gives to the jobs of a batch, with the name of the query."""
_REFRESH = re.compile(r"(.+)\nrefresh\b", re.DOTALL)
_RUNNING = frozenset({"RUNNING", "UNKNOWN"})

_Key = tuple[str, int]
"""A flow and the number of its batch, or a view and 0."""


@contextmanager
def refresh_jobs(session: SparkSession, view: str) -> Iterator[None]:
    """Describe the jobs of the block as those of a view's refresh, for `WorkMeter`."""
    session.sparkContext.setJobDescription(f"{view}\nrefresh")
    try:
        yield
    finally:
        session.sparkContext.setLocalProperty("spark.job.description", None)


def record_costs(storage: Storage, events: Sequence[Event]) -> None:
    """Record what refreshes have read, so that `plan` can show what the next ones cost."""
    for event in events:
        if isinstance(event, ViewRefreshed) and event.work is not None:
            work = event.work
            took_s = round(event.duration_s or 0.0, 3)
            cost = RefreshCost(rows=work.read_rows, read_bytes=work.read_bytes, duration_s=took_s)
            try:
                record_cost(storage.ledger(event.dataset, VIEW), cost.to_json())
            except HeadraceError as error:
                _LOG.warning("the cost of the view %s was not recorded: %s", event.dataset, error)


@dataclass
class WorkMeter:
    """Adds to the events of batches and refreshes what Spark's tasks have used."""

    session: SparkSession
    _jobs: dict[int, tuple[_Key, tuple[int, ...]]] = field(default_factory=dict)
    _next_job: int = 0
    _is_complete: bool = True
    _works: bool = True
    _tags: frozenset[str] = frozenset()
    """The tags of all jobs of this process, if it shares the JVM with others."""

    def __post_init__(self) -> None:
        try:
            self._tags = frozenset(self.session.sparkContext.getJobTags())
            self._next_job = self.session.sparkContext._jsc.sc().dagScheduler().numTotalJobs()
        except Exception as error:
            self._stop(error)

    def measure(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events, those of batches and refreshes with what Spark's tasks have used."""
        done = [one for one in events if isinstance(one, BatchCommitted | ViewRefreshed)]
        if not done:
            return events
        self._read_jobs()
        stages = self._read_stages([_key(one) for one in done])
        return [
            replace(one, work=self._take(one, stages))
            if isinstance(one, BatchCommitted | ViewRefreshed)
            else one
            for one in events
        ]

    def _take(
        self, event: BatchCommitted | ViewRefreshed, stages: Mapping[int, Sequence[Mapping[str, Any]]]
    ) -> BatchWork | None:
        """What a batch has used, its failed attempts included; ``None`` if Spark keeps not all of it."""
        key = _key(event)
        wanted = sorted({stage for job, ids in self._jobs.values() if job == key for stage in ids})
        # Jobs of earlier batches are those of a replay, or of a failed attempt.
        self._jobs = {job: one for job, one in self._jobs.items() if not _is_over(one[0], key)}
        attempts = [one for stage in wanted for one in stages.get(stage, ())]
        if not attempts or not self._is_complete:
            return None
        return BatchWork(
            executor_ms=sum(one["executorRunTime"] for one in attempts),
            peak_memory_bytes=max(one["peakExecutionMemory"] for one in attempts),
            spilled_bytes=sum(one["diskBytesSpilled"] for one in attempts),
            read_rows=sum(one["inputRecords"] for one in attempts),
            read_bytes=sum(one["inputBytes"] for one in attempts),
        )

    def _read_jobs(self) -> None:
        """Read the jobs since the call before."""
        found = [one["info"] for one in self._view("JobDataWrapper", first=self._next_job)]
        if not found:
            return
        first = min(one["jobId"] for one in found)
        # Spark forgets the oldest jobs.
        self._is_complete = first <= self._next_job
        for job in found:
            key = _described(job.get("description") or "")
            if key is not None and self._tags.issubset(job.get("jobTags") or ()):
                self._jobs[job["jobId"]] = (key, tuple(job["stageIds"]))
        running = [one["jobId"] for one in found if one["status"] in _RUNNING]
        self._next_job = min(running, default=1 + max(one["jobId"] for one in found))

    def _read_stages(self, keys: Sequence[_Key]) -> dict[int, list[Mapping[str, Any]]]:
        """The attempts of the stages of batches."""
        chosen = set(keys)
        wanted = {stage for key, ids in self._jobs.values() if key in chosen for stage in ids}
        stages: dict[int, list[Mapping[str, Any]]] = {}
        if wanted:
            for one in self._view("StageDataWrapper", first=min(wanted), index="stageId"):
                stages.setdefault(one["info"]["stageId"], []).append(one["info"])
        return stages

    def _view(self, kind: str, *, first: int, index: str | None = None) -> list[Any]:
        """The objects of one class in Spark's status store; none if this Spark has another store."""
        if not self._works:
            return []
        try:
            context = self.session.sparkContext
            jvm = context._jvm
            loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
            name = jvm.java.lang.Class.forName(f"org.apache.spark.status.{kind}", True, loader)
            view = context._jsc.sc().statusStore().store().view(name)
            view = view if index is None else view.index(index)
            mapper = jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
            text = mapper.writeValueAsString(view.first(first))
        except Exception as error:
            self._stop(error)
            return []
        found = json.loads(text)
        return found if isinstance(found, list) else []

    def _stop(self, error: Exception) -> None:
        """Measure no more: another version of Spark can have another status store."""
        self._works = False
        _LOG.debug("Spark's status store cannot be read: %s", error)


def _key(event: BatchCommitted | ViewRefreshed) -> _Key:
    return (event.flow, event.batch) if isinstance(event, BatchCommitted) else (str(event.dataset), 0)


def _is_over(one: _Key, done: _Key) -> bool:
    """Whether a batch of the same flow has ended when another one has."""
    return one[0] == done[0] and one[1] <= done[1]


def _described(text: str) -> _Key | None:
    """The batch or the refresh of a job with this description."""
    if found := _STREAMING.match(text):
        return found[1], int(found[2])
    return (found[1], 0) if (found := _REFRESH.match(text)) else None
