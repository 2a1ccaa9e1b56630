"""Sets the limits of batches, if the user sets none, and how Spark runs their queries."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.model.declarations import AppendFlow
from headrace.model.ranges import SourceRange
from headrace.plan.stages import PlannedFlow
from headrace.runtime.defaults import available_cores
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.target import SMALL_BATCH, keeps_state
from headrace.sources.limits import AdaptiveLimit
from headrace.sources.registry import kind_of
from headrace.sources.requests import Systems

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from headrace.run.opening import OpenedFlow


def most_tasks(session: SparkSession) -> int:
    """The maximum number of tasks of a batch, so that other flows can run at the same time."""
    return max(2 * available_cores(), int(session.sparkContext.defaultParallelism) // 2)


_CODE = "spark.sql.codegen.factoryMode"
_INTERPRETED = 2_000
"""The number of records up to which Spark evaluates expressions without generating code for them."""


@dataclass
class Execution:
    """How Spark runs the queries of a flow's batches: in how many tasks, and with or without generated code.

    For each projection of each task, Spark writes the text of a Java class, and looks up its compiled code.
    With few records, that takes longer than to evaluate the expressions without generated code. A user's
    setting is kept."""

    planned: PlannedFlow
    tasks: int  # of a batch, at most
    _interprets: bool = False

    def prepare(self, rows: DataFrame, ranges: tuple[SourceRange, ...]) -> DataFrame:
        """The rows of a batch, in tasks that fit their number."""
        if self.planned.stateful:
            # The partitions are fixed, and each batch may look through all of the state.
            return rows
        records = count_records(ranges)
        small = records is not None and records <= SMALL_BATCH
        self._choose_code(rows.sparkSession, records)
        return rows.coalesce(1 if small else self.tasks)

    def _choose_code(self, session: SparkSession, records: int | None) -> None:
        if not self._reads_records_only:
            return
        interprets = records is not None and records <= _INTERPRETED
        if self._interprets and not interprets:
            session.conf.unset(_CODE)
            self._interprets = False
        elif interprets and not self._interprets and session.conf.get(_CODE, None) is None:
            session.conf.set(_CODE, "NO_CODEGEN")
            self._interprets = True

    @property
    def _reads_records_only(self) -> bool:
        """Whether a batch computes with no other rows than those of its records."""
        planned = self.planned
        return isinstance(planned.flow, AppendFlow) and all(one.streaming for one in planned.reads)


def count_records(ranges: tuple[SourceRange, ...]) -> int | None:
    """The maximum number of records that a batch has read; ``None`` if the positions do not show it."""
    counts = [kind_of(one.kind).count(one) for one in ranges]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


_LOG = logging.getLogger(__name__)


class BatchLimits:
    """Sets the limits of the batches of one query.

    Spark sets the limit of a source when a query starts, and reads it before each batch. Between two batches
    it is replaced in Spark. If that fails, the first limit stays. `first`: the records that the first batch
    may read of each source whose limit is a number of records; ``None`` if there is no such source.
    """

    def __init__(
        self, planned: PlannedFlow, systems: Systems, session: SparkSession, opened: OpenedFlow
    ) -> None:
        self._flow = planned.flow.name
        self._session = session
        by_commit = keeps_state(planned.sink)  # then a feed is read without a limit
        sources = [one for one in planned.sources if not (by_commit and one.reads_feed)]
        found = {source.index: source.meter(systems) for source in sources}
        self._meters = {index: meter for index, meter in found.items() if meter is not None}
        self._query: StreamingQuery | None = None
        positions = {} if opened.checkpoint is None else opened.checkpoint.positions
        facts = {one.source.index: one for one in opened.sources}
        first = {
            index: meter.first_limit(facts[index], positions.get(index))
            for index, meter in self._meters.items()
        }
        records = [index for index, meter in self._meters.items() if meter.counts_records]
        self.first = min((first[index] for index in records), default=None)
        first |= {} if self.first is None else dict.fromkeys(records, self.first)
        self._limits = {i: AdaptiveLimit(limit, self._meters[i].least) for i, limit in first.items()}

    def attach(self, query: StreamingQuery) -> None:
        """Set the query of these limits; it may run already."""
        self._query = query

    def record_bytes(self, source: int) -> float | None:
        """The mean size of a source's records, from a sample; ``None`` where there is none."""
        meter = self._meters.get(source)
        return None if meter is None else meter.record_bytes

    def follow(self, ranges: tuple[SourceRange, ...], duration_s: float) -> None:
        """Set the limits of the next batch after a batch has ended."""
        changed = {}
        for one in ranges:
            if (adaptive := self._limits.get(one.index)) is not None:
                taken = self._meters[one.index].taken(one, adaptive.limit, duration_s)
                limit = adaptive.next(taken)
                if limit != adaptive.limit:
                    changed[one.index] = limit
        if changed and self._query is not None and self._apply(self._query, changed):
            for index, limit in changed.items():
                self._limits[index].limit = limit

    def _apply(self, query: StreamingQuery, limits: Mapping[int, int]) -> bool:
        """Replace limits in the running query; returns whether it succeeded."""
        from py4j.protocol import Py4JError

        jvm = self._session.sparkContext._jvm
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


def _replaced(jvm: Any, before: Any, limit: int) -> Any:
    """A limit of the same type as before; the type is unknown if Delta has another version."""
    match before.getClass().getSimpleName():
        case "ReadMaxRows":
            return jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.maxRows(limit)
        case "ReadMaxFiles":
            return jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.maxFiles(limit)
        case "ReadMaxBytes":
            return jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.maxBytes(limit)
        case "PythonStreamingSourceReadLimit":
            return before.copy(json.dumps({**json.loads(before.json()), "max_rows": limit}))
        case "CompositeLimit":
            size = jvm.org.apache.spark.sql.delta.sources.ReadMaxBytes(limit)
            return before.copy(size, before.maxFiles(), before.minFiles())
        case other:
            raise TypeError(f"a limit of the type {other} cannot be replaced")
