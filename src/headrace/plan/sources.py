"""The streaming sources of a resolved query; flows whose batch query is applied once.

Such a flow is a stream of one file, the marker of the storage: its one batch has the rows of the batch query.
So it has a checkpoint, a transaction id and ranges as every flow has.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.errors import (
    BrokerUnreachableError,
    HeadraceError,
    SourceLocation,
    SourceReadTwiceError,
    SourceUnsupportedError,
    StreamingQueryForOnceFlowError,
)
from headrace.model.declarations import StreamingFlow
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.queries import PythonQuery, Query
from headrace.model.ranges import SourceRange
from headrace.plan.evaluate import evaluate
from headrace.plan.intercept import LOCATION_OPTION
from headrace.plan.logical import Leaf, LogicalPlan
from headrace.plan.modes import Bounded, RangeHook, SourceHook, TableAccess
from headrace.plan.snapshots import marker_stream
from headrace.plan.stages import Plan, PlannedFlow, RunFlowStage
from headrace.plan.validate import raise_all
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.table import read_checksum
from headrace.sources.kind import SourceKind
from headrace.sources.registry import build_source, kind_for, kind_of
from headrace.sources.requests import ADAPTIVE, Found, ReadRequest, SourceRead, StreamRead, Systems
from headrace.sources.source import Source
from headrace.state.checkpoint import QueryRecord, generations, load_identity, load_query
from headrace.state.facts import SourceFacts
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.syntax.locations import argument_location, return_location

if TYPE_CHECKING:
    from headrace.plan.resolver import Resolved


Treat = Callable[["DataFrame", SourceKind, "Source | None"], "DataFrame"]
"""Changes the records of a source of the given kind; of a stand-in without a source in a test."""


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
        return treat(given, kind_for(read.request.format), None) if is_source and treat is not None else given

    def records_of(source: Source, read: SourceRead) -> DataFrame | None:
        if not source.rereads:
            return None
        records = source.read_range(read, known.get(source.index), checkpoint)
        return records if treat is None else treat(records, kind_of(source.kind), source)

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


KnownFolders = Callable[[str], TableName | None]  # gives the dataset of a folder with an empty table


def planned_sources(
    plan: LogicalPlan, folders: KnownFolders, settings: ProjectSettings, location: SourceLocation
) -> tuple[Source, ...]:
    """The streaming sources of a query, in Spark's order."""
    sources = tuple(_source(leaf, folders, settings, location) for leaf in plan.leaves)
    refuse_read_twice(sources)
    return sources


def refuse_read_twice(sources: Sequence[Source], facts: Mapping[int, SourceFacts] | None = None) -> None:
    """Refuse a query that reads the same topic, table or folder through two separate reads."""
    for earlier, source in itertools.combinations(sources, 2):
        shared = None if earlier.read == source.read else earlier.common_input(source, facts or {})
        if shared is not None:
            raise SourceReadTwiceError(
                f"the query reads {shared} through two separate streaming reads",
                location=source.location,
                facts=[
                    *(
                        [f"the other read is at {other}"]
                        if (other := earlier.location) != source.location
                        else []
                    ),
                    "a checkpoint could mix up the positions of two reads of one source",
                ],
                remedies=[
                    "read it once into a variable within the function:   rows = ..   return rows.union(rows)",
                    "or write two flows into the table:   @hr.append_flow(target=..)",
                ],
                params={"source": shared},
            )


def find_sources(plan: Plan, systems: Systems) -> Plan:
    """The plan with what its sources hold now; a system that does not answer is left out. All sources that
    do not exist are named at once."""
    found: dict[tuple[str, int], Found] = {}
    unchecked: dict[str, None] = {}
    errors: list[HeadraceError] = []
    for planned in (stage.planned for stage in plan.stages if isinstance(stage, RunFlowStage)):
        flow = planned.flow
        # Only a flow without a checkpoint starts where its options say.
        is_new = not generations(plan.project.storage.flow_checkpoints(flow.target, flow.name))
        for source in planned.sources:
            try:
                seen = source.find(systems, is_new=is_new)
            except BrokerUnreachableError as error:
                unchecked[source.not_checked(error, plan.project)] = None
                continue
            except HeadraceError as error:
                errors.append(error)
                continue
            if seen is not None:
                found[planned.flow.name, source.index] = seen
    raise_all(errors)
    return replace(plan, found=found, unchecked=tuple(unchecked))


