"""How much the batches of a Kafka source read, to choose how much the next one may read."""

from __future__ import annotations

from headrace.model.kafka_settings import KafkaConnection
from headrace.model.ranges import Position, SourceRange
from headrace.sources.kafka.facts import KafkaFacts
from headrace.sources.kafka.position import KafkaOffsets
from headrace.sources.kafka.record_size import RecordSizes
from headrace.sources.limits import LEAST_RECORDS, Taken, first_limit
from headrace.sources.meter import Meter
from headrace.state.facts import SourceFacts

_BACKLOG = 20
"""Records from which on a backlog is worth a sample."""


class KafkaMeter(Meter):
    """Counts records; samples say how large those to come are."""

    counts_records = True
    least = LEAST_RECORDS

    def __init__(self, connection: KafkaConnection) -> None:
        self._sizes = RecordSizes(connection)
        self._record_bytes: float | None = None

    @property
    def record_bytes(self) -> float | None:
        return self._record_bytes

    def first_limit(self, facts: SourceFacts, position: Position | None) -> int:
        assert isinstance(facts, KafkaFacts)
        ends = KafkaOffsets(facts.latest)
        start = position if isinstance(position, KafkaOffsets) else KafkaOffsets(facts.earliest)
        backlog: dict[str, dict[int, int]] = {}
        count = 0
        for topic, partition, offset in start:
            left = (ends.get(topic, partition) or 0) - offset
            if left > 0:
                backlog.setdefault(topic, {})[partition] = offset
                count += left
        if count >= _BACKLOG:
            self._record_bytes = self._sizes.sample(backlog)
        return first_limit(self._record_bytes)

    def taken(self, one: SourceRange, limit: int, duration_s: float) -> Taken:
        assert isinstance(one.until, KafkaOffsets)
        amount = one.until.count_since(one.start)
        # A flow that keeps up has no records to come.
        if amount >= limit // 2:
            self._record_bytes = self._sizes.sample(one.until.offsets) or self._record_bytes
        return Taken(amount, duration_s, self._record_bytes)

    def close(self) -> None:
        self._sizes.close()
