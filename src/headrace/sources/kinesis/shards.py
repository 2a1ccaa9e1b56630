"""A stream as Kinesis describes it, and the pages of a shard after a position."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from headrace import errors
from headrace.sources.kinesis.connection import StreamConnection
from headrace.sources.kinesis.position import KinesisPosition, ShardPosition, shard_id

_SHARD = re.compile(r"shardId-(\d+)")
_MOST_RECORDS: Final = 10_000
"""Records that Kinesis gives with one request at most."""
_PAUSE_S: Final = 0.2
"""Kinesis allows five requests a second for each shard."""
_THROTTLED_S: Final = 60.0
"""How long the request for a page is repeated while Kinesis throttles the shard."""


@dataclass(frozen=True)
class ListedShard:
    number: int
    parents: tuple[int, ...]  # the shard that was split, or the shards that were merged


@dataclass(frozen=True, kw_only=True)
class StreamLook:
    """A stream as Kinesis describes it now."""

    arn: str
    created_ms: int
    retention_ms: int
    now_ms: int  # the time of the server
    shards: Mapping[int, ListedShard]

    @property
    def horizon_ms(self) -> int:
        """The time before which Kinesis may have deleted records."""
        return self.now_ms - self.retention_ms

    @property
    def id(self) -> str:
        """The id of the stream: a stream that is created later with the same name has another one."""
        return f"{self.arn}@{self.created_ms}"


def server_ms(response: Mapping[str, Any]) -> int:
    """The time of an answer by the server's clock."""
    date = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    found = datetime.now(UTC) if date is None else parsedate_to_datetime(date)
    return int(found.timestamp() * 1000)


def look_at(client: Any, connection: StreamConnection, *, lists: bool = True) -> StreamLook:
    """Ask Kinesis to describe the stream. `lists`: whether to ask for its shards, too."""
    with connection.explained():
        found = client.describe_stream_summary(**connection.names)
        summary = found["StreamDescriptionSummary"]
        shards = list_shards(client, connection) if lists else {}
    return StreamLook(
        arn=summary["StreamARN"],
        created_ms=int(summary["StreamCreationTimestamp"].timestamp() * 1000),
        retention_ms=int(summary["RetentionPeriodHours"] * 3_600_000),
        now_ms=server_ms(found),
        shards=shards,
    )


def list_shards(client: Any, connection: StreamConnection) -> dict[int, ListedShard]:
    """The shards that Kinesis still has, including closed ones."""
    found: dict[int, ListedShard] = {}
    request: dict[str, Any] = dict(connection.names)
    while True:
        with connection.explained():
            page = client.list_shards(**request)
        for one in page["Shards"]:
            parents = (one.get("ParentShardId"), one.get("AdjacentParentShardId"))
            number = _number(one["ShardId"])
            found[number] = ListedShard(number, tuple(_number(name) for name in parents if name))
        if not page.get("NextToken"):
            return found
        request = {"NextToken": page["NextToken"]}


def roots_of(listed: Mapping[int, ListedShard]) -> list[int]:
    """The shards whose parents Kinesis no longer has: a new flow starts with them."""
    return [n for n, one in listed.items() if not any(parent in listed for parent in one.parents)]


def join(start: KinesisPosition, listed: Mapping[int, ListedShard]) -> dict[int, ShardPosition]:
    """The shards to read from a position on: without closed shards that Kinesis no longer has, and with
    shards whose parents were read to their end."""
    shards = {n: one for n, one in start.shards.items() if n in listed or not one.closed}
    for number, shard in sorted(listed.items()):
        if number in shards:
            continue
        # Parents that were neither read nor listed have expired before the flow began.
        parents = [start.shards.get(n) for n in shard.parents if n in listed or n in start.shards]
        known = [one for one in parents if one is not None and one.closed]
        if len(known) == len(parents):
            shards[number] = _child(known)
    return shards


