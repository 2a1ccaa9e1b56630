"""The bad records of a batch, and the fields that their schema does not have; CSV files with
another header."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.contracts.evolution import evolve, from_variant
from headrace.contracts.expectations import with_checks
from headrace.contracts.rejected import Rejection, as_bad_records
from headrace.errors import FileUnreadableError, RowsNotRepeatableError
from headrace.model.counts import BadRecordCount
from headrace.model.events import SchemaDrifted
from headrace.model.ranges import SourceRange
from headrace.plan.stages import PlannedFlow
from headrace.run.context import BuildRanges
from headrace.run.failpoints import reach
from headrace.run.limits import count_records
from headrace.run.narrowing import RaisingRecord, union
from headrace.run.new_columns import ColumnTrial
from headrace.run.reporting import FlowReports
from headrace.run.stop import PlanAgain
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession
from headrace.sinks.target import BatchStamp
from headrace.sources.bad_records import (
    CODE,
    EXAMPLE,
    GOOD,
    METRICS,
    NAMES,
    SCHEMA_NUMBER,
    SEEN,
    SKIPPED,
    TOMBSTONE,
    BadRecords,
    Evolving,
    NewFields,
)
from headrace.sources.files.headers import (
    HEADERS_OPTION,
    HeaderGroup,
    HeaderRules,
    foreign_header,
    new_columns,
    stateful_header,
)
from headrace.sources.files.read import infer_types
from headrace.sources.records import CARRIED
from headrace.sources.source import Source
from headrace.state.kept_schemas import SchemaVersion
from headrace.storage.location import Location


@dataclass(kw_only=True)
class DriftCheck:
    """Checks the fields of the records of each batch before it is committed."""

    planned: PlannedFlow
    find: Callable[..., Sequence[BadRecords]]  # reads a batch a second time
    trial: ColumnTrial
    reports: FlowReports
    _reported: set[str] = field(default_factory=set, init=False)

    def check(self, session: SparkSession, stamp: BatchStamp, counts: Sequence[ReadCounts | None]) -> None:
        """Report the fields that have no column, and take them up if the schema evolves. `counts`: what each
        reader has counted; ``None`` if Spark has not computed all of it."""
        known = [one for one in counts if one is not None]
        names = frozenset().union(*(one.unknown for one in known))
        if self._numbers and (names or len(known) < len(counts)):
            self._take_up(session, stamp, names)
        example: Mapping[str, Any] = next((json.loads(one.example) for one in known if one.example), {})
        self.report_ignored(stamp, names, example)

    @property
    def _numbers(self) -> list[int]:
        """The numbers of the schemas that the query reads with."""
        # New columns of files are found in their headers, before the rows are read.
        reads = (one for one in self.planned.sources if one.option(HEADERS_OPTION) is None)
        found = (source.option(SCHEMA_NUMBER) for source in reads)
        return sorted(int(number) for number in found if number is not None)

    def _take_up(self, session: SparkSession, stamp: BatchStamp, names: frozenset[str]) -> None:
        reads = [one.new_fields for one in self.find(session, ranges=stamp.ranges) if one.new_fields]
        if sorted(one.evolving.number for one in reads) != self._numbers:
            # Another flow has found new fields of the same topic.
            raise PlanAgain
        changes = [self._evolve(session, one, stamp) for one in reads]
        if any(changes):
            raise PlanAgain

    def _evolve(self, session: SparkSession, read: NewFields, stamp: BatchStamp) -> bool:
        """Add a version with the new fields of a read; whether there are any."""
        evolving = read.evolving
        (row,) = read.frame.collect()
        if row.schema is None:
            return False
        return self.add_fields(session, evolving, stamp, from_variant(row.schema), json.loads(row.example))

    def add_fields(
        self,
        session: SparkSession,
        evolving: Evolving,
        stamp: BatchStamp,
        fields: Mapping[str, Any],
        example: Mapping[str, Any],
    ) -> bool:
        """Add a version with new fields of a read; whether there are any that can be columns."""
        found = evolve(evolving.schema.jsonValue(), fields, evolving.drift)
        if not found.changes:
            return False
        version = SchemaVersion(
            number=evolving.number + 1,
            schema=found.schema,
            added=found.added,
            flow=stamp.flow,
            checkpoint=stamp.checkpoint,
            batch=stamp.batch,
            example=example,
        )
        version = self.trial.fit(session, evolving, version, stamp)
        if evolving.versions.add(version):
            self._report(stamp, version.added, version.example, version.number)
        reach("schema-added", stamp.flow, stamp.batch)
        return True

    def report_ignored(self, stamp: BatchStamp, names: Iterable[str], example: Mapping[str, Any]) -> None:
        if new := frozenset(names) - self._reported:
            self._reported |= new
            self._report(stamp, tuple(sorted(new)), example, None)

    def _report(
        self, stamp: BatchStamp, fields: tuple[str, ...], example: Mapping[str, Any], number: int | None
    ) -> None:
        self.reports.report(
            SchemaDrifted,
            self.planned,
            batch=stamp.batch,
            fields=fields,
            added=number is not None,
            number=number,
            example=example,
        )


_EXPLAINED: Final = 100
"""The number of records of each read of a batch whose message names the field and its value."""
_UNEXPLAINED: Final = "see the messages of the first records of the batch"
_NUMBER = "__headrace_number"
_NAME = re.compile(rf"CollectMetrics ({re.escape(METRICS)}[0-9a-f-]+)")
_QUERY_ID = "sql.streaming.queryId"
"""The property in which Spark names the query to the thread of its batches."""


@dataclass(frozen=True)
class ReadCounts:
    """What the readers of a query have counted while Spark computed a batch. `example`: the place of a record
    with such fields, as JSON."""

    seen: int
    good: int
    skipped: int = 0
    unknown: frozenset[str] = field(default=frozenset(), compare=False)
    example: str | None = field(default=None, compare=False)

    @property
    def bad(self) -> int:
        return self.seen - self.good - self.skipped


class ReaderCounts:
    """Gives the counts of each read in the query that runs in this thread; ``None`` where Spark has not
    computed a read. Only reads that leave bad records out have counts."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._names: frozenset[str] | None = None

    def __call__(self) -> Sequence[ReadCounts | None]:
        if self._names == frozenset():
            return ()
        query = self._session.streams.get(self._session.sparkContext.getLocalProperty(_QUERY_ID))
        execution: Any = query._jsq.streamingQuery().lastExecution()
        if self._names is None:
            self._names = frozenset(_NAME.findall(execution.logical().toString()))
        return _read_counts(self._session, execution, self._names)


