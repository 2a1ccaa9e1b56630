"""The topics that a new checkpoint is to read: they exist, and have the partitions that are named."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from headrace.errors import SourceLocation, TopicNotFoundError
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.sources.kafka.subscription import shown


def count_partitions(
    topics: Iterable[str],
    cluster: KafkaCluster,
    *,
    assigned: Mapping[str, tuple[int, ...]],
    pattern: str | None,
    allow_no_topics: bool,
    location: SourceLocation,
) -> dict[str, int]:
    """Count the partitions that are read of each topic."""
    found: dict[str, int] = {}
    try:
        for topic in topics:
            there = cluster.partitions(topic)
            asked = assigned.get(topic, there)
            if lacking := sorted(set(asked) - set(there)):
                raise TopicNotFoundError(
                    f"topic `{topic}` has no partition {lacking[0]}",
                    facts=[f"its partitions: {', '.join(map(str, there))}"],
                    remedies=["correct `assign`"],
                    params={"topic": topic, "partition": lacking[0]},
                )
            found[topic] = len(asked)
        if not found and not allow_no_topics:
            raise _no_match(pattern or "", cluster)
    except TopicNotFoundError as error:
        raise error.with_(location=location) from error.__cause__
    return found


def _no_match(pattern: str, cluster: KafkaCluster) -> TopicNotFoundError:
    import difflib

    known = cluster.topics()
    near = difflib.get_close_matches(re.sub(r"\W+", "", shown(pattern)), known, n=3, cutoff=0.4)
    there = near or known[:3]
    return TopicNotFoundError(
        f"the pattern `{shown(pattern)}` matches no topic",
        facts=[f"topics of the cluster: {', '.join(there)}" + (", .." if len(known) > len(there) else "")]
        if there
        else ["the cluster has no topic yet"],
        remedies=[
            "correct the pattern",
            "or wait for topics with allow_no_match=True in read_kafka (option headrace.allowNoTopics=true)",
        ],
        params={"pattern": pattern, "topics": list(there)},
    )
