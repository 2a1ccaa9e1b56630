"""Options of Kafka readers: those that are added, and checks before Spark gets the user's."""

from __future__ import annotations

from collections.abc import Mapping, Set

from headrace.errors import OptionInvalidError, OptionUnsupportedError, SourceLocation
from headrace.model.kafka_settings import KafkaConnection, unshaded
from headrace.sources.bad_records import VALUE_LIMIT
from headrace.sources.kafka.clusters import other_cluster
from headrace.sources.kafka.meter import KAFKA_MAX_OFFSETS_PER_TRIGGER
from headrace.sources.kafka.read import ALLOW_NO_TOPICS, CLIENT, LOSS_POLICY
from headrace.sources.kafka.starting import Start
from headrace.sources.kafka.subscription import Subscription
from headrace.sources.new_fields import SCHEMA_NUMBER
from headrace.sources.requests import (
    ADAPTIVE,
    LIMITS,
    KnownOptions,
    ReaderDefaults,
    ReadRequest,
    fails_on_loss,
    refuse_silent_loss,
)

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


def reader_options(
    request: ReadRequest, location: SourceLocation, defaults: ReaderDefaults
) -> dict[str, str]:
    """The options to add to a reader, after those of the user were checked."""
    own = unshaded(request.options)
    request = request.with_options(own)
    options = protocol_options(request, location, defaults.record_limit or KAFKA_MAX_OFFSETS_PER_TRIGGER)
    check_values(request.options, request.streaming, location)
    return connection_options(request.options, defaults.settings.kafka) | own | options


def protocol_options(request: ReadRequest, location: SourceLocation, limit: int) -> dict[str, str]:
    """The options that the exactly-once protocol adds."""
    options: dict[str, str] = {}
    _KNOWN.refuse_unknown(request, location)
    if not request.streaming:
        refuse_silent_loss(request, location)
    elif not fails_on_loss(request):
        # Spark would skip lost records silently; with the policy a flow continues too, and the ledger
        # records the loss.
        options[LOSS_POLICY] = "record"
    _refuse_uncommitted(request, location)
    options["failOnDataLoss"] = "true"
    # Without it Spark also reads records of aborted transactions.
    if not request.has("kafka.isolation.level"):
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
        return _lacking({**CLIENT, **other.for_spark()}, chosen)
    if not connection.bootstrap_servers:
        return {}
    # The servers are written as in the profile, since the plan compares them.
    return {**_lacking({**CLIENT, **connection.for_spark()}, chosen), _SERVERS: connection.bootstrap_servers}


def _lacking(options: Mapping[str, str], chosen: Set[str]) -> dict[str, str]:
    return {key: value for key, value in options.items() if key.lower() not in chosen}


def check_values(options: Mapping[str, str], streaming: bool, location: SourceLocation) -> None:
    """Check the values that Spark would refuse later and without a location, or never."""
    chosen = {key.lower(): value for key, value in options.items()}
    for name in _WHOLE_NUMBERS:
        least = 0 if name.startswith("fetchOffset.") else 1
        value = chosen.get(name.lower())
        if value is not None and not (value.strip().isdigit() and int(value) >= least):
            raise _invalid(
                f"`{name}` must be a whole number of at least {least}, not {value!r}", name, location
            )
    for name in _FLAGS:
        value = chosen.get(name.lower())
        if value is not None and value.lower() not in ("true", "false"):
            raise _invalid(f"`{name}` must be true or false, not {value!r}", name, location)
    fewest, most = chosen.get("minoffsetspertrigger"), chosen.get("maxoffsetspertrigger")
    if fewest is not None and most is not None and int(fewest) > int(most):
        problem = f"`minOffsetsPerTrigger` is {fewest}, more than `maxOffsetsPerTrigger`, which is {most}"
        raise _invalid(problem, "minOffsetsPerTrigger", location)
    try:
        Subscription.of(options)
        Start.of(options, default="latest" if streaming else "earliest")
    except ValueError as error:
        raise _invalid(str(error), "", location) from error


def _invalid(problem: str, option: str, location: SourceLocation) -> OptionInvalidError:
    return OptionInvalidError(
        f"a Kafka reader {problem}" if not problem.startswith("`") else f"the Kafka option {problem}",
        location=location,
        remedies=["correct the option"],
        params={"option": option, "problem": problem},
    )


def _refuse_uncommitted(request: ReadRequest, location: SourceLocation) -> None:
    level = request.value("kafka.isolation.level")
    if level is None or level.lower() == "read_committed":
        return
    raise OptionUnsupportedError(
        f"kafka.isolation.level={level} reads records of aborted transactions",
        location=location,
        facts=["`headrace verify` counts committed records only, so it would find additional rows"],
        remedies=["remove the option: flows read with read_committed"],
        params={"option": "kafka.isolation.level", "value": level},
    )
