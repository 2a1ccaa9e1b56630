"""Executors follow the backlog: a continuous run on a cluster asks for more, and gives idle ones back.

One more executor, or one less, changes the time that a backlog takes by a factor of two at most. Executors
are given back below a quarter of the limit above which more are wanted, so no step causes its opposite.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from headrace.model.event_forms import Emitter, Event, FlowEvent
from headrace.model.events import BatchCommitted, BatchReplayed, BatchStarted, ExecutorsRequested
from headrace.model.project import ExecutorLimits
from headrace.model.texts import duration_text
from headrace.run.limits import count_records
from headrace.runtime.lazy_pyspark import SparkSession

_LOG = logging.getLogger(__name__)
_LOOK_S = 1.0
_CALM = 0.25
_REST_S = 5.0
"""A flow without a batch for so long has nothing to do; the time between two batches is shorter."""
_NEWEST = 0.5
"""The weight of the newest batch in the speed of a flow."""


@dataclass(frozen=True)
class Load:
    """The time that a flow needs with its present executors."""

    seconds: float
    reason: str


@dataclass(frozen=True)
class Demand:
    """The wanted number of executors, and since when the loads have asked for another."""

    wanted: int
    high_since: float | None = None
    low_since: float | None = None


def decide(
    limits: ExecutorLimits, demand: Demand, loads: Sequence[Load], executors: int, now: float
) -> tuple[Demand, str | None]:
    """Returns the new demand, and the reason if the number changes. `executors`: how many there are now."""
    top = max(loads, key=lambda load: load.seconds, default=Load(0.0, "no flow has a backlog"))
    if top.seconds > limits.backlog_s:
        since = now if demand.high_since is None else demand.high_since
        # Asking again would not help while the cluster still starts some, or has none left.
        is_due = now - since >= limits.backlog_s / 2 and executors >= demand.wanted
        if is_due and demand.wanted < limits.most:
            factor = min(2.0, top.seconds / limits.backlog_s)
            wanted = min(limits.most, max(demand.wanted + 1, int(demand.wanted * factor)))
            return Demand(wanted), f"{top.reason}; the limit is {duration_text(limits.backlog_s)}"
        return replace(demand, high_since=since, low_since=None), None
    if top.seconds < limits.backlog_s * _CALM:
        since = now if demand.low_since is None else demand.low_since
        if now - since >= limits.idle_s and demand.wanted > limits.least:
            wanted = max(limits.least, demand.wanted - max(1, demand.wanted // 2))
            idle = duration_text(limits.idle_s)
            return Demand(wanted), f"for {idle}, fewer executors have been enough: {top.reason}"
        return replace(demand, high_since=None, low_since=since), None
    return Demand(demand.wanted), None


@dataclass
class _Flow:
    began: float | None = None  # when its running batch began
    behind_since: float | None = None
    lag: int | None = None
    speed: float | None = None  # records a second
    batch_s: float = 0.0
    ended: float = 0.0

    def committed(self, event: BatchCommitted, now: float) -> None:
        self.began, self.ended = None, now
        self.batch_s = event.duration_s or 0.0
        records = count_records(event.ranges)
        if records and self.batch_s:
            newest = records / self.batch_s
            self.speed = newest if self.speed is None else self.speed + _NEWEST * (newest - self.speed)
        if event.lag is None and event.lag_bytes is None:
            return  # not measured: it was measured just before
        self.lag = event.lag
        has_lag = bool(event.lag if event.lag is not None else event.lag_bytes)
        if not has_lag:
            self.behind_since = None
        elif self.behind_since is None:
            self.behind_since = now

    def load(self, name: str, now: float) -> Load:
        running = 0.0 if self.began is None else now - self.began
        if self.began is None and self.behind_since is None and now - self.ended > _REST_S:
            return Load(0.0, f"flow {name} has nothing to do")
        batch = max(self.batch_s, running)
        if self.lag and self.speed:
            needed = self.lag / self.speed
            text = f"{self.lag:,} records at {self.speed:,.0f} records/s take {duration_text(needed)}"
        elif self.behind_since is not None:
            needed = now - self.behind_since
            text = f"it has been behind for {duration_text(needed)}"
        else:
            needed, text = 0.0, "it has no backlog"
        return Load(max(needed, batch), f"flow {name}: {text}, a batch takes {duration_text(batch)}")


@dataclass
class FlowLoads:
    """Learns from the events of a run how much the flows have to do; called from several threads."""

    _flows: dict[str, _Flow] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, event: Event, now: float | None = None) -> None:
        if not isinstance(event, FlowEvent):
            return
        now = time.monotonic() if now is None else now
        with self._lock:
            match event:
                case BatchStarted():
                    self._flows.setdefault(event.flow, _Flow()).began = now
                case BatchCommitted():
                    self._flows.setdefault(event.flow, _Flow()).committed(event, now)
                case BatchReplayed():
                    self._flows.setdefault(event.flow, _Flow()).began = None
                case _ if event.state in ("retrying", "failed", "stopped", "up to date"):
                    # Its batch has ended, and more executors would not help it.
                    self._flows.pop(event.flow, None)

    def loads(self, now: float) -> list[Load]:
        with self._lock:
            return [flow.load(name, now) for name, flow in self._flows.items()]


class Executors(Protocol):
    def look(self) -> int:
        """Returns how many there are now, and notes which of them have nothing to do."""
        ...

    def request(self, total: int) -> None: ...

    def give_back(self, most: int) -> None:
        """End up to some executors that had nothing to do at the last two looks."""
        ...


class SparkExecutors:
    def __init__(self, session: SparkSession) -> None:
        context: Any = session.sparkContext
        self._jvm = context._jvm
        self._context = context._jsc.sc()
        self._idle: frozenset[str] = frozenset()
        self._idle_twice: frozenset[str] = frozenset()

    def look(self) -> int:
        # The rows of a batch that Spark keeps, and its tasks, are the work of a batch that is not over.
        found = self._context.statusStore().executorList(True)
        active = [one for one in map(found.apply, range(found.size())) if one.id() != "driver"]
        idle = frozenset(one.id() for one in active if not one.activeTasks() and not one.rddBlocks())
        self._idle, self._idle_twice = idle, idle & self._idle
        return len(active)

    def request(self, total: int) -> None:
        self._context.requestTotalExecutors(total, 0, self._jvm.scala.collection.immutable.HashMap())

    def give_back(self, most: int) -> None:
        # Spark itself refuses to end an executor that has got a task meanwhile.
        chosen = sorted(self._idle_twice, key=lambda name: (len(name), name), reverse=True)[:most]
        if chosen:
            names = self._jvm.PythonUtils.toSeq(chosen)
            # The total is requested by `request`; an executor that is ended counts as no failure.
            self._context.schedulerBackend().killExecutors(names, False, False, False)


class ExecutorScaling:
    """Sets the number of executors of a continuous run; a context manager around it."""

    def __init__(
        self,
        limits: ExecutorLimits,
        executors: Executors,
        loads: FlowLoads,
        emit: Emitter,
        update: str,
        look_s: float = _LOOK_S,
    ) -> None:
        self._limits, self._executors, self._loads = limits, executors, loads
        self._emit, self._update, self._look_s = emit, update, look_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-executors", daemon=True)

    def __enter__(self) -> ExecutorScaling:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10.0)

    def _run(self) -> None:
        demand, is_failing = None, False
        while not self._stop.is_set():
            try:
                demand = self._begin() if demand is None else self._look(demand)
                is_failing = False
            except Exception:
                # The next look may succeed. The end of a run stops the session.
                if not is_failing and not self._stop.is_set():
                    _LOG.warning("the number of executors cannot be changed at the moment", exc_info=True)
                is_failing = True
            self._stop.wait(self._look_s)

    def _begin(self) -> Demand:
        demand = Demand(self._limits.least)
        self._executors.request(demand.wanted)
        self._report(self._executors.look(), demand.wanted, "the run begins with `min` executors")
        return demand

    def _look(self, demand: Demand) -> Demand:
        count, now = self._executors.look(), time.monotonic()
        new, reason = decide(self._limits, demand, self._loads.loads(now), count, now)
        if reason is not None:
            self._executors.request(new.wanted)
            self._report(demand.wanted, new.wanted, reason)
        if count > new.wanted:
            self._executors.give_back(count - new.wanted)
        return new

    def _report(self, before: int, after: int, reason: str) -> None:
        self._emit(ExecutorsRequested(update=self._update, before=before, after=after, reason=reason))
