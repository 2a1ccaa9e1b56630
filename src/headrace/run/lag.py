"""How far a flow is behind its sources, in records; asked now and then, for a person to look at."""

from __future__ import annotations

import time
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.model.ranges import SourceRange
from headrace.plan.stages import PlannedFlow
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.state.table_log import follow_commits

_INTERVAL_S = 1.0
"""Least seconds between two questions to the broker: a batch must not wait for them."""


class LagGauge:
    """Measures the records that a flow's sources hold beyond its last batch."""

    def __init__(self, planned: PlannedFlow, cluster: KafkaCluster) -> None:
        self._planned = planned
        self._cluster = cluster
        self._asked = 0.0

    def measure(self, ranges: tuple[SourceRange, ...]) -> int | None:
        """The lag behind ``until``; ``None`` where it was asked just now, or cannot be known."""
        if time.monotonic() - self._asked < _INTERVAL_S:
            return None
        self._asked = time.monotonic()
        lags = [self._of(one) for one in ranges]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if known and len(known) == len(lags) else None

    def _of(self, one: SourceRange) -> int | None:
        if one.kind == "kafka":
            return self._of_kafka(one)
        if one.kind == "delta":
            # Every commit of ours says how many rows it added; nobody else's does.
            first = int(one.until.get("reservoirVersion", 0))
            commits = list(follow_commits(Path(one.identity["path"]), first))
            if self._elsewhere(one) and any(c.changes_data and not c.is_ours for c in commits):
                return None
            return sum(int((c.metadata or {}).get("accepted", 0)) for c in commits if c.is_ours)
        return None

    def _elsewhere(self, one: SourceRange) -> bool:
        return any(source.index == one.index and source.table is None for source in self._planned.sources)

    def _of_kafka(self, one: SourceRange) -> int | None:
        try:
            latest = self._cluster.latest(one.until)
        except HeadraceError:
            return None
        assigned = one.identity.get("partitions", {})
        return sum(
            max(0, end - int(one.until.get(topic, {}).get(str(partition), 0)))
            for topic, ends in latest.items()
            for partition, end in ends.items()
            if partition in assigned.get(topic, ends)
        )