def _child(parents: Sequence[ShardPosition]) -> ShardPosition:
    """The start of a shard whose parents were read: its first record, or the time of the flow's start."""
    since, seen, retention = (
        [value for one in parents if (value := getattr(one, name)) is not None]
        for name in ("since_ms", "seen_ms", "retention_ms")
    )
    return ShardPosition(
        since_ms=min(since, default=None),
        seen_ms=min(seen) if seen and len(seen) == len(parents) else None,
        retention_ms=min(retention, default=None),
    )


def _number(name: str) -> int:
    match = _SHARD.fullmatch(name)
    if match is None:
        raise errors.SourceUnsupportedError(
            f"the name of the shard `{name}` is not shardId-NUMBER",
            remedies=["report it, with the name of the server"],
            params={"shard": name},
        )
    return int(match[1])


@dataclass(frozen=True)
class Page:
    """The answer to one request for records."""

    records: Sequence[Mapping[str, Any]]
    # All records that arrived before this time are on this page or on earlier ones. 0 for an empty page that
    # is not the last one: how far it is behind is only known roughly
    until_ms: int
    arrived_ms: int  # when the last record arrived; 0 without records
    is_last: bool  # whether there is no further record now
    is_end: bool  # whether there will never be a further record: the shard is closed
    behind_ms: int


def _arrived_ms(record: Mapping[str, Any]) -> int:
    return int(record["ApproximateArrivalTimestamp"].timestamp() * 1000)


class ShardPages:
    """Reads the pages of a shard from a position on."""

    def __init__(self, client: Any, connection: StreamConnection, shard: int, start: ShardPosition) -> None:
        self.shard = shard
        self._client = client
        self._connection = connection
        self._start = start
        self._last = start.sequence
        self._iterator: str | None = None
        self._next_s = 0.0

    def read(self, limit: int = _MOST_RECORDS) -> Page:
        limit = max(1, min(limit, _MOST_RECORDS))
        with self._connection.explained():
            found = self._get(limit)
        records = found["Records"]
        if records:
            self._last = records[-1]["SequenceNumber"]
        self._iterator = found.get("NextShardIterator")
        behind_ms = int(found.get("MillisBehindLatest") or 0)
        # A full page does not say whether there are more records.
        is_last = behind_ms == 0 and len(records) < limit
        arrived_ms = _arrived_ms(records[-1]) if records else 0
        return Page(
            records=records,
            until_ms=max(server_ms(found) if is_last else 0, arrived_ms),
            arrived_ms=arrived_ms,
            is_last=is_last,
            is_end=self._iterator is None,
            behind_ms=behind_ms,
        )

    def _get(self, limit: int) -> Any:
        """One page. An iterator expires after five minutes; a new one starts after the last record."""
        from botocore.exceptions import ClientError

        deadline = time.monotonic() + _THROTTLED_S
        named = {} if self._connection.arn is None else {"StreamARN": self._connection.arn}
        while True:
            if self._iterator is None:
                self._iterator = self._open()
            if (pause := self._next_s - time.monotonic()) > 0:
                time.sleep(pause)
            self._next_s = time.monotonic() + _PAUSE_S
            try:
                # A stream of another account is named in each request.
                return self._client.get_records(ShardIterator=self._iterator, Limit=limit, **named)
            except ClientError as error:
                # By the code: boto3 makes several classes of one error if threads ask at the same time.
                match error.response["Error"]["Code"]:
                    case "ExpiredIteratorException":
                        self._iterator = None
                    case "ProvisionedThroughputExceededException" if time.monotonic() < deadline:
                        self._next_s = time.monotonic() + 5 * _PAUSE_S
                    case _:
                        raise

    def _open(self) -> str:
        request: dict[str, Any] = {**self._connection.names, "ShardId": shard_id(self.shard)}
        if self._last is not None:
            request |= {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": self._last}
        elif self._start.since_ms is not None:
            moment = datetime.fromtimestamp(self._start.since_ms / 1000, UTC)
            request |= {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": moment}
        else:
            request["ShardIteratorType"] = "TRIM_HORIZON"
        return str(self._client.get_shard_iterator(**request)["ShardIterator"])
