"""Finds the records on which a query fails: the batch is read again, in halves, and nothing is written."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial, reduce

from headrace import errors
from headrace.contracts.expectations import RowSplit, with_checks
from headrace.errors import NOT_COMMITTED, HeadraceError, text_of
from headrace.model.declarations import Expectation
from headrace.model.ranges import SourceRange
from headrace.plan.evaluate import session_settings
from headrace.plan.modes import AsRecords
from headrace.plan.stages import PlannedFlow
from headrace.run.context import BuildRanges
from headrace.run.failures import Failures, find_raising
from headrace.run.stop import StopSignal
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.target import TryRows
from headrace.sources.kind import SourceKind
from headrace.sources.parts import ONE_FILE_EACH, FilePart, Part
from headrace.sources.records import BadRecord
from headrace.sources.registry import kind_of
from headrace.sources.source import Source
from headrace.storage.location import Location

_LOG = logging.getLogger(__name__)
_LIMIT_S = 60.0
"""Seconds that the search for one record may take: half a million records need about twenty attempts."""
MOST_RAISING = 10
"""The maximum number of records of a batch that are left out since the query fails on them."""
RAISED = (
    errors.FlowFailedError,
    errors.RecordUnparseableError,
    errors.RecordNotUtf8Error,
    errors.SinkRowRefusedError,
)
"""The errors that a row can cause in a query, or in the system of a sink."""
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] ([^\n]*?)(?: SQLSTATE: \w+)?(?:\n|$)")
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t^].*\n)+([\w.]+)(?:: ([^\n]*))?")


def union(frames: Sequence[DataFrame], *, lacks_columns: bool = False) -> DataFrame:
    """The rows of several DataFrames. `lacks_columns`: whether a column that one of them lacks is NULL there,
    and no error."""
    return reduce(lambda one, two: one.unionByName(two, allowMissingColumns=lacks_columns), frames)


def ranges_of(parts: Sequence[Part], batch: Iterable[SourceRange]) -> list[SourceRange]:
    mine: dict[int, list[Part]] = {}
    for part in parts:
        mine.setdefault(part.source, []).append(part)
    return [kind_of(one.kind).range_of(one, mine[one.index]) for one in batch if one.index in mine]


def find_first(
    parts: Sequence[Part], fails: Callable[[Sequence[Part]], bool], go_on: Callable[[], bool]
) -> Sequence[Part]:
    """Find the first record on which a query fails, by halving the ranges. Returns the smallest parts found
    on which the query fails."""
    found = list(parts)
    while len(found) > 1 and go_on():
        half = found[: len(found) // 2]
        found = half if fails(half) else found[len(half) :]
    while len(found) == 1 and not found[0].is_record and go_on():
        one = found[0]
        first = replace(one, until=one.middle)
        found = [first if fails([first]) else replace(one, start=one.middle)]
    return found


@dataclass(frozen=True)
class RaisingRecord:
    record: Part
    name: str  # the class of the Python exception, Spark's error condition, or the code of the error
    message: str

    @classmethod
    def at(cls, record: Part, name: str, message: str) -> RaisingRecord:
        """A record with its table version in the message: the quarantine has no column for it."""
        version = f" ({record.of})" if isinstance(record, FilePart) and record.of else ""
        return cls(record, name, message + version)


def find_reason(text: str, error: HeadraceError, expectations: Sequence[Expectation] = ()) -> tuple[str, str]:
    """The name and the message of the exception in Spark's message."""
    if not isinstance(error, errors.FlowFailedError):
        return error.code, error.summary
    name, message = _exception_of(text, error)
    raising = find_raising(text, expectations)
    return name, message if raising is None else f"expectation `{raising.name}`: {message}"


def _exception_of(text: str, error: HeadraceError) -> tuple[str, str]:
    if python := _PYTHON.findall(text):
        name, message = python[-1]
        return name, message or name
    if (spark := _CONDITION.search(text)) is not None:
        return spark[1], spark[2]
    return error.code, error.facts[0] if error.facts else error.summary


@dataclass(frozen=True)
class NarrowedBatch:
    """A batch without the records on which the query raises an error. `reading`: Spark computes the rows
    within this context only."""

    rows: DataFrame
    raising: tuple[RaisingRecord, ...]
    reading: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True, kw_only=True)
