"""Limits of a query's batches that follow what its batches take, as long as the user sets none."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.model.ranges import SourceRange
from headrace.plan.stages import PlannedFlow, PlannedSource
from headrace.run.context import UpdateContext
from headrace.sources.kafka.record_size import RecordSizes
from headrace.sources.limits import (
    DELTA_MAX_BYTES_PER_TRIGGER,
    Taken,
    first_limit,
    next_limit,
)
from headrace.state.facts import KafkaFacts
from headrace.state.table_log import versions

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from headrace.run.opening import OpenedFlow

_LOG = logging.getLogger(__name__)
_BACKLOG = 20
"""Records from which on a backlog is worth a sample."""

_BYTES, _FILES = "maxbytespertrigger", "maxfilespertrigger"
_SLOW_S = 1.0
"""A batch that is shorter is not worth a look at how much is left."""


class BatchLimits:
    """Decides how much the batches of one query may take.

    Spark fixes a source's limit when a query starts, and asks for it before each batch; between two
    batches it is replaced there. Where that cannot be done, the first limit stays.

    Args:
        planned: The flow.
        context: The update.
    """

    def __init__(self, planned: PlannedFlow, context: UpdateContext) -> None:
        self._flow = planned.flow.name
        self._context = context
        self._adaptive = {source.index: source for source in planned.sources if source.adaptive}
        self._sizes = RecordSizes(context.settings.kafka)
        self._record_bytes: float | None = None
        self._query: StreamingQuery | None = None
        self._limits: dict[int, int] = {}
        for index, source in self._adaptive.items():
            if source.kind == "delta":
                self._limits[index] = DELTA_MAX_BYTES_PER_TRIGGER
            elif source.kind == "files":
                self._limits[index] = int(_option(source, _BYTES) or _option(source, _FILES) or 1)

    def first(self, opened: OpenedFlow) -> int:
        """The records that the first batch may take of each Kafka source."""
        found = [first_limit(None)]
        for index, source in self._adaptive.items():
            if source.kind == "kafka":
                before = None if opened.checkpoint is None else opened.checkpoint.positions.get(index)
                found.append(first_limit(self._sample_first(before, opened.kafka[index])))
        smallest = min(found)
        self._limits |= {i: smallest for i, source in self._adaptive.items() if source.kind == "kafka"}
        return smallest

    def attach(self, query: StreamingQuery) -> None:
        """The query whose limits these are; it may have begun already."""
        self._query = query

    def follow(self, ranges: tuple[SourceRange, ...], duration_s: float) -> None:
        """Set the limits of the next batch by what this one has taken."""
        changed = {}
        for one in ranges:
            if one.index in self._limits:
                before = self._limits[one.index]
                limit = next_limit(before, self._taken(one, before, duration_s))
                if limit != before:
                    changed[one.index] = limit
        if changed and self._query is not None and self._apply(self._query, changed):
            self._limits |= changed

    def _apply(self, query: StreamingQuery, limits: Mapping[int, int]) -> bool:
        """Replace limits within the running query; whether that could be done."""
        from py4j.protocol import Py4JError

        jvm = self._context.spark.sparkContext._jvm
        try:
            execution = query._jsq.streamingQuery()
            sources, known = execution.sources(), execution.uniqueSources()
            for index, limit in limits.items():
                source = sources.apply(index)
                known = known.updated(source, _replaced(jvm, known.apply(source), limit))
            getattr(execution, "uniqueSources_$eq")(known)
        except (Py4JError, TypeError) as error:
            _LOG.warning("flow %s: its limits stay as they are: %s", self._flow, error)
            return False
        return True

    def close(self) -> None:
        """Let go of what samples were taken with."""
        self._sizes.close()

    def _sample_first(self, before: Mapping[str, Any] | None, facts: KafkaFacts) -> float | None:
        position = facts.earliest if before is None else _numbered(before)
        backlog = {
            topic: {part: offset for part, offset in offsets.items() if offset < _end(facts, topic, part)}
            for topic, offsets in position.items()
        }
        count = sum(_end(facts, t, p) - o for t, offsets in backlog.items() for p, o in offsets.items())
        if count >= _BACKLOG:
            self._record_bytes = self._sizes.sample(backlog)
        return self._record_bytes

    def _taken(self, one: SourceRange, limit: int, duration_s: float) -> Taken:
        if one.kind == "kafka":
            amount = sum(
                offset - (one.start or {}).get(topic, {}).get(partition, 0)
                for topic, partitions in one.until.items()
                for partition, offset in partitions.items()
            )
            # A flow that keeps up has no records to come.
            if amount >= limit // 2:
                self._record_bytes = self._sizes.sample(_numbered(one.until)) or self._record_bytes
            return Taken(amount, duration_s, self._record_bytes)
        if one.kind == "files":
            count, size = (0, 0) if one.files is None else (one.files["count"], one.files["bytes"])
            if _option(self._adaptive[one.index], _BYTES) is not None:
                return Taken(size, duration_s)
            return Taken(count, duration_s, size / count if count else None)
        return Taken(limit if _is_cut(one, duration_s) else 0, duration_s)


def _option(source: PlannedSource, name: str) -> str | None:
    return next((value for key, value in source.options.items() if key.lower() == name), None)


def _is_cut(one: SourceRange, duration_s: float) -> bool:
    """Whether a table held more than the batch took."""
    if int(one.until.get("index", -1)) >= 0:
        return True
    if duration_s < _SLOW_S:
        return False
    known = versions(Path(one.identity["path"]))
    return bool(known) and int(one.until["reservoirVersion"]) < known[-1]


def _replaced(jvm: Any, before: Any, limit: int) -> Any:
    """A limit of the same kind as before; an unknown one, of another version of Delta, is an error here."""
    match before.getClass().getSimpleName():
        case "ReadMaxRows":
            return jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.maxRows(limit)
        case "ReadMaxFiles":
            return jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.maxFiles(limit)
        case "ReadMaxBytes":
            return jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.maxBytes(limit)
        case "CompositeLimit":
            size = jvm.org.apache.spark.sql.delta.sources.ReadMaxBytes(limit)
            return before.copy(size, before.maxFiles(), before.minFiles())
        case other:
            raise TypeError(f"{other} is no limit that can be replaced")


def _numbered(position: Mapping[str, Any]) -> dict[str, dict[int, int]]:
    return {t: {int(p): int(o) for p, o in offsets.items()} for t, offsets in position.items()}


def _end(facts: KafkaFacts, topic: str, partition: int) -> int:
    return facts.latest.get(topic, {}).get(partition, 0)
