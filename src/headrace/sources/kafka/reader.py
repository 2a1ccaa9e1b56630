"""The newest records of topics, as a preview shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Final

from headrace.errors import HeadraceError, OptionInvalidError, OptionUnsupportedError, SourceLocation
from headrace.model.kafka_settings import KafkaConnection, unshaded
from headrace.model.project import ProjectSettings
from headrace.runtime.gateway import new_frame
from headrace.runtime.lazy_pyspark import DataFrame
from headrace.sources.bad_records import SCHEMA_NUMBER, VALUE_LIMIT
from headrace.sources.kafka.cluster import KafkaCluster, Offsets
from headrace.sources.kafka.clusters import KafkaClusters, check_protocol, map_connection, other_cluster
from headrace.sources.kafka.meter import KAFKA_MAX_OFFSETS_PER_TRIGGER
from headrace.sources.kafka.position import KafkaOffsets
from headrace.sources.kafka.read import ALLOW_NO_TOPICS, LOSS_POLICY, client_options
from headrace.sources.kafka.starting import Start
from headrace.sources.kafka.subscription import Subscription
from headrace.sources.requests import (
    ADAPTIVE,
    LIMITS,
    KnownOptions,
    Reader,
    ReaderDefaults,
    ReadRequest,
    Sample,
    Sampling,
    SourceRead,
    SourceSeen,
    fails_on_loss,
    refuse_silent_loss,
)
from headrace.syntax.locations import argument_location

_SERVERS = "kafka.bootstrap.servers"
_WHOLE_NUMBERS = (
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "minPartitions", "maxRecordsPerPartition"),
    *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
)
_FLAGS = ("includeHeaders", "failOnDataLoss", ALLOW_NO_TOPICS)

_BOTH = (
    *("subscribe", "subscribePattern", "assign", "includeHeaders", "failOnDataLoss"),
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("minPartitions", "maxRecordsPerPartition", "groupIdPrefix"),
    *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
)
_KNOWN = KnownOptions(
    stream=(
        *_BOTH,
        *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
        "startingOffsetsByTimestampStrategy",
        ALLOW_NO_TOPICS,
    ),
    batch=(*_BOTH, "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    prefixes=("kafka.",),
    passed_on="settings of Kafka's own client start with `kafka.`",
    marks=frozenset({"headrace.location", ADAPTIVE, LOSS_POLICY, SCHEMA_NUMBER, VALUE_LIMIT}),
)


def protocol_options(request: ReadRequest, location: SourceLocation, limit: int) -> dict[str, str]:
    options: dict[str, str] = {}
    _KNOWN.refuse_unknown(request, location)
    if not request.streaming:
        refuse_silent_loss(request, location)
    elif not fails_on_loss(request):
        # Spark would skip lost records silently; with the policy a flow continues too, and the ledger
        # records the loss.
        options[LOSS_POLICY] = "record"
    level = request.value("kafka.isolation.level")
    if level is not None and level.lower() != "read_committed":
        raise OptionUnsupportedError(
            f"kafka.isolation.level={level} reads records of aborted transactions",
            location=argument_location(location, "options", "kafka.isolation.level"),
            facts=["`headrace verify` counts committed records only, so it would find additional rows"],
            remedies=["remove the option: flows read with read_committed"],
            params={"option": "kafka.isolation.level", "value": level},
        )
    options["failOnDataLoss"] = "true"
    # Without it Spark also reads records of aborted transactions.
    if level is None:
        options["kafka.isolation.level"] = "read_committed"
    if request.streaming and not request.has(*LIMITS):
        options |= {"maxOffsetsPerTrigger": str(limit), ADAPTIVE: "adaptive"}
    return options


def connection_options(options: Mapping[str, str], connection: KafkaConnection) -> dict[str, str]:
    """The options of the connection to add to a reader.

    A reader without a cluster, or with ``embedded``, gets the profile's. A reader that names the profile's
    cluster keeps its options and gets the others. A reader of another cluster gets nothing of the profile's
    connection; its own settings are given to Kafka's client in the form that the client knows.
    """
    chosen = {key.lower() for key in options}
    if (other := other_cluster(options, connection)) is not None:
        return _lacking({**client_options(options), **other.for_spark()}, chosen)
    if not connection.bootstrap_servers:
        return {}
    # The servers are written as in the profile, since the plan compares them.
    own = connection.for_spark()
    client = client_options({**own, **options})
    return {**_lacking({**client, **own}, chosen), _SERVERS: connection.bootstrap_servers}


def _lacking(options: Mapping[str, str], chosen: Set[str]) -> dict[str, str]:
    return {key: value for key, value in options.items() if key.lower() not in chosen}


def check_values(options: Mapping[str, str], streaming: bool, location: SourceLocation) -> None:
    """Check the values that Spark would refuse later and without a location, or never."""
    chosen = {key.lower(): value for key, value in options.items()}
    for name in _WHOLE_NUMBERS:
        least = 0 if name.startswith("fetchOffset.") else 1
        value = chosen.get(name.lower())
        if value is not None and not (value.strip().isdigit() and int(value) >= least):
            problem = f"`{name}` must be a whole number of at least {least}, not {value!r}"
            raise _invalid(problem, name, location, f"write digits only, {least} or more")
    for name in _FLAGS:
        value = chosen.get(name.lower())
        if value is not None and value.lower() not in ("true", "false"):
            problem = f"`{name}` must be true or false, not {value!r}"
            raise _invalid(problem, name, location, 'write "true" or "false"')
    fewest, most = chosen.get("minoffsetspertrigger"), chosen.get("maxoffsetspertrigger")
    if fewest is not None and most is not None and int(fewest) > int(most):
        problem = f"`minOffsetsPerTrigger` is {fewest}, more than `maxOffsetsPerTrigger`, which is {most}"
        raise _invalid(problem, "minOffsetsPerTrigger", location, f"write at most {most}")
    try:
        Subscription.of(options)
        Start.of(options, default="latest" if streaming else "earliest")
    except ValueError as error:
        raise _invalid(str(error), "", location) from error


def _invalid(
    problem: str, option: str, location: SourceLocation, remedy: str = "correct the option"
) -> OptionInvalidError:
    return OptionInvalidError(
        f"a Kafka reader {problem}" if not problem.startswith("`") else f"the Kafka option {problem}",
        location=location,
        remedies=[remedy],
        params={"option": option, "problem": problem},
    )


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


def kafka_columns(request: ReadRequest) -> str:
    with_headers = (request.value("includeHeaders") or "").lower() == "true"
    return f"{_COLUMNS}, {_HEADERS}" if with_headers else _COLUMNS


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


class KafkaReader(Reader):
    stand_in = "topic"

    def options(
        self, request: ReadRequest, location: SourceLocation, defaults: ReaderDefaults
    ) -> dict[str, str]:
        own = unshaded(request.options)
        request = request.with_options(own)
        limit = defaults.record_limit or KAFKA_MAX_OFFSETS_PER_TRIGGER
        options = protocol_options(request, location, limit)
        check_values(request.options, request.streaming, location)
        check_protocol(request.options, defaults.settings, location)
        return connection_options(request.options, defaults.settings.kafka) | own | options

    def replaced_options(
        self, request: ReadRequest, location: SourceLocation, settings: ProjectSettings
    ) -> tuple[Mapping[str, str], str | None] | None:
        found = map_connection(request.options, settings, location)
        return None if found is None else (found.options, found.note)

    def sample(self, read: SourceRead, sampling: Sampling) -> Sample:
        subscription = Subscription.of(read.request.options)
        try:
            other = other_cluster(read.request.options, sampling.settings.kafka)
            cluster = sampling.systems.client(KafkaClusters).reach(other)
            topics = subscription.topics
            if subscription.pattern is not None:
                topics = cluster.matching(subscription.pattern)
            earliest, latest = cluster.earliest(topics), cluster.latest(topics)
            lower = _lower_bound(read.request, cluster, earliest, latest)
        except HeadraceError as error:
            raise error.with_location(read.location) from error.__cause__
        start, end = newest(lower, latest, sampling.records), KafkaOffsets(latest)
        read_now, held = (end.count_since(KafkaOffsets(first)) for first in (start, lower))
        seen = SourceSeen("kafka", ",".join(topics), read_now, held)
        return Sample(read_between(read, start, latest), seen)