class RecordSearch:
    """Finds the records on which a flow's query, or a condition of its expectations, raises an error.

    This needs sources whose ranges can be cut into parts (`SourceKind.parts`). The records of a query with
    state are only named.
    """

    planned: PlannedFlow
    build_ranges: BuildRanges  # evaluates its query over some of its records
    failures: Failures
    stop: StopSignal
    checkpoint: Location
    as_records: AsRecords = tuple
    try_rows: TryRows | None = None  # raises the error of a system that refuses rows of the batch

    def narrow(
        self, failure: Exception, session: SparkSession, ranges: Sequence[SourceRange]
    ) -> NarrowedBatch:
        """The batch without the records on which the query raises an error."""
        planned, ranges = self.planned, self.as_records(ranges)
        parts = self._parts(session, ranges) if self._is_raised(failure) else ()
        if not parts:
            raise failure
        flow = planned.flow
        settings = ONE_FILE_EACH if any(isinstance(one, FilePart) for one in parts) else {}
        reading = partial(session_settings, session, settings, name=flow.name, location=flow.location)
        with reading():
            return replace(self._narrow(failure, session, ranges, parts), reading=reading)

    def _narrow(
        self, failure: Exception, session: SparkSession, ranges: Sequence[SourceRange], parts: Sequence[Part]
    ) -> NarrowedBatch:
        planned = self.planned
        _LOG.info("flow %s: searching the batch for the records on which it fails", planned.flow.name)
        if planned.stateful:
            raise self._located(failure, parts, session, ranges) from failure
        found: list[RaisingRecord] = []
        rest: Sequence[Part] = parts
        while (first := self._find_first(rest, session, ranges)) is not None:
            where, error, reason = first
            if len(where) != 1 or not where[0].is_record:
                raise _with_parts(error, where) from failure
            if len(found) == MOST_RAISING:
                raise _too_many(error, [*(one.record for one in found), *where]) from failure
            found.append(RaisingRecord.at(where[0], *reason))
            rest = _after(where[0], rest)
        if not found:
            raise failure
        records = [one.record for one in found]

        reads = {one.index: one.read for one in planned.sources}

        def leave_out(frame: DataFrame, kind: SourceKind, source: Source | None) -> DataFrame:
            # Two clusters or regions can have records with the same coordinates.
            own = [one for one in records if source is None or reads[one.source] == source.read]
            return kind.leave_out(frame, own)

        kept = ranges_of(_without(records, parts), ranges)
        rows = self.build_ranges(session, planned, kept, self.checkpoint, treat=leave_out)
        return NarrowedBatch(rows, tuple(found))

    def _parts(self, session: SparkSession, ranges: Sequence[SourceRange]) -> Sequence[Part]:
        """The parts of the ranges; empty if one of them cannot be read again."""
        sources = {one.index: one for one in self.planned.sources}
        parts: list[Part] = []
        reads: dict[int, SourceRange] = {}
        for one in ranges:
            first = reads.setdefault(sources[one.index].read, one)
            if (first.start, first.until) != (one.start, one.until):
                # The query is evaluated with one range for each of its reads.
                return ()
        try:
            for one in ranges:
                found = kind_of(one.kind).parts(one, sources[one.index], session, self.checkpoint)
                if found is None:
                    return ()
                parts += found
        except Exception as other:
            _LOG.info("flow %s: the batch cannot be read again: %s", self.planned.flow.name, text_of(other))
            return ()
        return parts

    def read(self, session: SparkSession, ranges: Sequence[SourceRange], raising: RaisingRecord) -> DataFrame:
        records: list[DataFrame] = []

        only = ranges_of([raising.record], self.as_records(ranges))

        def keep(frame: DataFrame, kind: SourceKind, _: Source | None) -> DataFrame:
            # A source that has no part of the range gives no rows.
            if kind.name == only[0].kind:
                records.append(kind.as_record(frame, raising.record))
            return frame

        self.build_ranges(session, self.planned, only, self.checkpoint, treat=keep)
        # Two equal reads of a table both give the record.
        return union(records, lacks_columns=True).limit(1)

    def _located(
        self, failure: Exception, parts: Sequence[Part], session: SparkSession, ranges: Sequence[SourceRange]
    ) -> HeadraceError:
        """The error for a batch of a query with state, which names records: others may depend on them."""
        error = self.failures.as_error(failure, self.planned.flow)
        try:
            found = self._find_first(parts, session, ranges)
        except Exception as other:
            _LOG.info("flow %s: the search ended: %s", self.planned.flow.name, text_of(other))
            found = None
        if found is not None:
            return _with_parts(error, found[0])
        # Without its state the query does not fail.
        return error.with_(facts=[*error.facts, f"the batch reads {_listed(parts)}"])

    def _is_raised(self, failure: Exception) -> bool:
        """Whether the query has raised the failure; a reader with ``bad_records="stop"`` stops the flow."""
        text = text_of(failure)
        bad = BadRecord.find(text)
        if bad is not None:
            return not bad.stops
        if "[FAILED_READ_FILE" in text:
            # The error of a file that cannot be read has its path and line already.
            return False
        return isinstance(self.failures.as_error(failure, self.planned.flow), RAISED)

    def _find_first(
        self, parts: Sequence[Part], session: SparkSession, ranges: Sequence[SourceRange]
    ) -> tuple[Sequence[Part], HeadraceError, tuple[str, str]] | None:
        """The first record on which the query fails, or the smallest parts that were found in time."""
        deadline = time.monotonic() + _LIMIT_S
        failures: list[tuple[Sequence[Part], HeadraceError, tuple[str, str]]] = []

        def fails(some: Sequence[Part]) -> bool:
            failed = self._error_of(some, session, ranges)
            failures.extend([] if failed is None else [(some, *failed)])
            return failed is not None

        def go_on() -> bool:
            return time.monotonic() < deadline and not self.stop.requested

        if not parts or not fails(parts):
            return None
        found = find_first(parts, fails, go_on)
        # This is wrong if only a combination of records fails, or if the failure is random.
        return failures[-1] if failures[-1][0] == found or fails(found) else None

    def _error_of(
        self, parts: Sequence[Part], session: SparkSession, ranges: Sequence[SourceRange]
    ) -> tuple[HeadraceError, tuple[str, str]] | None:
        """The error that the query raises over some records, with the name and message of its exception."""
        planned = self.planned
        try:
            df = self.build_ranges(session, planned, ranges_of(parts, ranges), self.checkpoint)
            if df.isStreaming:
                # The query reads a stream that was built outside of its function, which is not built again.
                return None
            checked = with_checks(df, planned.expectations)
            if self.try_rows is None:
                checked.write.format("noop").mode("overwrite").save()
            else:
                accepted = RowSplit(checked, planned.expectations, str(planned.flow.target)).accepted
                self.try_rows(session, accepted)
        except Exception as failure:
            error = self.failures.as_error(failure, planned.flow, expectations=planned.expectations)
            if isinstance(error, RAISED):
                return error, find_reason(self.failures.text_of(failure), error, planned.expectations)
            raise error from failure
        return None


