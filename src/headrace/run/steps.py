"""The time that each step of a batch takes, and what the JVM did meanwhile."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace.run.reporting import logged_only

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_SPARK_STEPS = {
    "latestOffset": "offsets",
    "walCommit": "offsets",
    "getBatch": "planning",
    "queryPlanning": "planning",
    "commitOffsets": "marks",
}
"""The steps of Spark's progress reports that are not within the batch function; see `BatchTimed`."""
_DURATION = re.compile(r"(\w+)=(\d+)")
_CONCURRENT = re.compile("Concurrent|Cycles")
"""In the names of garbage collectors that run beside the program: they do not pause it."""


class StepClock:
    """Measures steps that follow one another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.monotonic()

    def end(self, step: str) -> None:
        """End a step; it began when the one before ended. A step that is repeated adds up."""
        now = time.monotonic()
        self.seconds[step] = self.seconds.get(step, 0.0) + now - self._at
        self._at = now


class JvmWork:
    """What the JVM does beside the batches of a flow, in milliseconds since the call before."""

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session._jvm
        factory = jvm.java.lang.management.ManagementFactory
        compiler = factory.getCompilationMXBean()
        self._counters: list[tuple[str, Callable[[], int]]] = [
            ("gc", one.getCollectionTime)
            for one in factory.getGarbageCollectorMXBeans()
            if not _CONCURRENT.search(one.getName())
        ]
        if compiler is not None:
            self._counters.append(("compiler", compiler.getTotalCompilationTime))
        self._before = self._count()

    def take(self) -> dict[str, int]:
        """The pauses of the collector, ``gc``, and the work of the ``compiler``."""
        now = self._count()
        found = {name: total - self._before[name] for name, total in now.items()}
        self._before = now
        return found

    def _count(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, count in self._counters:
            found[name] = found.get(name, 0) + max(count(), 0)
        return found


@dataclass(frozen=True)
class _Ended:
    seconds: Mapping[str, float]
    jvm_ms: Mapping[str, int]


@dataclass
class BatchSteps:
    """Reports the steps of each batch.

    The batch function measures its own steps, and calls `ended`. Spark reports the other steps a little
    later; the flow's thread calls `look` for them. `work`: returns what the JVM did since the last call.
    `report`: takes ``at`` (the end of the batch), ``batch``, ``steps_ms`` and ``jvm_ms``."""

    work: Callable[[], Mapping[str, int]]
    report: Callable[..., None]
    _ended: dict[int, _Ended] = field(default_factory=dict)

    def ended(self, batch: int, seconds: Mapping[str, float]) -> None:
        """Take the steps of the batch function."""
        with logged_only(f"the steps of batch {batch}"):
            self._ended[batch] = _Ended(seconds, self.work())

    def look(self, query: StreamingQuery) -> None:
        """Report the batches that Spark has reported since the last call."""
        if self._ended:
            with logged_only(f"the steps of the batches of {query.name}"):
                self._look(query._jsq)

    def _look(self, query: Any) -> None:
        newest = query.lastProgress()
        if newest is None or newest.batchId() < min(self._ended):
            return
        for progress in reversed(query.recentProgress()):
            batch = int(progress.batchId())
            if batch < min(self._ended, default=batch + 1):
                return
            times = {name: int(ms) for name, ms in _DURATION.findall(progress.durationMs().toString())}
            if "addBatch" in times and (ended := self._ended.pop(batch, None)) is not None:
                began = datetime.fromisoformat(progress.timestamp())
                at = began + timedelta(milliseconds=times["triggerExecution"])
                steps = _joined(ended.seconds, times)
                self.report(at=at, batch=batch, steps_ms=steps, jvm_ms=ended.jvm_ms)


def _joined(own_s: Mapping[str, float], spark_ms: Mapping[str, int]) -> dict[str, int]:
    """The steps in their order, in milliseconds."""
    found = dict.fromkeys(("offsets", "planning"), 0)
    own_ms = {name: round(1000 * seconds) for name, seconds in own_s.items()}
    rest = max(spark_ms["addBatch"] - sum(own_ms.values()), 0)
    found |= own_ms | {"report": own_ms.get("report", 0) + rest, "marks": 0}
    for name, step in _SPARK_STEPS.items():
        found[step] += spark_ms.get(name, 0)
    return found
