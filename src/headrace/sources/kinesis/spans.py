"""The rows of a shard between two positions, read again as they were planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from headrace import errors
from headrace.sources.kinesis.aggregated import take_apart
from headrace.sources.kinesis.connection import StreamConnection
from headrace.sources.kinesis.position import ShardPosition, shard_id
from headrace.sources.kinesis.shards import ShardPages

FORMAT: Final = "headrace-kinesis"
LIMIT: Final = "maxRecordsPerTrigger"
STARTS: Final = "headrace.starts"
"""An option of Headrace: ``earliest``, ``latest``, or a time in milliseconds."""
RANGE: Final = "headrace.range"
"""The option of a batch read: the shards with their starts and ends, as JSON."""

SCHEMA: Final = (
    "stream STRING, shard INT, record_number BIGINT, shard_id STRING, sequence_number STRING, "
    "sub_sequence_number BIGINT, partition_key STRING, approximate_arrival_timestamp TIMESTAMP, value BINARY"
)


_LOOKS: Final = 5
"""How many pages may say that a shard has no further record before a planned record counts as lost."""


class Row(NamedTuple):
    """A record as `SCHEMA` has it."""

    stream: str
    shard: int
    record_number: int
    shard_id: str
    sequence_number: str
    sub_sequence_number: int
    partition_key: str
    approximate_arrival_timestamp: int  # in microseconds
    value: bytes


def rows_of(connection: StreamConnection, shard: int, record: Mapping[str, Any], number: int) -> list[Row]:
    """The rows of a Kinesis record. `number`: the record number of the first row."""
    arrived = round(record["ApproximateArrivalTimestamp"].timestamp() * 1_000_000)
    return [
        Row(
            connection.stream,
            shard,
            number + sub,
            shard_id(shard),
            record["SequenceNumber"],
            sub,
            one.partition_key,
            arrived,
            one.data,
        )
        for sub, one in enumerate(take_apart(record["Data"], record["PartitionKey"]))
    ]


def read_span(
    client: Any, connection: StreamConnection, shard: int, start: ShardPosition, end: ShardPosition
) -> Iterator[Row]:
    """The rows of a shard from a start to an end, which were all there when the range was planned.

    Raises:
        OffsetsExpiredError: Kinesis does not give exactly these records any more.
    """
    pages = ShardPages(client, connection, shard, start)
    number, looks = start.number, _LOOKS
    while number < end.number:
        page = pages.read(end.number - number)
        for record in page.records:
            found = rows_of(connection, shard, record, number)
            yield from (row for row in found if start.first <= row.record_number < end.number)
            number += len(found)
            sequence = record["SequenceNumber"]
            # Parts of a range end at a number alone.
            is_over = end.sequence is not None and int(sequence) >= int(end.sequence)
            is_planned = end.sequence is None or (sequence, number) == (end.sequence, end.number)
            if (is_over or number >= end.number) and not is_planned:
                raise _gone(connection, shard, start, end, number)
            if number >= end.number:
                return
        if page.is_end or page.is_last:
            looks -= 1
            if page.is_end or not looks:
                raise _gone(connection, shard, start, end, number)


def _gone(
    connection: StreamConnection, shard: int, start: ShardPosition, end: ShardPosition, number: int
) -> errors.OffsetsExpiredError:
    planned, found = end.number - start.number, number - start.number
    return errors.OffsetsExpiredError(
        f"the stream `{connection.stream}` no longer has the {planned:,} records of {shard_id(shard)} that a "
        "batch has planned to read",
        facts=(
            f"records {start.number:,} to {end.number - 1:,}, up to the sequence number {end.sequence}; "
            f"found {found:,} there",
            "the batch was not committed",
        ),
        remedies=(
            "leave out the planned batch, and continue with what the stream still has:   headrace reset FLOW",
            "keep records for longer from now on:   aws kinesis increase-stream-retention-period",
        ),
        params={"stream": connection.stream, "shard": shard, "from": start.number, "until": end.number},
    )
