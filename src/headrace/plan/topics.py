"""What a plan can know of its Kafka topics: that they exist, and how many partitions they have."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from headrace.errors import TopicNotFoundError
from headrace.plan.stages import Plan, RunFlowStage
from headrace.sources.identity import kafka_facts, require_topics, topics_of
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.sources.kafka.starting import Start, check_start
from headrace.state.identity import generations


def find_topics(plan: Plan, cluster: KafkaCluster) -> Plan:
    """The plan with the partitions of its topics.

    Raises:
        TopicNotFoundError: The broker has no topic that a new flow is to read, or none that its pattern
            matches.
        StartInvalidError: A new flow cannot start where its options say.
        BrokerUnreachableError: No broker answers.
    """
    found: dict[str, int] = {}
    matches: dict[str, tuple[str, ...]] = {}
    stages = [stage for stage in plan.stages if isinstance(stage, RunFlowStage)]
    for stage in stages:
        for source in stage.planned.sources:
            if source.kind != "kafka":
                continue
            topics = topics_of(source, cluster)
            if source.topic_pattern is not None:
                matches[source.topic_pattern] = topics
            is_new = _is_new(stage, plan)
            # What a checkpoint has read and is gone, a run refuses with another remedy.
            with contextlib.nullcontext() if is_new else contextlib.suppress(TopicNotFoundError):
                found |= require_topics(source, topics, cluster, source.location)
            if is_new:
                facts = kafka_facts(source, cluster.topic_ids(topics), cluster)
                check_start(Start.of(source.options, default="latest"), facts, cluster, source.location)
    return replace(plan, partitions=found, matches=matches)


def _is_new(stage: RunFlowStage, plan: Plan) -> bool:
    """Whether a flow has no checkpoint yet: only then does it start where its options say."""
    flow = stage.planned.flow
    return not generations(plan.project.storage.flow_checkpoints(flow.target, flow.name))