def _read_counts(session: SparkSession, execution: Any, names: Iterable[str]) -> list[ReadCounts | None]:
    jvm: Any = session._jvm
    observed = jvm.scala.jdk.javaapi.CollectionConverters.asJava(execution.observedMetrics())
    rows = [observed.get(name) for name in names]
    return [None if row is None else _counts_of(row) for row in rows]


def _counts_of(row: Any) -> ReadCounts:
    seen, good, skipped = (row.getLong(row.fieldIndex(name)) for name in (SEEN, GOOD, SKIPPED))
    if row.length() == 3:
        return ReadCounts(seen, good, skipped)
    unknown = frozenset(json.loads(row.getString(row.fieldIndex(NAMES))))
    return ReadCounts(seen, good, skipped, unknown, row.get(row.fieldIndex(EXAMPLE)))


@dataclass(frozen=True)
class FoundRecords:
    counts: tuple[BadRecordCount, ...] = ()
    rows: DataFrame | None = None  # the records for the quarantine table; ``None`` if there is none

    @property
    def quarantined(self) -> int:
        """How many go to the quarantine table."""
        return sum(one.records for one in self.counts if one.action == "quarantine")


@dataclass(frozen=True, kw_only=True)
class BadRecordSearch:
    """Finds the bad records of a flow's batches, which are read again only if there are some."""

    planned: PlannedFlow
    count: Callable[[], Sequence[ReadCounts | None]]
    find: Callable[..., Sequence[BadRecords]]  # reads a batch a second time
    read: Callable[[SparkSession, Sequence[SourceRange], RaisingRecord], DataFrame]
    drift: DriftCheck

    @contextmanager
    def search(
        self,
        session: SparkSession,
        stamp: BatchStamp,
        rejection: Rejection,
        raising: Sequence[RaisingRecord] = (),
    ) -> Iterator[FoundRecords]:
        """The bad records of a batch whose rows have been computed. Spark keeps them until the block ends."""
        counts = self.count()
        # A batch with such records was computed in parts, which have no counts together.
        counts = [None] * len(counts) if raising else counts
        self.drift.check(session, stamp, counts)
        counted = _sum(counts)
        if not counts or (counted is not None and self._is_good(counted, stamp)):
            yield self._with_raising(FoundRecords(_skipped(counted)), session, stamp, rejection, raising)
            return
        reads = self.find_again(session, stamp)
        try:
            again = _sum([read.totals for read in reads])
            self._compare(counted, again, stamp)
            found = _join(reads, rejection, again if reads and again is not None else counted)
            yield self._with_raising(found, session, stamp, rejection, raising)
        finally:
            for read in reads:
                read.frame.unpersist()

    def _with_raising(
        self,
        found: FoundRecords,
        session: SparkSession,
        stamp: BatchStamp,
        rejection: Rejection,
        raising: Sequence[RaisingRecord],
    ) -> FoundRecords:
        """The bad records together with those on which the query fails."""
        frames = [] if found.rows is None else [found.rows]
        names: Counter[str] = Counter()
        for number, one in enumerate(raising):
            names[one.name] += 1
            frames.append(
                as_bad_records(
                    self.read(session, stamp.ranges, one),
                    rejection,
                    number=F.lit(f"e{number}"),
                    code=F.lit(one.name),
                    message=F.lit(one.message),
                    kind="exception",
                )
            )
        return FoundRecords((*found.counts, *_quarantined(names)), union(frames) if frames else None)

    def find_again(self, session: SparkSession, stamp: BatchStamp) -> list[_KeptRecords]:
        """Read a batch a second time for its bad records."""
        found = self.find(session, ranges=stamp.ranges)
        return [_KeptRecords.of(read, index) for index, read in enumerate(found)]

    def _is_good(self, counted: ReadCounts, stamp: BatchStamp) -> bool:
        """Whether Spark has read the whole range once and found no bad record."""
        if counted.bad:
            return False
        most = count_records(stamp.ranges)
        if self.planned.reads_all and counted.seen:
            return most is None or counted.seen <= most
        return counted.seen == most

    def _compare(self, first: ReadCounts | None, second: ReadCounts | None, stamp: BatchStamp) -> None:
        """Check that both passes have found the same number of bad records, if Spark has read the range once
        in each."""
        if first is None or second is None or first.seen != second.seen or first == second:
            return
        raise RowsNotRepeatableError(
            f"flow {stamp.flow}: batch {stamp.batch} was read twice and had other bad records",
            location=self.planned.flow.location,
            facts=(
                f"{first.bad} of {first.seen} records the first time, {second.bad} the second time",
                "the batch was not committed",
            ),
            remedies=("run again; if it repeats, read the source with a reader of Headrace:   headrace run",),
            params={"flow": stamp.flow, "batch": stamp.batch},
        )


