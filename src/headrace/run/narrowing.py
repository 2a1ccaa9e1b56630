"""Finds the records on which a query fails: the batch is read again, in halves, and nothing is written."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from headrace.errors import (
    NOT_COMMITTED,
    FlowFailedError,
    HeadraceError,
    RecordNotUtf8Error,
    RecordUnparseableError,
    text_of,
)
from headrace.model.ranges import SourceRange
from headrace.plan.stages import PlannedFlow
from headrace.run.context import BuildRanges
from headrace.run.failures import Failures
from headrace.run.stop import StopSignal
from headrace.sources.kafka.cluster import Offsets
from headrace.sources.kafka.position import KafkaOffsets
from headrace.sources.records import BadRecord
from headrace.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOG = logging.getLogger(__name__)
_LIMIT_S = 60.0
"""Seconds that the search for one record may take: half a million records need about twenty attempts."""
MOST_RAISING = 10
"""The maximum number of records of a batch that are left out since the query fails on them."""
_RAISED = (FlowFailedError, RecordUnparseableError, RecordNotUtf8Error)
"""The errors that a row can cause in a query."""
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] ([^\n]*?)(?: SQLSTATE: \w+)?(?:\n|$)")
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t^].*\n)+([\w.]+)(?:: ([^\n]*))?")


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


@dataclass(frozen=True)
class RaisingRecord:
    """A record on which the query raises an error.

    Args:
        record: The record.
        name: The class of the Python exception, Spark's error condition, or the code of the error.
        message: The message of the exception.
    """

    record: Part
    name: str
    message: str


def find_reason(text: str, error: HeadraceError) -> tuple[str, str]:
    """The name and the message of the exception in Spark's message.

    Args:
        text: Spark's message.
        error: The error that was made of it.
    """
    if not isinstance(error, FlowFailedError):
        return error.code, error.summary
    if python := _PYTHON.findall(text):
        name, message = python[-1]
        return name, message or name
    if (spark := _CONDITION.search(text)) is not None:
        return spark[1], spark[2]
    return error.code, error.facts[0] if error.facts else error.summary


@dataclass(frozen=True)
class NarrowedBatch:
    """A batch without the records on which the query raises an error.

    Args:
        rows: The rows of the other records.
        raising: These records.
    """

    rows: DataFrame
    raising: tuple[RaisingRecord, ...]


@dataclass(frozen=True, kw_only=True)
class RecordSearch:
    """Finds the records on which a flow's query raises an error.

    This needs a stateless query over sources whose ranges can be read again, and records of Kafka: there each
    row comes from one record.

    Args:
        planned: The flow.
        build_ranges: Evaluates its query over some of its records.
        failures: Gives failures their codes.
        stop: Ends the search.
        checkpoint: The flow's checkpoint.
    """

    planned: PlannedFlow
    build_ranges: BuildRanges
    failures: Failures
    stop: StopSignal
    checkpoint: Location

    def narrow(
        self, failure: Exception, session: SparkSession, ranges: Sequence[SourceRange]
    ) -> NarrowedBatch:
        """The batch without the records on which the query raises an error.

        Args:
            failure: The failure of the batch.
            session: The batch's own session.
            ranges: What the batch reads.

        Raises:
            HeadraceError: The batch cannot be narrowed, or more than ten records fail. The error names the
                records that were found.
            Exception: The failure, if the query does not fail on single records.
        """
        planned, parts = self.planned, parts_of(ranges)
        rereads = all(source.rereads for source in planned.sources)
        if planned.stateful or not rereads or not parts or not self._is_raised(failure):
            raise failure
        _LOG.info("flow %s: searching the batch for the records on which it fails", planned.flow.name)
        found: list[RaisingRecord] = []
        rest: Sequence[Part] = parts
        while (first := self._find_first(rest, session, ranges)) is not None:
            where, error, reason = first
            if len(where) != 1 or not where[0].is_record:
                raise _with_parts(error, where) from failure
            if len(found) == MOST_RAISING:
                raise _too_many(error, [*(one.record for one in found), *where]) from failure
            found.append(RaisingRecord(where[0], *reason))
            rest = _after(where[0], rest)
        if not found:
            raise failure
        without = _without([one.record for one in found])
        return NarrowedBatch(
            self.build_ranges(session, planned, ranges, self.checkpoint, treat=without), tuple(found)
        )

    def read(self, session: SparkSession, ranges: Sequence[SourceRange], raising: RaisingRecord) -> DataFrame:
        """One record with all its parts, as its source gives it."""
        records: list[DataFrame] = []

        def keep(frame: DataFrame) -> DataFrame:
            records.append(frame)
            return frame

        # A source that has no part of the range gives no rows.
        only = ranges_of([raising.record], ranges)
        self.build_ranges(session, self.planned, only, self.checkpoint, treat=keep)
        return reduce(lambda one, two: one.unionByName(two, allowMissingColumns=True), records)

    def _is_raised(self, failure: Exception) -> bool:
        """Whether the query has raised the failure; a reader with ``bad_records="stop"`` stops the flow."""
        bad = BadRecord.find(text_of(failure))
        if bad is not None:
            return not bad.stops
        return isinstance(self.failures.as_error(failure, self.planned.flow), _RAISED)

    def _find_first(
        self, parts: Sequence[Part], session: SparkSession, ranges: Sequence[SourceRange]
    ) -> tuple[Sequence[Part], HeadraceError, tuple[str, str]] | None:
        """The first record on which the query fails, or the smallest ranges that were found in time."""
        deadline = time.monotonic() + _LIMIT_S
        errors: list[tuple[HeadraceError, tuple[str, str]]] = []

        def fails(some: Sequence[Part]) -> bool:
            failed = self._error_of(some, session, ranges)
            errors.extend([] if failed is None else [failed])
            return failed is not None

        def go_on() -> bool:
            return time.monotonic() < deadline and not self.stop.requested

        if not parts or not fails(parts):
            return None
        found = find_first(parts, fails, go_on)
        # Not so where the query fails only on several records together, or not every time.
        return (found, *errors[-1]) if fails(found) else None

    def _error_of(
        self, parts: Sequence[Part], session: SparkSession, ranges: Sequence[SourceRange]
    ) -> tuple[HeadraceError, tuple[str, str]] | None:
        """The error that the query raises over some records, with the name and message of its exception.

        Raises:
            HeadraceError: It fails for another reason, such as a broker that does not answer.
        """
        planned = self.planned
        try:
            df = self.build_ranges(session, planned, ranges_of(parts, ranges), self.checkpoint)
            if df.isStreaming:
                # The query reads a stream that was built outside of its function, which is not built again.
                return None
            df.write.format("noop").mode("overwrite").save()
        except Exception as failure:
            error = self.failures.as_error(failure, planned.flow)
            if isinstance(error, _RAISED):
                return error, find_reason(text_of(failure), error)
            raise error from failure
        return None


def _after(record: Part, parts: Sequence[Part]) -> list[Part]:
    """The ranges after a record: the search finds the first record that fails."""
    index = next(
        n
        for n, one in enumerate(parts)
        if (one.source, one.topic, one.partition) == (record.source, record.topic, record.partition)
    )
    same = replace(parts[index], start=record.until)
    return [*([same] if same.start < same.until else []), *parts[index + 1 :]]


def _without(records: Sequence[Part]) -> Callable[[DataFrame], DataFrame]:
    """Leaves some records out of those that a source gives."""

    def treat(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        if not {"topic", "partition", "offset"} <= {*frame.columns}:
            return frame
        for one in records:
            is_it = (F.col("topic") == one.topic) & (F.col("partition") == one.partition)
            frame = frame.where(~(is_it & (F.col("offset") == one.start)))
        return frame

    return treat


def _too_many(error: HeadraceError, found: Sequence[Part]) -> HeadraceError:
    named = _with_parts(error, found[:1])
    return named.with_(
        facts=[
            *named.facts,
            f"it fails on more than {MOST_RAISING} records of the batch, also on "
            + ", ".join(map(str, found[1:3])),
            NOT_COMMITTED,
        ]
    )


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
