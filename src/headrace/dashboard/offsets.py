"""Asks the broker for the offsets of topics."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.errors import HeadraceError
from headrace.model.kafka_settings import KafkaConnection

ANSWER_S = 1.5  # the longest wait for the broker
_FRESH_S = 2.0  # how long the offsets of a topic are shown again
_SILENT_S = 15.0  # how long a broker that did not answer is not asked again


@dataclass
class Look:
    at: float
    first: Mapping[int, int]
    end: Mapping[int, int]
    rates: Mapping[int, float] = field(default_factory=dict)


@dataclass
class TopicOffsets:
    """Asks the broker for offsets, not more often than a page needs them."""

    _looks: dict[tuple[str, str], Look] = field(default_factory=dict)
    _silence: tuple[float, HeadraceError] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self, connection: KafkaConnection, topic: str) -> Look:
        from headrace.sources.kafka.cluster import KafkaCluster

        key = (connection.bootstrap_servers, topic)
        with self._lock:
            now, before = time.monotonic(), self._looks.get(key)
            if before is not None and now - before.at < _FRESH_S:
                return before
            if self._silence is not None and now - self._silence[0] < _SILENT_S:
                raise self._silence[1]
            try:
                cluster = KafkaCluster(connection, ANSWER_S, asks_once=True)
                first, end = cluster.earliest([topic])[topic], cluster.latest([topic])[topic]
                cluster.close()
            except HeadraceError as error:
                if error.transient:
                    self._silence = now, error
                raise
            rates = before.rates if before is not None else {}
            if before is not None:
                rates = {
                    one: (end[one] - before.end[one]) / (now - before.at) for one in end if one in before.end
                }
            self._looks[key] = Look(now, first, end, rates)
            return self._looks[key]
