"""The mark of a Kafka record: another record at the same offset has another mark."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

NO_TIMESTAMP = -1
"""Kafka's timestamp of a record that has none."""


@dataclass(frozen=True)
class RecordMark:
    """The timestamp and the checksum of a record."""

    timestamp_ms: int
    crc: int | None = None  # the CRC-32 of key and value; ``None`` in a commit that has only the timestamp

    @classmethod
    def of(cls, timestamp_ms: int, key: bytes | None, value: bytes | None) -> RecordMark:
        """The mark of a record."""
        crc = 0
        for part in (key, value):
            # The length separates key from value; -1 separates NULL from an empty value.
            crc = crc32((-1 if part is None else len(part)).to_bytes(8, "big", signed=True), crc)
            crc = crc32(part or b"", crc)
        return cls(timestamp_ms, crc)

    def is_other(self, now: RecordMark) -> bool:
        """Whether `now` is the mark of another record. Checksums are compared if both marks have one."""
        both = self.crc is not None and now.crc is not None
        return self.timestamp_ms != now.timestamp_ms or (both and self.crc != now.crc)

    def to_json(self) -> list[int]:
        return [self.timestamp_ms] if self.crc is None else [self.timestamp_ms, self.crc]
