"""A flow's query as a batch over a given range of Kafka offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from headrace.model.declarations import StreamingFlow
from headrace.plan.evaluate import evaluate
from headrace.plan.modes import Bounded
from headrace.plan.stages import Plan
from headrace.sources.kafka.cluster import Offsets
from headrace.sources.kafka.subscription import Subscription
from headrace.sources.requests import ReadRequest, SourceRead

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KAFKA_COLUMNS: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT"
)
KAFKA_HEADERS: Final = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"

_OWN = "headrace."
_STREAMS_ONLY = frozenset(
    {
        *("maxoffsetspertrigger", "minoffsetspertrigger", "maxbytespertrigger", "maxtriggerdelay"),
        *("maxfilespertrigger", "maxfileage", "latestfirst", "cleansource", "sourcearchivedir"),
    }
)
_CHOICE_OF_OFFSETS = frozenset(
    {
        *("subscribe", "subscribepattern", "assign", "startingoffsets", "endingoffsets"),
        *("startingtimestamp", "endingtimestamp", "startingoffsetsbytimestamp", "endingoffsetsbytimestamp"),
        "startingoffsetsbytimestampstrategy",
    }
)


def evaluate_between(
    session: SparkSession, flow: StreamingFlow, plan: Plan, start: Offsets, until: Offsets
) -> DataFrame:
    """A flow's query as a batch over a range of its Kafka records.

    Tables that the query joins are read at their current version. All streams of the flow must read Kafka.

    Args:
        session: The session to build it in.
        flow: The flow.
        plan: The plan that it belongs to.
        start: The first offset of each partition, inclusive.
        until: The last offset of each partition, exclusive; other partitions are not read.
    """

    def read(source: SourceRead) -> DataFrame | None:
        if source.request.format != "kafka":
            return None
        return read_kafka_between(source, start, until)

    return evaluate(session, flow, plan, Bounded(sources=read))


def read_kafka_between(read: SourceRead, start: Offsets, until: Offsets) -> DataFrame:
    """The records of a Kafka reader between offsets, as a batch."""
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
        return empty_kafka(read)
    options = {
        key: value
        for key, value in batch_options(read.request).items()
        if key.lower() not in _CHOICE_OF_OFFSETS
    }
    return (
        read.session.read.format("kafka")
        .options(**options)
        .option("assign", json.dumps({topic: [int(p) for p in parts] for topic, parts in first.items()}))
        .option("startingOffsets", json.dumps(first))
        .option("endingOffsets", json.dumps(last))
        .load()
    )


def empty_kafka(read: SourceRead) -> DataFrame:
    """An empty DataFrame with the columns of a Kafka reader."""
    return read.session.createDataFrame([], kafka_columns(read.request))


def kafka_columns(request: ReadRequest) -> str:
    """The columns of a Kafka reader."""
    with_headers = (request.value("includeHeaders") or "").lower() == "true"
    return f"{KAFKA_COLUMNS}, {KAFKA_HEADERS}" if with_headers else KAFKA_COLUMNS


def batch_options(request: ReadRequest) -> Mapping[str, str]:
    """A reader's options without those of streams and those of Headrace."""
    return {
        key: value
        for key, value in request.options.items()
        if key.lower() not in _STREAMS_ONLY and not key.startswith(_OWN)
    }