def _after(record: Part, parts: Sequence[Part]) -> list[Part]:
    """The parts after a record: the search finds the first record that fails."""
    index = next(n for n, one in enumerate(parts) if one.is_beside(record))
    same = replace(parts[index], start=record.until)
    return [*([same] if same.start < same.until else []), *parts[index + 1 :]]


def _without(records: Sequence[Part], parts: Sequence[Part]) -> list[Part]:
    kept: list[Part] = []
    rest = list(parts)
    for record in records:
        index = next(n for n, one in enumerate(rest) if one.is_beside(record))
        before = replace(rest[index], until=record.start)
        kept += [*rest[:index], *([before] if before.start < before.until else [])]
        rest = _after(record, rest)
    return [*kept, *rest]


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


def _listed(parts: Sequence[Part]) -> str:
    kind = "files" if isinstance(parts[-1], FilePart) else "partitions"
    more = f", and {len(parts) - 3} more {kind}" if len(parts) > 3 else ""
    return ", ".join(map(str, parts[:3])) + more


def _with_parts(error: HeadraceError, found: Sequence[Part]) -> HeadraceError:
    """A failure with the records on which the query fails."""
    error = error.with_(facts=[*error.facts, f"the query fails on {_listed(found)}"])
    if len(found) != 1 or not found[0].is_record:
        return error
    one = found[0]
    return error.with_(remedies=[*error.remedies, *one.remedies], params={**error.params, **one.place})
