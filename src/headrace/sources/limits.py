"""How much one batch reads when the user sets no limit.

A stop waits for the batch that is under way, and a crash makes a flow read one batch again: a batch
without a limit is as long as whatever has piled up. A fixed limit is wrong for somebody: what is short
for records of 100 bytes takes hours for records of 5 MB. So the first limit goes by the size of the
records, and each further one by what the batch before has taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KAFKA_MAX_OFFSETS_PER_TRIGGER: Final = 500_000
"""Records of a first batch: about 9 s cold and 2 to 4 s warm for JSON records of 90 bytes, measured."""

DELTA_MAX_BYTES_PER_TRIGGER: Final = 64 << 20
"""Bytes of a first batch. Spark's own default has no such limit: one version of a table holds anything."""

DELTA_MAX_FILES_PER_TRIGGER: Final = 1000
"""Delta's own default, which it drops as soon as a limit of bytes is set."""

FILES_MAX_FILES_PER_TRIGGER: Final = 1000
"""Spark's default has no limit: the first batch of an old folder would read all of it."""

FILES_MAX_BYTES_PER_TRIGGER: Final = 256 * 1024 * 1024
"""Of files so large that a thousand of them would be more; Spark takes one of the two limits."""

FILES_MAX_AGE: Final = "36500d"
"""Spark's default passes over files that are a week older than the newest one, without a word."""

BATCH_S: Final = 10.0
"""Seconds that a batch of a backlog is to take: longer ones gain nothing more, measured."""

_FIRST_BYTES = 128 << 20
"""Bytes of a first batch from Kafka: nobody knows yet how long the query takes over a record."""

_MOST_BYTES = 256 << 20
"""Bytes of any batch, before compression for Kafka and after it for tables."""

_GROWTH = 4.0
"""How much more the next batch may take at most: the measure of one batch says little about ten."""

_FULL = 0.8
"""Part of its limit from which on a batch was cut short by it."""


@dataclass(frozen=True)
class Taken:
    """What a batch has taken of one source.

    Args:
        amount: Records of Kafka, bytes of a table, files or bytes of a folder; 0 where that cannot be told.
        duration_s: How long the batch took.
        record_bytes: Bytes of a record or file to come, where that is known.
    """

    amount: int
    duration_s: float
    record_bytes: float | None = None


def first_limit(record_bytes: float | None) -> int:
    """The records that the first batch of a backlog may take."""
    if record_bytes is None:
        return KAFKA_MAX_OFFSETS_PER_TRIGGER
    return _bounded(_FIRST_BYTES / record_bytes, KAFKA_MAX_OFFSETS_PER_TRIGGER)


def next_limit(limit: int, taken: Taken) -> int:
    """What the next batch may take, in the unit of ``limit``.

    A batch that came to an end before its limit says how fast the query is and not that there is more:
    it never raises the limit.
    """
    wanted = float(limit)
    affordable = taken.amount * BATCH_S / max(taken.duration_s, 0.001)
    if taken.amount >= _FULL * limit:
        wanted = min(affordable, _GROWTH * limit)
    elif taken.amount > 0 and taken.duration_s > BATCH_S:
        wanted = affordable
    most = _MOST_BYTES / (taken.record_bytes or 1.0)
    return _bounded(wanted, most)


def _bounded(wanted: float, most: float) -> int:
    return max(1, int(min(wanted, most)))