@dataclass(frozen=True)
class _KeptRecords:
    frame: DataFrame
    counts: Mapping[str, int]
    totals: ReadCounts | None  # the counts of the whole range; ``None`` if Spark does not have them
    messages: Mapping[str, str]  # the reason of the first records in words, by number

    @classmethod
    def of(cls, read: BadRecords, index: int) -> _KeptRecords:
        number = F.concat(F.lit(f"r{index}-"), F.monotonically_increasing_id()).alias(_NUMBER)
        frame = read.frame.select(number, "*").persist()
        try:
            counts = {row[CODE]: row["count"] for row in frame.groupBy(CODE).count().collect()}
            first = frame.limit(_EXPLAINED).select(
                _NUMBER,
                CODE,
                F.substring("value", 1, CARRIED).alias("value"),
                F.octet_length("value").alias("size"),
            )
            messages = {
                row[_NUMBER]: read.rules.explain(row[CODE], row["value"], row["size"])
                for row in first.collect()
            }
            java_frame: Any = frame._jdf
            (totals,) = _read_counts(frame.sparkSession, java_frame.queryExecution(), [read.counts])
            return cls(frame, counts, totals, messages)
        except BaseException:
            frame.unpersist()
            raise

    def rejected(self, rejection: Rejection) -> DataFrame:
        named = F.create_map(*(F.lit(text) for pair in self.messages.items() for text in pair))
        message = F.coalesce(F.try_element_at(named, F.col(_NUMBER)), F.lit(_UNEXPLAINED))
        return as_bad_records(self.frame, rejection, number=F.col(_NUMBER), code=F.col(CODE), message=message)


def _sum(counts: Sequence[ReadCounts | None]) -> ReadCounts | None:
    known = [one for one in counts if one is not None]
    if len(known) < len(counts):
        return None
    return ReadCounts(
        sum(one.seen for one in known), sum(one.good for one in known), sum(one.skipped for one in known)
    )


def _quarantined(counts: Mapping[str, int]) -> Iterator[BadRecordCount]:
    for name in sorted(counts):
        yield BadRecordCount(name=name, action="quarantine", records=counts[name])


def _skipped(counted: ReadCounts | None) -> tuple[BadRecordCount, ...]:
    if counted is None or not counted.skipped:
        return ()
    return (BadRecordCount(name=TOMBSTONE, action="drop", records=counted.skipped),)


