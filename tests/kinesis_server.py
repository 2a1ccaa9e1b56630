"""A server of Kinesis for tests: moto's, with what it lacks of a real one.

Moto moves the records of a closed shard to its children, never ends a closed shard, sends new records to
closed shards, and numbers records from 1. Here, a closed shard keeps its records and its reading ends;
sequence numbers have 56 digits; and pages can be throttled, come empty, or lose their iterator.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import formatdate
from functools import cached_property
from typing import Any

import boto3
from moto.kinesis import models
from moto.kinesis.exceptions import JsonRESTError
from moto.server import ThreadedMotoServer
from werkzeug.serving import WSGIRequestHandler

REGION = "eu-west-1"
LOGIN = {"accessKeyId": "kinesis-test-key", "secretAccessKey": "kinesis-test-hidden"}
_ACCOUNT = "123456789012"
_FIRST = 49590338271490256608559692538361571095921575989136588898
_MAGIC = b"\xf3\x89\x9a\xc2"


class _Thrown(JsonRESTError):
    def __init__(self, code: str) -> None:
        super().__init__(error_type=code, message=f"a test has made the server answer {code}")
        self.code = 500 if code == "InternalFailure" else 400


@dataclass
class Faults:
    """What the next requests for records meet."""

    codes: list[str] = field(default_factory=list)  # errors, one for each request
    empty: int = 0  # pages without records, although more follow
    requests: int = 0  # how many requests for records were answered
    given: int = 0  # how many records were given
    clock_s: float = 0.0  # how far the server's clock is ahead

    def end(self) -> None:
        self.codes, self.empty, self.clock_s = [], 0, 0.0


FAULTS = Faults()


def _get_records(backend: Any, stream_arn: str | None, shard_iterator: str, limit: int | None) -> Any:
    name, shard_id, last = models.decompose_shard_iterator(shard_iterator)
    stream = backend.describe_stream(
        stream_arn=stream_arn, stream_name=None if stream_arn is not None else name
    )
    shard = stream.get_shard(shard_id)
    FAULTS.requests += 1
    if FAULTS.codes:
        raise _Thrown(FAULTS.codes.pop(0))
    if FAULTS.empty:
        FAULTS.empty -= 1
        return shard_iterator, [], 5_000
    records, last, behind = shard.get_records(last, limit)
    FAULTS.given += len(records)
    more = any(number > last for number in shard.records)
    after = models.compose_shard_iterator(name, shard, last)
    return (after if shard.is_open or more else None), records, max(behind, 1) if more else 0


def _put_record(shard: Any, partition_key: str, data: str, explicit_hash_key: str) -> str:
    number = _Numbers.next()
    shard.records[number] = one = models.Record(partition_key, data, number, explicit_hash_key)
    one.created_at_datetime += timedelta(seconds=FAULTS.clock_s)
    one.created_at += FAULTS.clock_s
    return str(number)


class _Numbers:
    last = _FIRST

    @classmethod
    def next(cls) -> int:
        cls.last += 17
        return cls.last


def _shard_for_key(stream: Any, partition_key: str, explicit_hash_key: str) -> Any:
    key = int(
        explicit_hash_key or hashlib.md5(partition_key.encode()).hexdigest(), 10 if explicit_hash_key else 16
    )
    return next(s for s in stream.shards.values() if s.is_open and s.starting_hash <= key <= s.ending_hash)


def _close(stream: Any, *shards: Any) -> None:
    for shard in shards:
        shard.is_open = False


def _add(stream: Any, start: int, end: int, parent: Any, adjacent: Any = None) -> None:
    number = max(s._shard_id for s in stream.shards.values()) + 1
    new = models.Shard(
        number,
        start,
        end,
        parent=parent.shard_id,
        adjacent_parent=None if adjacent is None else adjacent.shard_id,
    )
    stream.shards[new.shard_id] = new


def _split(stream: Any, shard_to_split: str, new_starting_hash_key: str) -> None:
    shard, middle = stream.shards[shard_to_split], int(new_starting_hash_key)
    _add(stream, shard.starting_hash, middle - 1, shard)
    _add(stream, middle, shard.ending_hash, shard)
    _close(stream, shard)


def _merge(stream: Any, shard_to_merge: str, adjacent_shard_to_merge: str) -> None:
    one, two = stream.shards[shard_to_merge], stream.shards[adjacent_shard_to_merge]
    _add(stream, min(one.starting_hash, two.starting_hash), max(one.ending_hash, two.ending_hash), one, two)
    _close(stream, one, two)


def _date(handler: WSGIRequestHandler, timestamp: float | None = None) -> str:
    return formatdate(time.time() + FAULTS.clock_s, usegmt=True)


def _patch() -> None:
    WSGIRequestHandler.date_time_string = _date  # type: ignore[method-assign]
    models.KinesisBackend.get_records = _get_records
    models.Shard.put_record = _put_record
    models.Stream.get_shard_for_key = _shard_for_key
    models.Stream.split_shard = _split
    models.Stream.merge_shards = _merge


@dataclass
class KinesisServer:
    """A running server, and what a producer and an operator do with its streams."""

    url: str

    @cached_property
    def client(self) -> Any:
        return self.in_region(REGION)

    def in_region(self, region: str) -> Any:
        """A client for the streams of another region."""
        return boto3.client(
            "kinesis",
            region_name=region,
            endpoint_url=self.url,
            aws_access_key_id=LOGIN["accessKeyId"],
            aws_secret_access_key=LOGIN["secretAccessKey"],
        )

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a spec that reach it."""
        login = {"access_key_id": LOGIN["accessKeyId"], "secret_access_key": LOGIN["secretAccessKey"]}
        return {"region": REGION, "endpoint": self.url, **login}

    def create(self, name: str, shards: int = 1) -> None:
        self.client.create_stream(StreamName=name, ShardCount=shards)

    def delete(self, name: str) -> None:
        self.client.delete_stream(StreamName=name)

    def put(self, name: str, *records: tuple[str, bytes]) -> None:
        """Put records, each with its partition key."""
        for at in range(0, len(records), 500):
            given = [{"PartitionKey": key, "Data": data} for key, data in records[at : at + 500]]
            done = self.client.put_records(StreamName=name, Records=given)
            assert done["FailedRecordCount"] == 0

    def stream(self, name: str) -> Any:
        """The stream of the server, to change what it holds."""
        return models.kinesis_backends[_ACCOUNT][REGION].streams[name]

    def open_shards(self, name: str) -> list[Any]:
        return [one for one in self.stream(name).shards.values() if one.is_open]

    def split(self, name: str, shard: int = 0) -> None:
        one = self.open_shards(name)[shard]
        middle = (one.starting_hash + one.ending_hash) // 2
        self.client.split_shard(StreamName=name, ShardToSplit=one.shard_id, NewStartingHashKey=str(middle))

    def merge(self, name: str) -> None:
        one, two = sorted(self.open_shards(name), key=lambda s: s.starting_hash)[:2]
        self.client.merge_shards(
            StreamName=name, ShardToMerge=one.shard_id, AdjacentShardToMerge=two.shard_id
        )

    def expire(self, name: str) -> None:
        """Let 25 hours pass, after which all records have expired."""
        FAULTS.clock_s += 25 * 3600
        for shard in self.stream(name).shards.values():
            shard.records = OrderedDict()

    def forget_closed(self, name: str) -> None:
        """Forget closed shards, as Kinesis does when their last records have expired."""
        stream = self.stream(name)
        for key in [key for key, one in stream.shards.items() if not one.is_open]:
            del stream.shards[key]


@contextmanager
def serve() -> Iterator[KinesisServer]:
    _patch()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    try:
        yield KinesisServer(url)
    finally:
        server.stop()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def aggregate(records: Sequence[tuple[str, bytes]]) -> bytes:
    """Records in the format of the Kinesis Producer Library."""
    keys = list(dict.fromkeys(key for key, _ in records))
    message = b"".join(_field(1, key.encode()) for key in keys)
    for key, data in records:
        message += _field(3, _varint(1 << 3) + _varint(keys.index(key)) + _field(3, data))
    return _MAGIC + message + hashlib.md5(message).digest()


__all__ = ["FAULTS", "LOGIN", "REGION", "KinesisServer", "aggregate", "serve"]
