"""The streaming sources of a resolved query."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, assert_never

from headrace.errors import BrokerUnreachableError, SourceLocation, SourceReadTwiceError
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.plan.intercept import LOCATION_OPTION
from headrace.plan.logical import Leaf, LogicalPlan
from headrace.plan.stages import OpenTableStage, Plan, PlannedFlow, RefreshViewStage, RunFlowStage
from headrace.sources.answers import Found
from headrace.sources.registry import build_source
from headrace.sources.requests import ADAPTIVE
from headrace.sources.source import Source
from headrace.sources.systems import StreamRead, Systems
from headrace.state.facts import SourceFacts
from headrace.state.identity import generations


class KnownFolders(Protocol):
    """Gives the dataset of a folder with an empty table."""

    def name_of(self, path: str) -> TableName | None: ...


def planned_sources(
    plan: LogicalPlan, folders: KnownFolders, settings: ProjectSettings, location: SourceLocation
) -> tuple[Source, ...]:
    """The streaming sources of a query, in Spark's order.

    Raises:
        UsageError: A source cannot be read as its options say.
        SourceReadTwiceError: Two separate reads have the same topic, table or folder.
    """
    sources = tuple(_source(leaf, folders, settings, location) for leaf in plan.leaves)
    refuse_read_twice(sources)
    return sources


def refuse_read_twice(sources: Sequence[Source], facts: Mapping[int, SourceFacts] | None = None) -> None:
    """Refuse a query that reads the same topic, table or folder through two separate reads.

    Raises:
        SourceReadTwiceError: There are two such reads.
    """
    for earlier, source in itertools.combinations(sources, 2):
        shared = None if earlier.read == source.read else earlier.shares(source, facts or {})
        if shared is not None:
            raise SourceReadTwiceError(
                f"the query reads {shared} through two separate streaming reads",
                location=source.location,
                facts=[f"the other read is at {earlier.location}"],
                remedies=[
                    "read it once into a variable or a temporary view, and use that twice",
                    "or write two flows into the table:   @hr.append_flow(target=..)",
                ],
                params={"source": shared},
            )


def find_sources(plan: Plan, systems: Systems) -> Plan:
    """The plan with what its sources hold now; a system that does not answer is left out.

    Raises:
        TopicNotFoundError: The broker has no topic that a new flow is to read, or none that its pattern
            matches.
        StartInvalidError: A new flow cannot start where its options say.
    """
    found: dict[tuple[str, int], Found] = {}
    unreached: dict[str, None] = {}
    for planned in _running(plan):
        is_new = _is_new(planned, plan)
        for source in planned.sources:
            try:
                seen = source.find(systems, is_new=is_new)
            except BrokerUnreachableError as error:
                unreached[error.params.get("servers", plan.project.kafka.bootstrap_servers)] = None
                continue
            if seen is not None:
                found[planned.flow.name, source.index] = seen
    return replace(plan, found=found, unreached=tuple(unreached))


def _running(plan: Plan) -> Iterator[PlannedFlow]:
    """The flows that are to be run."""
    for stage in plan.stages:
        match stage:
            case RunFlowStage(planned=planned):
                yield planned
            case OpenTableStage() | RefreshViewStage():
                pass
            case _:
                assert_never(stage)


def _is_new(planned: PlannedFlow, plan: Plan) -> bool:
    """Whether a flow has no checkpoint yet: only then does it start where its options say."""
    flow = planned.flow
    return not generations(plan.project.storage.flow_checkpoints(flow.target, flow.name))


def _source(leaf: Leaf, folders: KnownFolders, settings: ProjectSettings, location: SourceLocation) -> Source:
    options = dict(leaf.options)
    marked = options.pop(LOCATION_OPTION, None)
    adaptive = options.pop(ADAPTIVE, None) is not None
    path = options.get("path")
    table = folders.name_of(path) if path else None
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