def _join(reads: Sequence[_KeptRecords], rejection: Rejection, totals: ReadCounts | None) -> FoundRecords:
    counts: Counter[str] = Counter()
    for read in reads:
        counts.update(read.counts)
    frames = [read.rejected(rejection) for read in reads if read.counts]
    return FoundRecords((*_quarantined(counts), *_skipped(totals)), union(frames) if frames else None)


@dataclass(frozen=True, kw_only=True)
class HeaderCheck:
    """Compares the headers of a batch's files with the schemas of their reads.

    Spark reads CSV files by position, and its streaming query has one schema for all files. If a header
    differs, the flow's query is evaluated as a batch over the same files instead.
    """

    planned: PlannedFlow
    build_ranges: BuildRanges
    checkpoint: Location
    drift: DriftCheck
    schemas: Location  # the folder of the schemas that take up new columns

    def by_name(self, rows: DataFrame, stamp: BatchStamp) -> tuple[DataFrame, bool]:
        """The rows of a batch, and whether they come from a query that was built again."""
        session = rows.sparkSession
        differs = [self._check(session, one, stamp) for one in stamp.ranges]
        if not any(differs):
            return rows, False
        built = self.build_ranges(session, self.planned, stamp.ranges, self.checkpoint)
        return with_checks(built, self.planned.expectations), True

    def _check(self, session: SparkSession, one: SourceRange, stamp: BatchStamp) -> bool:
        """Whether some files of a range have other columns than the schema, or another order."""
        source = next(source for source in self.planned.sources if source.index == one.index)
        try:
            found = source.headers(session, one, self.checkpoint)
        except FileUnreadableError as error:
            summary, params = f"flow {stamp.flow}: {error.summary}", {**error.params, "flow": stamp.flow}
            away = f"or move the file away, and drop the planned batch:   headrace reset {stamp.flow}"
            raise error.with_(
                summary=summary, location=source.location, remedies=(*error.remedies, away), params=params
            ) from error
        if found is None:
            return False
        rules, groups = found
        others = [group for group in groups if not group.layout.is_planned]
        for group in others:
            if rules.loses_all(group.layout):
                raise foreign_header(stamp.flow, group, rules, source.location)
        if others and self.planned.stateful:
            raise stateful_header(stamp.flow, others[0], rules, source.location)
        self._take_up(session, source, rules, others, stamp)
        return bool(others)

    def _take_up(
        self,
        session: SparkSession,
        source: Source,
        rules: HeaderRules,
        groups: Sequence[HeaderGroup],
        stamp: BatchStamp,
    ) -> None:
        """Add columns that the schema does not have, stop at them, or report them."""
        new: list[HeaderGroup] = []
        ignored: dict[str, HeaderGroup] = {}
        for group in groups:
            actions = {
                name: rules.action(name) for name in (group.layout.names[one] for one in group.layout.unknown)
            }
            if failing := [name for name, action in actions.items() if action == "fail"]:
                raise new_columns(stamp.flow, group, failing, source.location)
            if "evolve" in actions.values():
                new.append(group)
            ignored |= {name: group for name, action in actions.items() if action != "rescue"}
        if new and rules.evolving is not None:
            evolving = Evolving.from_json(rules.evolving, self.schemas, rules.drift)
            kinds = self._kinds(session, source, rules, new)
            fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
            found = {"type": "struct", "fields": fields}
            if self.drift.add_fields(session, evolving, stamp, found, _example(new[0])):
                raise PlanAgain
            if (lost := next((one for one in new if _is_lost(one, rules)), None)) is not None:
                raise foreign_header(stamp.flow, lost, rules, source.location)
        if ignored:
            self.drift.report_ignored(stamp, ignored, _example(next(iter(ignored.values()))))

    def _kinds(
        self, session: SparkSession, source: Source, rules: HeaderRules, groups: Sequence[HeaderGroup]
    ) -> dict[str, Any]:
        """The types of the columns that the schema does not have, by name."""
        names: dict[str, str] = {}
        for group in groups:
            for index in group.layout.unknown:
                name = group.layout.names[index]
                names.setdefault(rules.fold(name), name)
        kinds: dict[str, Any] = dict.fromkeys(names.values(), "string")
        if rules.infers_types:
            inferred = infer_types(session, source.options, groups, rules)
            kinds |= {name: inferred[name].jsonValue() for name in kinds if name in inferred}
        return kinds


def _is_lost(group: HeaderGroup, rules: HeaderRules) -> bool:
    """Whether no column of files can be a column of the table, and none is rescued."""
    return group.layout.is_foreign and not rules.drift.has("rescue")


def _example(group: HeaderGroup) -> Mapping[str, Any]:
    return {"path": group.paths[0]}
