"""Offsets under a consumer group, so that Kafka's own tools show each flow's lag.

For monitoring alone: Headrace never reads them back, and a failure to publish is no failure.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.runtime.kafka_client import ClientErrors
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.sources.kafka.position import KafkaOffsets

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_LOG = logging.getLogger(__name__)
INTERVAL_S = 1.0


class OffsetPublisher:
    """Publishes the newest positions of each group from a thread of its own."""

    def __init__(self, cluster: KafkaCluster, interval_s: float = INTERVAL_S) -> None:
        self._cluster: KafkaCluster | None = cluster
        self._interval_s = interval_s
        self._pending: dict[str, KafkaOffsets] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._members: dict[str, tuple[Consumer, ClientErrors]] = {}

    def offer(self, group: str, offsets: KafkaOffsets) -> None:
        """Take the offsets up to which a flow's commits reach."""
        if self._cluster is None:
            return
        with self._lock:
            self._pending[group] = offsets
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace-offsets", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Publish what is pending and end."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        for member, _ in self._members.values():
            member.close()
        self._members = {}

    def _run(self) -> None:
        while True:
            stopping = self._stop.wait(self._interval_s)
            self._publish()
            if stopping:
                return

    def _publish(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
        for group, positions in pending.items():
            if self._cluster is None:
                return
            try:
                self._commit(self._cluster, group, positions)
            except HeadraceError as error:
                _LOG.warning("offsets of group %s were not published: %s", group, error.headline)
                if not error.transient:
                    # A right that is missing is missing in a second, too; it is said once.
                    self._cluster = None

    def _commit(self, cluster: KafkaCluster, group: str, offsets: KafkaOffsets) -> None:
        """Commit offsets with a consumer that does nothing else.

        The admin client could do it, too, but librdkafka ends the whole process when the connection breaks
        while such a request of its admin client waits for the group's coordinator.
        """
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        if group not in self._members:
            client_errors = ClientErrors(cluster.connection)
            settings = {"group.id": group, "enable.auto.commit": False}
            self._members[group] = client_errors.open(Consumer, settings), client_errors
        member, client_errors = self._members[group]
        try:
            member.commit(offsets=[TopicPartition(*one) for one in offsets], asynchronous=False)
        except KafkaException as error:
            raise client_errors.explain(error) or cluster.unreachable(error) from error
