"""What a reader of Kafka says: its connection is completed, and its values are looked at beforehand."""

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
    """What a reader's connection lacks.

    A reader that names no cluster, or ``embedded``, gets the profile's; one that names the profile's
    own keeps what it says and gets the rest; one that names another cluster stays as it is.
    """
    chosen = {key.lower(): value for key, value in options.items()}
    servers = chosen.get(_SERVERS, EMBEDDED)
    ours = connection.for_spark()
    if not connection.bootstrap_servers or not (
        servers == EMBEDDED or same_servers(servers, connection.bootstrap_servers)
    ):
        return {}
    lacking = {key: value for key, value in {**CLIENT, **ours}.items() if key.lower() not in chosen}
    # The address itself is written as the profile has it, which is what the plan compares.
    return {**lacking, _SERVERS: connection.bootstrap_servers}


def check_values(options: Mapping[str, str], streaming: bool, location: SourceLocation) -> None:
    """Look at the values that Spark would refuse later and without a place, or never.

    Raises:
        OptionInvalidError: One cannot be.
    """
    chosen = {key.lower(): value for key, value in options.items()}
    for name in _WHOLE_NUMBERS:
        least = 0 if name.startswith("fetchOffset.") else 1
        value = chosen.get(name.lower())
        if value is not None and not (value.strip().isdigit() and int(value) >= least):
            raise _invalid(f"`{name}` is a whole number of at least {least}, not {value!r}", name, location)
    for name in _FLAGS:
        value = chosen.get(name.lower())
        if value is not None and value.lower() not in ("true", "false"):
            raise _invalid(f"`{name}` is true or false, not {value!r}", name, location)
    fewest, most = chosen.get("minoffsetspertrigger"), chosen.get("maxoffsetspertrigger")
    if fewest is not None and most is not None and int(fewest) > int(most):
        words = f"`minOffsetsPerTrigger` is {fewest}, more than `maxOffsetsPerTrigger`, which is {most}"
        raise _invalid(words, "minOffsetsPerTrigger", location)
    try:
        Subscription.of(options)
        Start.of(options, default="latest" if streaming else "earliest")
    except ValueError as error:
        raise _invalid(str(error), "", location) from error


def _invalid(problem: str, option: str, location: SourceLocation) -> OptionInvalidError:
    return OptionInvalidError(
        f"a reader of Kafka {problem}" if not problem.startswith("`") else f"Kafka's option {problem}",
        location=location,
        remedies=["correct the option"],
        params={"option": option, "problem": problem},
    )
