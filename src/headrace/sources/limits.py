"""How much one batch reads when the user sets no limit.

A stop waits for the batch that is under way, and a crash makes a flow read one batch again: a batch
without a limit is as long as whatever has piled up. The limits aim at 30 seconds at most on two cores.
"""

from __future__ import annotations

from typing import Final

KAFKA_MAX_OFFSETS_PER_TRIGGER: Final = 500_000
"""Records of a batch: about 9 s cold and 2 to 4 s warm for JSON records of 90 bytes, measured."""

DELTA_MAX_BYTES_PER_TRIGGER: Final = "256m"
"""Spark's own default has no such limit: one version of a rewritten table can hold anything."""

DELTA_MAX_FILES_PER_TRIGGER: Final = 1000
"""Delta's own default, which it drops as soon as a limit of bytes is set."""

FILES_MAX_FILES_PER_TRIGGER: Final = 1000
"""Spark's default has no limit: the first batch of an old folder would read all of it."""
