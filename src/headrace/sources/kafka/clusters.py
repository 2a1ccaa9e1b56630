"""The Kafka clusters that a pipeline reads from, each with one client, and those that its spec maps."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from headrace.errors import (
    BrokerUnreachableError,
    HeadraceError,
    OptionInvalidError,
    SourceLocation,
    TopicNotFoundError,
)
from headrace.model.kafka_settings import EMBEDDED, KafkaConnection
from headrace.model.project import AmbiguousBrokersError, ProjectSettings
from headrace.model.texts import find_option
from headrace.runtime.kafka_client import ClientErrors, confluent
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.sources.kafka.position import KafkaOffsets
from headrace.sources.requests import Asking, Client

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
                    # A missing permission does not come back by itself: log it once.
                    self._cluster = None

    def _commit(self, cluster: KafkaCluster, group: str, offsets: KafkaOffsets) -> None:
        """Commit offsets with a consumer that does nothing else.

        The admin client could do it, too, but librdkafka ends the whole process when the connection breaks
        while such a request of its admin client waits for the group's coordinator.
        """
        if group not in self._members:
            client_errors = ClientErrors(cluster.connection)
            settings = {"group.id": group, "enable.auto.commit": False}
            self._members[group] = client_errors.open(confluent.Consumer, settings), client_errors
        member, client_errors = self._members[group]
        try:
            member.commit(offsets=[confluent.TopicPartition(*one) for one in offsets], asynchronous=False)
        except confluent.KafkaException as error:
            raise client_errors.explain(error) or cluster.unreachable(error) from error


SERVERS = "servers"
"""The key of a source's identity for a cluster that is not the profile's: its brokers."""

_OPTION = "kafka."
_SERVERS_OPTION = "kafka.bootstrap.servers"


class KafkaClusters(Client):
    @property
    def refusal(self) -> HeadraceError | None:
        return None if isinstance(self.failure, TopicNotFoundError) else super().refusal

    def __init__(
        self,
        connect: Callable[[], KafkaConnection],
        *,
        publishes: bool = False,
        timeout_s: float = 10.0,
        asks_once: bool = False,
        named: Sequence[KafkaConnection] = (),
    ) -> None:
        self._connect = connect
        self._publishes = publishes
        self._timeout_s = timeout_s
        self._asks_once = asks_once
        self._lock = threading.Lock()
        self._own: KafkaConnection | None = None
        self._others = list(named)  # with the logins of the spec
        self._clusters: dict[str, KafkaCluster] = {}
        self._publishers: dict[str, OffsetPublisher] = {}

    @classmethod
    def open(cls, asking: Asking) -> Self:
        return cls(
            lambda: asking.settings().kafka,
            publishes=asking.publishes,
            timeout_s=asking.timeout_s,
            asks_once=asking.asks_once,
            named=asking.settings().brokers.named,
        )

    def reach(self, other: KafkaConnection | None) -> KafkaCluster:
        """A cluster, which `at` finds from now on."""
        if other is not None:
            with self._lock:
                self._others = [one for one in self._others if one != other] + [other]
            return self._cluster(other)
        with self._lock:
            connection = self._own = self._own or self._connect()
        if connection.is_embedded:
            raise BrokerUnreachableError(
                "the embedded broker is not running", remedies=("start it:   headrace broker start",)
            )
        return self._cluster(connection)

    def at(self, servers: str | None) -> KafkaCluster:
        """A cluster by its brokers; one that no source has reached is asked without a login."""
        if servers is None:
            return self.reach(None)
        return self._cluster(find_connection(servers, self._others) or no_login(servers))

    def knows(self, servers: str | None) -> bool:
        return servers is None or find_connection(servers, self._others) is not None

    def publish(self, group: str, offsets: KafkaOffsets, servers: str | None) -> None:
        """Publish the offsets up to which the commits of a flow reach; a thread does it soon."""
        if not self._publishes:
            return
        cluster, key = self.at(servers), servers or ""
        with self._lock:
            if key not in self._publishers:
                self._publishers[key] = OffsetPublisher(cluster)
        self._publishers[key].offer(group, offsets)

    def close(self) -> None:
        for publisher in self._publishers.values():
            publisher.stop()
        for cluster in self._clusters.values():
            cluster.close()

    def _cluster(self, connection: KafkaConnection) -> KafkaCluster:
        key = repr(sorted(connection.settings.items()))
        with self._lock:
            if key not in self._clusters:
                self._clusters[key] = KafkaCluster(connection, self._timeout_s, asks_once=self._asks_once)
            return self._clusters[key]


def other_cluster(options: Mapping[str, str], own: KafkaConnection) -> KafkaConnection | None:
    """The connection of a reader that names another cluster than the profile's; ``None`` for the others.

    It has the reader's own `kafka.*` options. Nothing of the profile's connection is sent there.
    """
    servers = brokers_of(options)
    if not servers or servers == EMBEDDED or same_servers(servers, own.bootstrap_servers):
        return None
    return reader_connection(options)


def reader_connection(options: Mapping[str, str]) -> KafkaConnection:
    chosen = {key.lower(): value for key, value in options.items()}
    return KafkaConnection(
        {key.removeprefix(_OPTION): value for key, value in chosen.items() if key.startswith(_OPTION)}
    )


def brokers_of(options: Mapping[str, str]) -> str:
    """The brokers that a reader names; empty if it names none."""
    return find_option(options, _SERVERS_OPTION) or ""


def find_connection(servers: str, known: list[KafkaConnection]) -> KafkaConnection | None:
    """The connection of a cluster: it names the same brokers, or one of them."""
    named = _split(servers)
    common = [one for one in known if named & _split(one.bootstrap_servers)]
    return max(common, key=lambda one: _split(one.bootstrap_servers) == named, default=None)


def no_login(servers: str) -> KafkaConnection:
    return KafkaConnection({"bootstrap.servers": servers})


def normalized(servers: str) -> str:
    return ",".join(sorted(_split(servers)))


def at_servers(servers: str | None) -> str:
    """The words that name a cluster after its topics; empty for the profile's cluster."""
    return "" if servers is None else f" at {servers}"


