"""Which record makes a query fail: its batch is read again, in halves, and nothing is written."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.errors import FlowFailedError, HeadraceError, RecordUnparseableError
from headrace.model.ranges import SourceRange
from headrace.plan.stages import PlannedFlow
from headrace.run.context import UpdateContext
from headrace.run.failures import as_error
from headrace.sources.kafka.cluster import Offsets
from headrace.sources.kafka.position import KafkaOffsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)
_LIMIT_S = 60.0
"""Seconds that the search may take: half a million records need about twenty looks at ever fewer."""


@dataclass(frozen=True)
class Part:
    """Records of one partition, from ``start`` to before ``until``."""

    topic: str
    partition: int
    start: int
    until: int

    @property
    def is_record(self) -> bool:
        return self.until - self.start == 1

    def __str__(self) -> str:
        partition = f"topic {self.topic}, partition {self.partition}"
        if self.is_record:
            return f"{partition}, offset {self.start}"
        return f"{partition}, offsets {self.start} to {self.until - 1}"


def parts_of(ranges: Iterable[SourceRange]) -> tuple[Part, ...]:
    """What a batch has read of Kafka."""
    return tuple(
        Part(topic, partition, first, end)
        for one in ranges
        if isinstance(one.until, KafkaOffsets)
        for topic, partition, first, end in one.until.since(one.start)
    )


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


def name_record(
    error: HeadraceError,
    planned: PlannedFlow,
    context: UpdateContext,
    session: SparkSession,
    ranges: Sequence[SourceRange],
) -> HeadraceError:
    """Return a flow's failure with the record that causes it, if that record can be found.

    This needs a stateless query over Kafka, where each row comes from one record. The batch is not
    committed, whether the record is found or not.

    Args:
        error: The failure.
        planned: The flow.
        context: The update.
        session: The flow's session.
        ranges: What the batch has read.
    """
    parts = parts_of(ranges)
    kinds = {source.kind for source in planned.sources}
    known = "offset" in error.params or not isinstance(error, FlowFailedError | RecordUnparseableError)
    if known or planned.stateful or kinds != {"kafka"} or not parts:
        return error
    deadline = time.monotonic() + _LIMIT_S

    def fails(some: Sequence[Part]) -> bool:
        return _fails(some, planned, context, session)

    def go_on() -> bool:
        return time.monotonic() < deadline and not context.stop.requested

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
    error = error.with_(facts=[*error.facts, f"the query fails on {', '.join(map(str, found))}"])
    if len(found) != 1 or not found[0].is_record:
        return error
    one = found[0]
    look = f"headrace consume {one.topic} --partition {one.partition} --from {one.start} --limit 1"
    return error.with_(
        remedies=[*error.remedies, f"print the record:   {look}"],
        params={**error.params, "topic": one.topic, "partition": one.partition, "offset": one.start},
    )


def _fails(
    parts: Sequence[Part], planned: PlannedFlow, context: UpdateContext, session: SparkSession
) -> bool:
    """Whether the query fails over some records.

    Raises:
        HeadraceError: It fails because of something else, such as a broker that is away.
    """
    start: Offsets = {}
    until: Offsets = {}
    for part in parts:
        start.setdefault(part.topic, {})[part.partition] = part.start
        until.setdefault(part.topic, {})[part.partition] = part.until
    try:
        df = context.build_between(session, planned.flow, start, until)
        df.write.format("noop").mode("overwrite").save()
    except Exception as failure:
        error = as_error(failure, None, planned.flow, context.log_file, context.settings.kafka)
        if isinstance(error, FlowFailedError | RecordUnparseableError):
            return True
        raise error from failure
    return False
