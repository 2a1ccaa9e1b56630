"""What a plan can know of its Kafka topics: that they exist, and how many partitions they have."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import BrokerUnreachableError, TopicNotFoundError
from headrace.plan.stages import Plan, RunFlowStage
from headrace.sources.cluster import KafkaCluster


def find_topics(plan: Plan, cluster: KafkaCluster) -> Plan:
    """The plan with the partitions of its topics; as it is where no broker answers.

    Raises:
        TopicNotFoundError: The broker has no such topic.
    """
    found: dict[str, int] = {}
    stages = [stage for level in plan.levels for stage in level if isinstance(stage, RunFlowStage)]
    places = {
        topic: one.location for stage in stages for one in stage.planned.sources for topic in one.topics
    }
    for topic, location in places.items():
        try:
            found[topic] = len(cluster.partitions(topic))
        except BrokerUnreachableError:
            return plan
        except TopicNotFoundError as error:
            error.location = location
            raise
    return replace(plan, partitions=found)