def same_servers(one: str, other: str) -> bool:
    return _split(one) == _split(other)


def _split(servers: str) -> set[str]:
    return {server.strip().lower() for server in servers.split(",") if server.strip()}


_CONNECTION = re.compile(
    r"(?:kafka\.)?(?:bootstrap\.servers|security\.protocol|(?:sasl|ssl)\..*)", re.IGNORECASE
)
"""The options that only belong to the connection in the file; some files lack Spark's prefix."""
_PROTOCOL = "kafka.security.protocol"


@dataclass(frozen=True)
class MappedOptions:
    """The options of a reader or a sink with the connection that replaces its own."""

    options: Mapping[str, str]
    note: str | None = None


def map_connection(
    options: Mapping[str, str], settings: ProjectSettings, location: SourceLocation
) -> MappedOptions | None:
    """The options with the connection of the spec in place of their own; ``None`` if they keep their own."""
    servers = brokers_of(options)
    kept = {name: value for name, value in options.items() if not _CONNECTION.fullmatch(name)}
    if servers == EMBEDDED:
        return MappedOptions(kept)
    try:
        found = settings.brokers.find(servers)
    except AmbiguousBrokersError as error:
        raise OptionInvalidError(
            f"the list of brokers `{servers}` is ambiguous",
            location=location,
            facts=[str(error)],
            remedies=["map all addresses of a cluster to one connection"],
            params={"option": "kafka.bootstrap.servers", "value": servers},
        ) from error
    if found is None:
        return None
    note = f"`{servers}` has the connection of {found.name} (kafka.brokers: {found.rule})"
    if found.connection is None:
        return MappedOptions(kept, note)
    chosen = {name.lower() for name in kept}
    given = {k: v for k, v in found.connection.for_spark().items() if k.lower() not in chosen}
    return MappedOptions({**kept, **given}, note)


def check_protocol(options: Mapping[str, str], settings: ProjectSettings, location: SourceLocation) -> None:
    """Refuse a security protocol that the profile's connection to the same brokers does not have: Spark's
    client would wait for the broker for minutes."""
    protocol = find_option(options, _PROTOCOL)
    servers, own = brokers_of(options), settings.kafka
    if protocol is None or protocol.upper() == own.protocol:
        return
    if servers and not same_servers(servers, own.bootstrap_servers):
        return
    remedies = ["remove the options kafka.security.protocol, kafka.sasl.* and kafka.ssl.* of the file"]
    if servers:
        remedies.insert(0, f'add to the spec:   kafka: {{brokers: {{"{servers}": {EMBEDDED}}}}}')
    if not own.is_embedded:
        remedies.append(f"or, if the brokers expect it, write kafka: {{security.protocol: {protocol}}}")
    raise OptionInvalidError(
        f"the file asks {servers or 'the brokers of the profile'} for {protocol}, but the connection of the "
        f"profile `{settings.profile}` is {own.protocol}",
        location=location,
        remedies=remedies,
        params={"option": _PROTOCOL, "value": protocol},
    )
