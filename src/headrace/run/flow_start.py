"""How a flow would start: the facts about it and the decision. `plan` reports it, `run` executes it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.project import ProjectSettings
from headrace.model.remedies import Remedies
from headrace.plan.stages import PlannedFlow
from headrace.run.survey import ReadTable, survey_flow, survey_sources
from headrace.sinks.delta.table import TableState, is_table
from headrace.sources.systems import Systems
from headrace.state.facts import CheckpointFacts, Open, Opening, SourceFacts
from headrace.state.opening import decide


@dataclass(frozen=True, kw_only=True)
class FlowStart:
    """How a flow would start.

    Args:
        opening: Whether it continues its checkpoint, opens a new one, or takes over a renamed one.
        sources: Its sources as they are now.
        table: The target's newest state; ``None`` if it does not exist yet.
        checkpoint: What its newest checkpoint holds; ``None`` if it has none.
    """

    opening: Opening
    sources: tuple[SourceFacts, ...]
    table: TableState | None
    checkpoint: CheckpointFacts | None = None


def prepare_flow(
    planned: PlannedFlow,
    settings: ProjectSettings,
    systems: Systems,
    read_table: ReadTable,
    *,
    declared_flows: frozenset[str],
    remedies: Remedies,
) -> FlowStart:
    """Decide how a flow starts; writes nothing.

    Args:
        planned: The flow.
        settings: The pipeline's settings.
        systems: The systems of its sources.
        read_table: Reads a table's newest snapshot.
        declared_flows: All flows that are declared for the same table.
        remedies: What the user asks for.

    Raises:
        RefusedError: The flow could lose or double records.
        TransientError: The broker does not answer.
        TopicNotFoundError: A topic does not exist.
        StartInvalidError: A source does not hold the position that its options start at.
    """
    flow, storage = planned.flow, settings.storage
    if not is_table(storage.table(flow.target)):
        sources = survey_sources(planned, systems)
        start = FlowStart(opening=Open(reason="first"), sources=sources, table=None)
    else:
        survey = survey_flow(
            planned, settings, systems, read_table, declared_flows=declared_flows, remedies=remedies
        )
        start = FlowStart(
            opening=decide(survey.flow, survey.facts, survey.checkpoint),
            sources=survey.sources,
            table=survey.table,
            checkpoint=survey.checkpoint,
        )
    if isinstance(start.opening, Open):
        _check_starts(planned, start.opening, start.sources, systems)
    return start


def prepare_full_refresh(
    planned: PlannedFlow, settings: ProjectSettings, systems: Systems, read_table: ReadTable
) -> FlowStart:
    """Let a flow start at the beginning of its sources, for a full refresh; writes nothing.

    Raises:
        TransientError: The broker does not answer.
        TopicNotFoundError: A topic does not exist.
        StartInvalidError: A source does not hold the position that its options start at.
    """
    flow, storage = planned.flow, settings.storage
    table = read_table(storage.table(flow.target))
    opening = Open(reason="full-refresh", fences=table.checkpoints.get(flow.name))
    sources = survey_sources(planned, systems)
    _check_starts(planned, opening, sources, systems)
    return FlowStart(opening=opening, sources=sources, table=table)


def _check_starts(
    planned: PlannedFlow, opening: Open, sources: tuple[SourceFacts, ...], systems: Systems
) -> None:
    """Check that each source is there, and holds the position that the flow would start at."""
    facts = {one.source.index: one for one in sources}
    for source in planned.sources:
        is_new = opening.positions is None or source.index not in opening.positions
        source.check_start(facts[source.index], systems, is_new=is_new)
