"""Measures the records of batches, to choose the limit of the next one."""

from __future__ import annotations

from typing import Final

from headrace.model.ranges import Position, SourceRange
from headrace.sources.kinesis.position import KinesisPosition
from headrace.sources.limits import Meter, Taken
from headrace.state.facts import SourceFacts

FIRST_RECORDS: Final = 50_000
"""Records of a first batch: with 1 kB each, one shard gives them in 25 s, and a plan reads 64 MB at most."""


class KinesisMeter(Meter):
    """Counts records."""

    counts_records = True

    def first_limit(self, facts: SourceFacts, position: Position | None) -> int:
        return FIRST_RECORDS

    def taken(self, one: SourceRange, limit: int, duration_s: float) -> Taken:
        assert isinstance(one.until, KinesisPosition)
        return Taken(one.until.count_since(one.start), duration_s)
