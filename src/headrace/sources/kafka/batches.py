"""Records of topics as a batch: a range of offsets, with the columns of a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from headrace.runtime.gateway import new_frame
from headrace.runtime.lazy_pyspark import DataFrame, F
from headrace.sources.kafka.subscription import Subscription
from headrace.sources.requests import ReadRequest, SourceRead

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