def _source(leaf: Leaf, folders: KnownFolders, settings: ProjectSettings, location: SourceLocation) -> Source:
    options = dict(leaf.options)
    marked = options.pop(LOCATION_OPTION, None)
    adaptive = options.pop(ADAPTIVE, None) is not None
    path = options.get("path")
    table = folders(path) if path else None
    return build_source(
        StreamRead(
            # A dataset is stood for by an empty folder of another format.
            format=leaf.provider if table is None else "delta",
            index=leaf.index,
            folder=leaf.folder,
            read=leaf.read,
            location=_location(marked) or location,
            options=options,
            adaptive=adaptive,
            table=table,
            settings=settings,
        )
    )


def _location(text: str | None) -> SourceLocation | None:
    found = re.fullmatch(r"(.*?):(\d+)(?::(\d+))?", text or "")
    return SourceLocation(found[1], int(found[2]), int(found[3]) if found[3] else None) if found else None


_MARKER = "once.json"  # a checkpoint knows files by their paths, so the file always has this name


def marker_of(storage: Storage) -> Location:
    """The file that all such flows of a storage read, each with its own checkpoint."""
    return storage.once / _MARKER


def once_stream(session: SparkSession, storage: Storage, schema: Mapping[str, Any]) -> DataFrame:
    """The stream of the marker, with the columns of a batch query, whose rows replace those of the batch."""
    return marker_stream(session, f"{storage.once}/*.json", schema)


def resolve_once(
    flow: StreamingFlow, resolve: Callable[[Query], Resolved], session: SparkSession, storage: Storage
) -> Resolved:
    """Resolve a flow to the stream of its marker, with the columns of its batch query.

    If the query fails after it was applied, because its source is gone, the flow has nothing more to do.
    """

    def stream(schema: Mapping[str, Any]) -> Resolved:
        return resolve(PythonQuery(lambda: once_stream(session, storage, schema), flow.location))

    try:
        batch = resolve(flow.query)
        if batch.plan.streaming:
            raise StreamingQueryForOnceFlowError(
                f"the flow `{flow.name}` is applied once, but its query is a stream",
                location=return_location(flow.location),
                remedies=_not_a_stream(flow),
                params={"flow": flow.name},
            )
    except HeadraceError as error:
        applied = load_applied(storage, flow)
        if applied is None or applied.schema is None:
            raise
        return replace(stream(applied.schema), applied=applied, gone=error)
    return replace(stream(batch.plan.schema), reads=batch.reads, views=batch.views, batch=batch.plan)


def _not_a_stream(flow: StreamingFlow) -> list[str]:
    if flow.location.is_sql:
        return ["read without STREAM, to apply the rows once", "or remove ONCE, to read each new record"]
    place = argument_location(flow.location, "once")
    return [
        "read with spark.read, to apply the rows once",
        f"or remove once=True ({place.path}:{place.line}), to read each new record",
    ]


def load_applied(storage: Storage, flow: StreamingFlow) -> QueryRecord | None:
    """The query that a flow was applied with; ``None`` if it was not applied yet."""
    known = generations(storage.flow_checkpoints(flow.target, flow.name))
    if not known or (record := load_query(known[-1])) is None or record.schema is None:
        return None
    checksum = read_checksum(storage.table(flow.target))
    held = {} if checksum is None else checksum.transactions
    is_committed = (known[-1] / "commits" / "0").exists() or load_identity(known[-1]).checkpoint in held
    return record if is_committed else None


def share_reads(leaves: Sequence[Leaf], stands_for_table: Callable[[str], bool]) -> tuple[Leaf, ...]:
    """The streaming relations of a query, in which equal reads of a table have one number.

    Spark runs such a query as one that reads the table once into a variable, and uses that several times.
    `stands_for_table`: whether a folder is an empty one in the place of a table.
    """
    firsts: dict[object, int] = {}
    found = []
    for leaf in leaves:
        if kind_for(leaf.provider).reader.reads_tables or stands_for_table(leaf.options.get("path", "")):
            options = {name: value for name, value in leaf.options.items() if name != LOCATION_OPTION}
            key = leaf.provider, frozenset(options.items())
            leaf = replace(leaf, read=firsts.setdefault(key, leaf.read))
        found.append(leaf)
    return tuple(found)
