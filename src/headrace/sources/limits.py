"""How much one batch reads when the user sets no limit.

A batch must end before a stop times out, and what a crash makes a flow read again is one batch.
The limits aim at 30 seconds at most on two cores, where Kafka to Delta makes about 60,000 rows a
second cold and Parquet to Delta about 15 MB a second.
"""

from __future__ import annotations

from typing import Final

KAFKA_MAX_OFFSETS_PER_TRIGGER: Final = 500_000
"""Records of a batch: 2 s warm and 9 s cold for records of 100 bytes, under 30 s for 1 KB."""

DELTA_MAX_BYTES_PER_TRIGGER: Final = "256m"
"""Spark's own default has no such limit: one version of a rewritten table can hold anything."""

DELTA_MAX_FILES_PER_TRIGGER: Final = 1000
"""Delta's own default, which it drops as soon as a limit of bytes is set."""

FILES_MAX_FILES_PER_TRIGGER: Final = 1000
"""Spark's default has no limit: the first batch of an old folder would read all of it."""
