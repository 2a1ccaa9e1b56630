"""Finds the record on which a query fails: the batch is read again, in halves, and nothing is written."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.errors import FlowFailedError, HeadraceError, RecordUnparseableError
from headrace.model.ranges import SourceRange
from headrace.plan.stages import PlannedFlow
from headrace.run.context import BuildRanges
from headrace.run.failures import Failures
from headrace.run.stop import StopSignal
from headrace.sources.kafka.cluster import Offsets
from headrace.sources.kafka.position import KafkaOffsets
from headrace.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)
_LIMIT_S = 60.0
"""Seconds that the search may take: half a million records need about twenty attempts."""


@dataclass(frozen=True)
class Part:
    """Records of one partition, from ``start`` to before ``until``."""

    topic: str
    partition: int
    start: int
    until: int
    source: int = 0

    @property
    def is_record(self) -> bool:
        return self.until - self.start == 1

    def __str__(self) -> str:
        partition = f"topic {self.topic}, partition {self.partition}"
        if self.is_record:
            return f"{partition}, offset {self.start}"
        return f"{partition}, offsets {self.start} to {self.until - 1}"


def parts_of(ranges: Iterable[SourceRange]) -> tuple[Part, ...]:
    """The Kafka records of a batch."""
    return tuple(
        Part(topic, partition, first, end, one.index)
        for one in ranges
        if isinstance(one.until, KafkaOffsets)
        for topic, partition, first, end in one.until.since(one.start)
    )


def ranges_of(parts: Iterable[Part], batch: Iterable[SourceRange]) -> list[SourceRange]:
    """The ranges of a batch, reduced to some of its records."""
    bounds: dict[int, tuple[Offsets, Offsets]] = {}
    for part in parts:
        start, until = bounds.setdefault(part.source, ({}, {}))
        start.setdefault(part.topic, {})[part.partition] = part.start
        until.setdefault(part.topic, {})[part.partition] = part.until
    return [
        replace(one, start=KafkaOffsets(bounds[one.index][0]), until=KafkaOffsets(bounds[one.index][1]))
        for one in batch
        if one.index in bounds
    ]


def find_first(
    parts: Sequence[Part], fails: Callable[[Sequence[Part]], bool], go_on: Callable[[], bool]
) -> Sequence[Part]:
    """Find the first record on which a query fails, by halving the ranges.

    Args:
        parts: Ranges of records on which the query fails.
        fails: Tells whether the query fails on some ranges.
        go_on: Tells whether there is time for one more attempt.

    Returns:
        The smallest ranges found on which the query fails.
    """
    found = list(parts)
    while len(found) > 1 and go_on():
        half = found[: len(found) // 2]
        found = half if fails(half) else found[len(half) :]
    while len(found) == 1 and not found[0].is_record and go_on():
        one = found[0]
        middle = (one.start + one.until) // 2
        first = replace(one, until=middle)
        found = [first if fails([first]) else replace(one, start=middle)]
    return found


@dataclass(frozen=True, kw_only=True)
class RecordSearch:
    """Finds the record on which a flow's query fails.

    This needs a stateless query over sources whose ranges can be read again, and the record is one of
    Kafka: there each row comes from one record. The batch is not
    committed, whether the record is found or not.

    Args:
        planned: The flow.
        build_ranges: Evaluates its query over some of its records.
        failures: Gives failures their codes.
    """

    planned: PlannedFlow
    build_ranges: BuildRanges
    failures: Failures

    def name_record(
        self,
        error: HeadraceError,
        session: SparkSession,
        stop: StopSignal,
        ranges: Sequence[SourceRange],
        checkpoint: Location,
    ) -> HeadraceError:
        """Return a failure with the record that causes it, if that record can be found.

        Args:
            error: The failure.
            session: The flow's session.
            stop: Ends the search.
            ranges: What the batch has read.
            checkpoint: The flow's checkpoint.
        """
        planned, parts = self.planned, parts_of(ranges)
        rereads = all(source.rereads for source in planned.sources)
        known = "offset" in error.params or not isinstance(error, FlowFailedError | RecordUnparseableError)
        if known or planned.stateful or not rereads or not parts:
            return error
        deadline = time.monotonic() + _LIMIT_S

        def fails(some: Sequence[Part]) -> bool:
            return self._fails(some, session, ranges, checkpoint)

        def go_on() -> bool:
            return time.monotonic() < deadline and not stop.requested

        _LOG.info("flow %s: searching the batch for the record on which the query fails", planned.flow.name)
        try:
            if not fails(parts):
                return error
            found = find_first(parts, fails, go_on)
            if not fails(found):
                # The query fails only on several records together, or not every time.
                return error
        except HeadraceError as other:
            _LOG.info("flow %s: the record was not found: %s", planned.flow.name, other.headline)
            return error
        return _with_parts(error, found)

    def _fails(
        self,
        parts: Sequence[Part],
        session: SparkSession,
        ranges: Sequence[SourceRange],
        checkpoint: Location,
    ) -> bool:
        """Whether the query fails over some records.

        Raises:
            HeadraceError: It fails for another reason, such as a broker that does not answer.
        """
        try:
            df = self.build_ranges(session, self.planned, ranges_of(parts, ranges), checkpoint)
            df.write.format("noop").mode("overwrite").save()
        except Exception as failure:
            error = self.failures.as_error(failure, self.planned.flow)
            if isinstance(error, FlowFailedError | RecordUnparseableError):
                return True
            raise error from failure
        return False


def _with_parts(error: HeadraceError, found: Sequence[Part]) -> HeadraceError:
    """A failure with the records on which the query fails."""
    error = error.with_(facts=[*error.facts, f"the query fails on {', '.join(map(str, found))}"])
    if len(found) != 1 or not found[0].is_record:
        return error
    one = found[0]
    look = f"headrace consume {one.topic} --partition {one.partition} --from {one.start} --limit 1"
    return error.with_(
        remedies=[*error.remedies, f"print the record:   {look}"],
        params={**error.params, "topic": one.topic, "partition": one.partition, "offset": one.start},
    )
