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
    StreamingQueryForOnceFlowError,
)
from headrace.model.declarations import StreamingFlow
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.queries import PythonQuery, Query
from headrace.plan.intercept import LOCATION_OPTION
from headrace.plan.logical import Leaf, LogicalPlan
from headrace.plan.snapshots import marker_stream
from headrace.plan.stages import Plan, RunFlowStage
from headrace.plan.validate import raise_all
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.table import read_checksum
from headrace.sources.registry import build_source, kind_for
from headrace.sources.requests import ADAPTIVE, Found, StreamRead, Systems
from headrace.sources.source import Source
from headrace.state.facts import SourceFacts
from headrace.state.identity import QueryRecord, generations, load_identity, load_query
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.syntax.locations import argument_location, return_location

if TYPE_CHECKING:
    from headrace.plan.resolver import Resolved

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
