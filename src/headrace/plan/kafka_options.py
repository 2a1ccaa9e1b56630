"""Options of Kafka readers: the connection is added, and values are checked before Spark gets them."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import OptionInvalidError, SourceLocation
from headrace.model.connections import EMBEDDED, KafkaConnection
from headrace.sources.kafka.clusters import same_servers
from headrace.sources.kafka.read import ALLOW_NO_TOPICS, CLIENT
from headrace.sources.kafka.starting import Start
from headrace.sources.kafka.subscription import Subscription

_SERVERS = "kafka.bootstrap.servers"
_WHOLE_NUMBERS = (
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "minPartitions", "maxRecordsPerPartition"),
    *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
)
_FLAGS = ("includeHeaders", "failOnDataLoss", ALLOW_NO_TOPICS)


def connection_options(options: Mapping[str, str], connection: KafkaConnection) -> dict[str, str]:
    """The options of the connection to add to a reader.

    A reader without a cluster, or with ``embedded``, gets the profile's. A reader that names the profile's
    cluster keeps its options and gets the others. A reader of another cluster gets nothing.
    """
    chosen = {key.lower(): value for key, value in options.items()}
    servers = chosen.get(_SERVERS, EMBEDDED)
    ours = connection.for_spark()
    if not connection.bootstrap_servers or not (
        servers == EMBEDDED or same_servers(servers, connection.bootstrap_servers)
    ):
        return {}
    lacking = {key: value for key, value in {**CLIENT, **ours}.items() if key.lower() not in chosen}
    # The servers are written as in the profile, since the plan compares them.
    return {**lacking, _SERVERS: connection.bootstrap_servers}


def check_values(options: Mapping[str, str], streaming: bool, location: SourceLocation) -> None:
    """Check the values that Spark would refuse later and without a location, or never.

    Raises:
        OptionInvalidError: A value is invalid.
    """
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
