"""What a plan can know of its Kafka topics: that they exist, and how many partitions they have."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import BrokerUnreachableError, TopicNotFoundError
from headrace.plan.stages import Plan
from headrace.sources.cluster import KafkaCluster


def find_topics(plan: Plan, cluster: KafkaCluster) -> Plan:
    """The plan with the partitions of its topics; as it is where no broker answers.

    Raises:
        TopicNotFoundError: The broker has no such topic.
    """
    found: dict[str, int] = {}
    for planned in plan.flows:
        for source in planned.sources:
            for topic in source.topics:
                try:
                    found[topic] = len(cluster.partitions(topic))
                except BrokerUnreachableError:
                    return plan
                except TopicNotFoundError as error:
                    error.location = source.location
                    raise
    return replace(plan, partitions=found)
