"""A flow's query as a batch over records of its sources that were read before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.errors import SourceUnsupportedError
from headrace.model.project import ProjectSettings
from headrace.model.ranges import SourceRange
from headrace.plan.evaluate import evaluate
from headrace.plan.modes import Bounded, RangeHook, SourceHook, TableAccess
from headrace.plan.stages import Plan, PlannedFlow
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sources.kind import SourceKind
from headrace.sources.registry import build_source, kind_for, kind_of
from headrace.sources.requests import ReadRequest, SourceRead, StreamRead
from headrace.sources.source import Source
from headrace.storage.location import Location

Treat = Callable[["DataFrame", SourceKind], "DataFrame"]  # changes the records of a source of the given kind


def evaluate_ranges(
    session: SparkSession,
    planned: PlannedFlow,
    plan: Plan,
    ranges: Sequence[SourceRange],
    checkpoint: Location,
    *,
    leaves_others: bool = False,
    treat: Treat | None = None,
    stand_ins: RangeHook | None = None,
) -> DataFrame:
    """A flow's query as a batch over ranges of its sources.

    Tables that the query joins are read at their current version. ``leaves_others`` lets sources that cannot
    read a range again remain streams. ``treat`` changes the records of each source before the query gets
    them.
    """
    for source in planned.sources:
        if not source.rereads and not leaves_others:
            raise _not_again(source)
    known = {one.index: one for one in ranges}

    def stand_in(read: SourceRead) -> DataFrame | None:
        given = None if stand_ins is None else stand_ins(read, ranges)
        is_source = given is not None and read.request.streaming and not given.isStreaming
        return treat(given, kind_for(read.request.format)) if is_source and treat is not None else given

    def records_of(source: Source, read: SourceRead) -> DataFrame | None:
        if not source.rereads:
            return None
        records = source.read_range(read, known.get(source.index), checkpoint)
        return records if treat is None else treat(records, kind_of(source.kind))

    return _evaluate(session, planned, plan, records_of, stand_in)


def can_evaluate_records(planned: PlannedFlow) -> bool:
    return bool(planned.sources) and all(source.reads_records for source in planned.sources)


def evaluate_records(
    session: SparkSession, planned: PlannedFlow, plan: Plan, records: DataFrame
) -> DataFrame:
    """A flow's query as a batch over kept records, with the fields of a quarantine's ``source``."""

    def records_of(source: Source, read: SourceRead) -> DataFrame:
        return source.read_records(read, records.where(source.owns()))

    return _evaluate(session, planned, plan, records_of)


def _evaluate(
    session: SparkSession,
    planned: PlannedFlow,
    plan: Plan,
    records_of: Callable[[Source, SourceRead], DataFrame | None],
    stand_in: SourceHook = lambda _: None,
) -> DataFrame:
    """A flow's query with records in place of its streams."""

    def read(read: SourceRead) -> DataFrame | None:
        if (given := stand_in(read)) is not None or not read.request.streaming:
            return given
        return records_of(_source_of(read, planned.sources, plan.project), read)

    def read_table(access: TableAccess) -> DataFrame | None:
        name = str(access.name).casefold()
        found = (one for one in planned.sources if str(one.table).casefold() == name)
        source = next(found, None) if access.streaming else None
        if source is None:
            return None
        request = ReadRequest(streaming=True, format=source.kind, options=access.options)
        read = SourceRead(request=request, paths=(), location=access.location, session=session)
        return records_of(source, read)

    return evaluate(session, planned.flow, plan, Bounded(sources=read, tables=read_table))


def _source_of(read: SourceRead, sources: Sequence[Source], settings: ProjectSettings) -> Source:
    request = read.request
    options = {**request.options, "path": read.paths[0]} if read.paths else request.options
    built = build_source(
        StreamRead(
            format=request.format,
            index=-1,
            folder=-1,
            read=-1,
            location=read.location,
            options=options,
            adaptive=False,
            table=None,
            settings=settings,
        )
    )
    found = next((source for source in sources if source.common_input(built, {}) is not None), None)
    if found is None:
        raise _not_again(built)
    return found


def _not_again(source: Source) -> SourceUnsupportedError:
    return SourceUnsupportedError(
        f"a range of the source `{source.describe()}` cannot be read again",
        location=source.location,
        facts=["ranges of topics, of Delta tables and of folders of files can be read again"],
        remedies=["write the records to a topic, a table or files, and read those"],
        params={"source": source.describe()},
    )
