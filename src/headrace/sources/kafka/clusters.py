"""The Kafka clusters that a pipeline reads from, each with one client."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.errors import BrokerUnreachableError, HeadraceError
from headrace.model.connections import KafkaConnection
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.sources.kafka.position import KafkaOffsets
from headrace.sources.kafka.publisher import OffsetPublisher


class KafkaClusters:
    """The clusters of one command or update.

    Args:
        connect: Gives the connection of the profile's cluster; called when it is first asked for.
        publishes: Whether flows publish their offsets under consumer groups.
        timeout_s: The longest that one request may take, in seconds.
        asks_once: Whether a cluster that did not answer is not asked again.
    """

    def __init__(
        self,
        connect: Callable[[], KafkaConnection],
        *,
        publishes: bool = False,
        timeout_s: float = 10.0,
        asks_once: bool = False,
    ) -> None:
        self._connect = connect
        self._publishes = publishes
        self._timeout_s = timeout_s
        self._asks_once = asks_once
        self._lock = threading.Lock()
        self._connection: KafkaConnection | None = None
        self._cluster: KafkaCluster | None = None
        self._publisher: OffsetPublisher | None = None
        self.failure: HeadraceError | None = None
        """Why a lag is not known, if a cluster did not answer."""

    @property
    def connection(self) -> KafkaConnection:
        """How to reach the profile's cluster."""
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            return self._connection

    @property
    def cluster(self) -> KafkaCluster:
        """The profile's cluster.

        Raises:
            BrokerUnreachableError: It is the embedded broker, which is not running.
        """
        connection = self.connection
        if connection.is_embedded:
            raise BrokerUnreachableError(
                "the embedded broker is not running; `headrace broker start` starts it",
                remedies=("headrace broker start",),
            )
        with self._lock:
            if self._cluster is None:
                self._cluster = KafkaCluster(connection, self._timeout_s, asks_once=self._asks_once)
            return self._cluster

    def publish(self, group: str, offsets: KafkaOffsets) -> None:
        """Publish the offsets up to which the commits of a flow reach; a thread does it soon."""
        if not self._publishes:
            return
        cluster = self.cluster
        with self._lock:
            if self._publisher is None:
                self._publisher = OffsetPublisher(cluster)
        self._publisher.offer(group, offsets)

    def close(self) -> None:
        """End threads and close connections."""
        if self._publisher is not None:
            self._publisher.stop()
        if self._cluster is not None:
            self._cluster.close()


def same_servers(one: str, other: str) -> bool:
    """Whether two lists name the same brokers."""

    def split(servers: str) -> set[str]:
        return {server.strip().lower() for server in servers.split(",") if server.strip()}

    return split(one) == split(other)
