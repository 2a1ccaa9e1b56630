"""How a flow would start: the facts about it and the decision. `plan` reports it, `run` executes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.model.project import ProjectSettings
from headrace.model.remedies import Remedies
from headrace.plan.stages import PlannedFlow
from headrace.run.survey import ReadTable, survey_flow, survey_sources
from headrace.sinks.delta.table import TableState, is_table
from headrace.sources.delta.starting import check_table_start
from headrace.sources.identity import require_topics
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.sources.kafka.starting import Start, check_start
from headrace.state.facts import CheckpointFacts, KafkaFacts, Open, Opening
from headrace.state.identity import SourceIdentity
from headrace.state.opening import decide


@dataclass(frozen=True, kw_only=True)
class FlowStart:
    """How a flow would start.

    Args:
        opening: Whether it continues its checkpoint, opens a new one, or takes over a renamed one.
        sources: Its sources as they are now, with the ids of all their topics.
        kafka: What the broker holds of each Kafka source.
        table: The target's newest state; ``None`` if it does not exist yet.
        checkpoint: What its newest checkpoint holds; ``None`` if it has none.
    """

    opening: Opening
    sources: tuple[SourceIdentity, ...]
    kafka: Mapping[int, KafkaFacts]
    table: TableState | None
    checkpoint: CheckpointFacts | None = None


def prepare_flow(
    planned: PlannedFlow,
    settings: ProjectSettings,
    cluster: KafkaCluster,
    read_table: ReadTable,
    *,
    declared_flows: frozenset[str],
    remedies: Remedies,
) -> FlowStart:
    """Decide how a flow starts; writes nothing.

    Args:
        planned: The flow.
        settings: The pipeline's settings.
        cluster: The Kafka cluster of its Kafka sources.
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
        sources, kafka = survey_sources(planned, storage, cluster, read_table)
        start = FlowStart(opening=Open(reason="first"), sources=sources, kafka=kafka, table=None)
    else:
        survey = survey_flow(
            planned, settings, cluster, read_table, declared_flows=declared_flows, remedies=remedies
        )
        start = FlowStart(
            opening=decide(survey.flow, survey.facts, survey.checkpoint),
            sources=survey.flow.sources,
            kafka=survey.flow.kafka,
            table=survey.table,
            checkpoint=survey.checkpoint,
        )
    if isinstance(start.opening, Open):
        _check_sources(planned, start.opening, start, cluster, read_table)
    return start


def prepare_full_refresh(
    planned: PlannedFlow, settings: ProjectSettings, cluster: KafkaCluster, read_table: ReadTable
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
    sources, kafka = survey_sources(planned, storage, cluster, read_table)
    start = FlowStart(opening=opening, sources=sources, kafka=kafka, table=table)
    _check_sources(planned, opening, start, cluster, read_table)
    return start


def _check_sources(
    planned: PlannedFlow, opening: Open, start: FlowStart, cluster: KafkaCluster, read_table: ReadTable
) -> None:
    """Check that topics and tables exist, and hold the positions that the flow would start at."""
    identities = {source.index: source.identity for source in start.sources}
    for source in planned.sources:
        is_new = opening.positions is None or source.index not in opening.positions
        if source.kind == "kafka":
            require_topics(source, identities[source.index]["topics"], cluster, source.location)
            if is_new:
                given = Start.of(source.options, default="latest")
                check_start(given, start.kafka[source.index], cluster, source.location)
        elif source.kind == "delta" and is_new:
            path = Path(identities[source.index]["path"])
            state = read_table(path)
            check_table_start(
                source.options,
                path,
                name=str(source.table or path),
                properties=state.properties,
                location=source.location,
            )
