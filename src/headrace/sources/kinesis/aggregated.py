"""Takes apart aggregates: records that the Kinesis Producer Library has put into one Kinesis record.

The format: four magic bytes, a protobuf message ``AggregatedRecord``, and the MD5 of that message. If the sum
or the message is wrong, the library did not write the record, and it counts as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import md5
from typing import Final

_MAGIC: Final = b"\xf3\x89\x9a\xc2"
_SUM_BYTES: Final = 16


@dataclass(frozen=True)
class UserRecord:
    """A record as its producer has sent it."""

    partition_key: str
    data: bytes


def take_apart(data: bytes, partition_key: str) -> list[UserRecord]:
    """The records of an aggregate; of any other Kinesis record, the record itself.

    Example:
        >>> take_apart(b"one", "key")
        [UserRecord(partition_key='key', data=b'one')]
    """
    message, found_sum = data[len(_MAGIC) : -_SUM_BYTES], data[-_SUM_BYTES:]
    if not data.startswith(_MAGIC) or len(data) < len(_MAGIC) + _SUM_BYTES:
        return [UserRecord(partition_key, data)]
    if md5(message, usedforsecurity=False).digest() != found_sum:
        return [UserRecord(partition_key, data)]
    try:
        found = list(_records(message))
    except (ValueError, IndexError):
        found = []
    # An empty message, or one with other fields, is data of the user.
    return found or [UserRecord(partition_key, data)]


def _records(message: bytes) -> Iterator[UserRecord]:
    keys: list[str] = []
    records: list[bytes] = []
    for number, value in _fields(message):
        if isinstance(value, int) or number not in (1, 2, 3):
            raise ValueError(f"the field {number} is not one of an aggregate")
        if number == 1:
            keys.append(value.decode())
        elif number == 3:
            records.append(value)
    for record in records:
        fields = dict(_fields(record))
        key, data = fields.get(1), fields.get(3)
        if not isinstance(key, int) or not isinstance(data, bytes):
            raise ValueError("a record without its key or its data")
        yield UserRecord(keys[key], data)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message, as their numbers and values; an aggregate has numbers and bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value, at = _varint(message, at)
        if tag & 7 == 2:
            if at + value > len(message):
                raise ValueError("the message ends within a field")
            yield tag >> 3, message[at : at + value]
            at += value
        elif tag & 7 == 0:
            yield tag >> 3, value
        else:
            raise ValueError(f"the wire type {tag & 7} is not one of an aggregate")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at an index of a message, and the index after it."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
