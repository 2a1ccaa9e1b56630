"""The newest records of topics, as a preview shows them."""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace.sources.answers import Sample, SourceSeen
from headrace.sources.kafka.batches import read_between
from headrace.sources.kafka.cluster import KafkaCluster, Offsets
from headrace.sources.kafka.clusters import KafkaClusters, other_cluster
from headrace.sources.kafka.starting import Start
from headrace.sources.kafka.subscription import Subscription
from headrace.sources.requests import ReadRequest, Sampling, SourceRead


def sample_topics(read: SourceRead, sampling: Sampling) -> Sample:
    """The newest records of a reader's topics."""
    try:
        other = other_cluster(read.request.options, sampling.settings.kafka)
        cluster = sampling.systems.client(KafkaClusters).reach(other)
        topics = _topics(read.request, cluster)
        earliest, latest = cluster.earliest(topics), cluster.latest(topics)
        lower = _lower_bound(read.request, cluster, earliest, latest)
    except HeadraceError as error:
        raise error.with_location(read.location) from error.__cause__
    start = newest(lower, latest, sampling.records)
    seen = SourceSeen(
        kind="kafka", name=",".join(topics), read=_span(start, latest), held=_span(lower, latest)
    )
    return Sample(read_between(read, start, latest), seen)


def _topics(request: ReadRequest, cluster: KafkaCluster) -> tuple[str, ...]:
    subscription = Subscription.of(request.options)
    if subscription.pattern is None:
        return subscription.topics
    return cluster.matching(subscription.pattern)


def _lower_bound(request: ReadRequest, cluster: KafkaCluster, earliest: Offsets, latest: Offsets) -> Offsets:
    """Where the query would begin. `latest` sets no bound: nothing at all would be seen."""
    start = Start.of(request.options, default="earliest")
    given: Offsets = {}
    match start.at:
        case "offsets":
            given = start.offsets
        case "timestamp":
            moments = {topic: dict.fromkeys(parts, start.timestamp_ms) for topic, parts in earliest.items()}
            given = _since(cluster, moments, latest)
        case "timestamps":
            given = _since(cluster, start.timestamps_ms, latest)
    return {
        topic: {
            partition: min(max(first, given.get(topic, {}).get(partition, first)), latest[topic][partition])
            for partition, first in partitions.items()
        }
        for topic, partitions in earliest.items()
    }


def _since(cluster: KafkaCluster, moments: Offsets, latest: Offsets) -> Offsets:
    """The first offsets since these moments; a partition without a record since then has none."""
    return {
        topic: {p: offset if offset >= 0 else latest[topic][p] for p, offset in parts.items()}
        for topic, parts in cluster.offsets_since(moments).items()
    }


def newest(first: Offsets, until: Offsets, count: int) -> Offsets:
    """The offsets at which to start, to read the newest records: an equal share of each partition. What a
    small partition does not need of its share goes to the others.

    Example:
        >>> newest({"t": {0: 0, 1: 0}}, {"t": {0: 2, 1: 100}}, 10)
        {'t': {0: 0, 1: 92}}
    """
    sizes = {
        (topic, partition): end - first[topic][partition]
        for topic, partitions in until.items()
        for partition, end in partitions.items()
    }
    start: Offsets = {topic: {} for topic in until}
    left = count
    for number, (topic, partition) in enumerate(sorted(sizes, key=sizes.__getitem__)):
        share = -(-left // (len(sizes) - number))
        taken = min(sizes[topic, partition], share)
        start[topic][partition] = until[topic][partition] - taken
        left -= taken
    return {topic: dict(sorted(partitions.items())) for topic, partitions in start.items()}


def _span(first: Offsets, until: Offsets) -> int:
    return sum(
        end - first[topic][partition]
        for topic, partitions in until.items()
        for partition, end in partitions.items()
    )
