"""The newest records of topics, as a preview shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from headrace.errors import HeadraceError, SourceLocation
from headrace.runtime.gateway import new_frame
from headrace.runtime.lazy_pyspark import DataFrame, F
from headrace.sources.answers import Sample, SourceSeen
from headrace.sources.kafka.cluster import KafkaCluster, Offsets
from headrace.sources.kafka.clusters import KafkaClusters, other_cluster
from headrace.sources.kafka.options import reader_options
from headrace.sources.kafka.starting import Start
from headrace.sources.kafka.subscription import Subscription
from headrace.sources.reader import Reader
from headrace.sources.requests import ReaderDefaults, ReadRequest, Sampling, SourceRead

_COLUMNS: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT"
)
_HEADERS: Final = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"

_CHOICE_OF_OFFSETS = frozenset(
    {
        *("subscribe", "subscribepattern", "assign", "startingoffsets", "endingoffsets"),
        *("startingtimestamp", "endingtimestamp", "startingoffsetsbytimestamp", "endingoffsetsbytimestamp"),
        "startingoffsetsbytimestampstrategy",
    }
)


def read_between(
    read: SourceRead, start: Mapping[str, Mapping[int, int]], until: Mapping[str, Mapping[int, int]]
) -> DataFrame:
    """The records of a reader between offsets."""
    subscription = Subscription.of(read.request.options)
    first: dict[str, dict[str, int]] = {}
    last: dict[str, dict[str, int]] = {}
    for topic in subscription.topics or until:
        for partition, end in until.get(topic, {}).items():
            begin = start.get(topic, {}).get(partition, end)
            assigned = subscription.partitions.get(topic)
            if begin < end and (assigned is None or partition in assigned):
                first.setdefault(topic, {})[str(partition)] = begin
                last.setdefault(topic, {})[str(partition)] = end
    if not first:
        return new_frame(read.session, [], kafka_columns(read.request))
    chosen = read.request.batch_options
    options = {key: value for key, value in chosen.items() if key.lower() not in _CHOICE_OF_OFFSETS}
    return (
        read.session.read.format("kafka")
        .options(**options)
        .option("assign", json.dumps({topic: [int(p) for p in parts] for topic, parts in first.items()}))
        .option("startingOffsets", json.dumps(first))
        .option("endingOffsets", json.dumps(last))
        .load()
    )


def read_kept(read: SourceRead, records: DataFrame) -> DataFrame:
    """Records that were kept, with the columns of a reader."""
    from pyspark.sql.types import StructType

    held = records.withColumn("timestampType", F.lit(0))
    columns = StructType.fromDDL(kafka_columns(read.request)).fields
    return held.select(*(F.col(one.name).cast(one.dataType).alias(one.name) for one in columns))


def kafka_columns(request: ReadRequest) -> str:
    """The columns of a reader."""
    with_headers = (request.value("includeHeaders") or "").lower() == "true"
    return f"{_COLUMNS}, {_HEADERS}" if with_headers else _COLUMNS


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


class KafkaReader(Reader):
    """Readers of topics."""

    stand_in = "topic"

    def options(
        self, request: ReadRequest, location: SourceLocation, defaults: ReaderDefaults
    ) -> dict[str, str]:
        return reader_options(request, location, defaults)

    def sample(self, read: SourceRead, sampling: Sampling) -> Sample:
        return sample_topics(read, sampling)
