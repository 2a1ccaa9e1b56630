"""The broker's side: which offsets really exist. Asked through librdkafka, read committed."""

from __future__ import annotations

import concurrent.futures
import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import BrokerUnreachableError, HeadraceError
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.ranges import NO_TIMESTAMP, RecordMark
from headrace.verify.source_range import Partition, Spans

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

_AT_ONCE = 10_000
_UNTIMED = 0
"""librdkafka's type of a timestamp that a record does not have."""

_CONNECT_S = 2.0
_PAUSE_S = 0.1
_PASSING = {"LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID"}

Explain = Callable[[Sequence[str]], HeadraceError | None]
"""Finds the coded error behind a client's report; ``None`` for a passing error."""

_TURN_S = 0.02
_SILENCE_S = 2.0
"""Not every client that gets nowhere reports it."""

_EXPLAIN_S = 1.0
"""Seconds between two explanations: each looks at the broker's listeners."""

_SILENT = logging.getLogger("headrace.librdkafka.verify")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


def unexplained(reported: Sequence[str]) -> HeadraceError | None:
    """No explanation: every error counts as a missing answer."""
    return None


class BrokerRequests:
    """Makes clients, listens to what they report, and waits for their answers."""

    def __init__(self, connection: KafkaConnection, explain: Explain = unexplained) -> None:
        self.connection = connection
        self._explain = explain
        self._said: list[str] = []
        self._lost = False
        self._explain_at = 0.0

    def open(self, kind: Callable[..., Any], **settings: Any) -> Any:
        from confluent_kafka import KafkaException

        every = {**self.connection.for_librdkafka(), "log_level": "0", "error_cb": self._take, **settings}
        try:
            return kind(every, logger=_SILENT)
        except KafkaException as error:
            raise self.explained(error) or error from error

    def wait(self, future: concurrent.futures.Future[Any], client: Any, timeout_s: float) -> Any:
        began = time.monotonic()
        while not future.done():
            concurrent.futures.wait([future], _TURN_S)
            client.poll(0)
            waited_s = time.monotonic() - began
            lost = self._lost or waited_s > _SILENCE_S
            if not future.done() and lost and time.monotonic() >= self._explain_at:
                if (found := self._explain(self._said)) is not None:
                    raise found
                self._explain_at = time.monotonic() + _EXPLAIN_S
            if waited_s > timeout_s:
                raise TimeoutError(f"no answer within {timeout_s:g} s")
        return future.result()

    def explained(self, error: BaseException) -> HeadraceError | None:
        """The coded error behind a client's exception."""
        first = error.args[0] if error.args else error
        name = getattr(first, "name", None)
        code = name() if callable(name) else type(error).__name__
        return self._explain([*self._said, f"{code}\n{first}"])

    def _take(self, error: KafkaError) -> None:
        self._lost = self._lost or error.name() in ("_ALL_BROKERS_DOWN", "_AUTHENTICATION", "_SSL")
        if error.name() != "_ALL_BROKERS_DOWN":
            self._said = [*self._said[-4:], f"{error.name()}\n{error.str()}"]


@dataclass(frozen=True)
class HeldOffsets:
    spans: Mapping[Partition, Spans] = field(default_factory=dict)
    marks: Mapping[Partition, Mapping[int, RecordMark]] = field(default_factory=dict)


@dataclass(frozen=True)
class Topic:
    id: str  # kafka's id of the topic; another topic of the same name has another one
    low: Mapping[int, int]  # the first offset that each partition still holds
    high: Mapping[int, int]  # the offset after the last committed record of each partition
    compacted: bool | None = None  # whether the broker may drop a record before its time; ``None``: not known


def load_topics(
    connection: KafkaConnection, names: Iterable[str], timeout_s: float, explain: Explain = unexplained
) -> dict[str, Topic | None]:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    if connection.is_embedded:
        raise BrokerUnreachableError(
            "the embedded broker is not running", remedies=["start it:   headrace broker start"], params={}
        )
    _connection_errors(connection)
    wanted = sorted(set(names))
    deadline = time.monotonic() + timeout_s
    asking = BrokerRequests(connection, explain)
    admin = asking.open(AdminClient)
    while True:
        try:
            return _topics(admin, asking, wanted, timeout_s)
        except (KafkaException, TimeoutError) as error:
            # A topic that was created just now, or that is moving, has no leader for a moment.
            passing = isinstance(error, KafkaException) and error.args[0].name() in _PASSING
            if not passing or time.monotonic() > deadline:
                raise asking.explained(error) or _unreachable(connection, error) from error
            time.sleep(_PAUSE_S)


def _topics(
    admin: Any, asking: BrokerRequests, names: list[str], timeout_s: float
) -> dict[str, Topic | None]:
    described = _describe(admin, asking, names, timeout_s)
    partitions = {
        name: [partition.id for partition in topic.partitions]
        for name, topic in described.items()
        if topic is not None
    }
    low, high = _watermarks(admin, asking, partitions, timeout_s)
    compacted = _compacted(admin, list(partitions), timeout_s)
    return {
        name: None
        if topic is None
        else Topic(str(topic.topic_id), low.get(name, {}), high.get(name, {}), compacted.get(name))
        for name, topic in described.items()
    }


def load_offsets(
    connection: KafkaConnection,
    asked: Mapping[Partition, Spans],
    stall_s: float,
    explain: Explain = unexplained,
    *,
    watched: Mapping[Partition, Set[int]] | None = None,
    take: Callable[[Message], None] | None = None,
) -> HeldOffsets:
    """The offsets within ``asked`` that hold a committed record, and no marker, aborted or compacted one."""
    from confluent_kafka import Consumer, KafkaException

    found: dict[Partition, list[Spans]] = {key: [] for key in asked}
    marks: dict[Partition, dict[int, RecordMark]] = {key: {} for key in watched or {}}
    todo = {key: spans.pairs() for key, spans in asked.items()}
    asking = BrokerRequests(connection, explain)
    settings: dict[str, Any] = {
        "group.id": "headrace-verify",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
    }
    try:
        consumer = asking.open(Consumer, **settings)
        try:
            while todo := {key: spans for key, spans in todo.items() if spans}:
                wanted = {key: spans.pop(0) for key, spans in todo.items()}
                _read_round(consumer, wanted, found, stall_s, watched or {}, marks, take)
        finally:
            consumer.close()
    except (KafkaException, TimeoutError) as error:
        raise asking.explained(error) or _unreachable(connection, error) from error
    spans = {key: Spans.joined(several).merged() for key, several in found.items()}
    return HeldOffsets(spans, marks)


def _connection_errors(connection: KafkaConnection) -> None:
    """Fail at once if no server accepts connections: librdkafka would try for the whole timeout."""
    reasons = []
    for server in connection.bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
            return
        except (OSError, ValueError) as error:
            reasons.append(str(error))
    raise _unreachable(connection, reasons[0])


def _read_round(
    consumer: Consumer,
    wanted: dict[Partition, tuple[int, int]],
    found: dict[Partition, list[Spans]],
    stall_s: float,
    watched: Mapping[Partition, Set[int]],
    marks: Mapping[Partition, dict[int, RecordMark]],
    take: Callable[[Message], None] | None,
) -> None:
    from confluent_kafka import KafkaError, KafkaException, TopicPartition as Assigned

    consumer.assign([Assigned(topic, part, wanted[topic, part][0]) for topic, part in wanted])
    # What the round before has paused stays paused: librdkafka keeps it through a new assignment.
    consumer.resume([Assigned(topic, part) for topic, part in wanted])
    offsets: dict[Partition, list[int]] = {key: [] for key in wanted}
    left = dict(wanted)
    deadline = time.monotonic() + stall_s
    while left:
        messages = consumer.consume(num_messages=_AT_ONCE, timeout=0.1)
        if messages:
            deadline = time.monotonic() + stall_s
        elif time.monotonic() > deadline:
            raise TimeoutError(f"no record came for {stall_s:g} s")
        for message in messages:
            key = (message.topic(), message.partition())
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                left.pop(key, None)
            elif key in left:
                offset = message.offset()
                if offset < left[key][1]:
                    offsets[key].append(offset)
                    if take is not None:
                        take(message)
                    if offset in watched.get(key, ()):
                        kind, timestamp_ms = message.timestamp()
                        at_ms = NO_TIMESTAMP if kind == _UNTIMED else timestamp_ms
                        marks[key][offset] = RecordMark.of(at_ms, message.key(), message.value())
                if offset >= left[key][1] - 1:
                    # A partition that has reached its end must not fill the queue any more.
                    left.pop(key)
                    consumer.pause([Assigned(*key)])
    for key, several in offsets.items():
        found[key].append(Spans.of_offsets(np.array(several, dtype=np.int64)))


def _describe(admin: Any, asking: BrokerRequests, names: list[str], timeout_s: float) -> dict[str, Any]:
    from confluent_kafka import KafkaError, KafkaException, TopicCollection

    if not names:
        return {}
    found: dict[str, Any] = {}
    for name, future in admin.describe_topics(TopicCollection(names), request_timeout=timeout_s).items():
        try:
            found[name] = asking.wait(future, admin, timeout_s)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise (
                    asking.explained(KafkaException(f"TOPIC_AUTHORIZATION_FAILED topic: {name}")) or error
                ) from error
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            found[name] = None
    return found


def _watermarks(
    admin: Any, asking: BrokerRequests, partitions: Mapping[str, list[int]], timeout_s: float
) -> list[dict[str, dict[int, int]]]:
    """The first offset of each partition, and the offset after its last committed record."""
    from confluent_kafka import IsolationLevel, TopicPartition as Assigned
    from confluent_kafka.admin import OffsetSpec

    keys = [Assigned(topic, part) for topic, parts in partitions.items() for part in parts]
    both: list[dict[str, dict[int, int]]] = [{}, {}]
    for spec, offsets in zip((OffsetSpec.earliest(), OffsetSpec.latest()), both, strict=True) if keys else ():
        asked = admin.list_offsets(
            dict.fromkeys(keys, spec),
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=timeout_s,
        )
        for key, future in asked.items():
            offset = asking.wait(future, admin, timeout_s).offset
            offsets.setdefault(key.topic, {})[key.partition] = offset
    return both


def _compacted(admin: Any, names: list[str], timeout_s: float) -> dict[str, bool]:
    """Whether topics are compacted, as far as we may know: describing settings can be forbidden."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    found: dict[str, bool] = {}
    if not names:
        return found
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    for resource, future in admin.describe_configs(resources, request_timeout=timeout_s).items():
        try:
            found[resource.name] = "compact" in future.result(timeout_s)["cleanup.policy"].value
        except (KafkaException, KeyError, TimeoutError):
            # Not knowing is an answer: what a compaction could explain is then no finding.
            continue
    return found


def _unreachable(connection: KafkaConnection, error: object) -> BrokerUnreachableError:
    servers = connection.bootstrap_servers or "no address"
    reason = str(error) or type(error).__name__
    return BrokerUnreachableError(
        f"the Kafka broker at {servers} does not answer ({reason})",
        remedies=("check the connection:   headrace doctor",),
        params={"bootstrap_servers": servers},
    )


@dataclass(frozen=True, kw_only=True)
class KafkaAccess:
    own: KafkaConnection  # the profile's cluster
    others: Sequence[KafkaConnection] = ()  # other clusters whose logins are known
    explain: Explain = unexplained  # finds the coded error behind what a client reports of it


@dataclass
class Broker:
    """One cluster, with its answers so far."""

    connection: KafkaConnection
    answer_s: float  # how long it may take for one question
    explain: Explain
    unanswered: str | None = None  # the reason to give if it does not answer; by default the error's
    topics: Mapping[str, Topic | None] | None = None  # its topics; ``None`` as long as it has not answered
    silence: str = ""
    marks: dict[Partition, dict[int, RecordMark]] = field(default_factory=dict)

    def ask_topics(self, names: Iterable[str]) -> None:
        try:
            self.topics = load_topics(self.connection, names, self.answer_s, self.explain)
        except BrokerUnreachableError as error:
            self._note_silence(error)

    def load(
        self,
        asked: Mapping[Partition, Spans],
        watched: Mapping[Partition, Set[int]],
        take: Callable[[Message], None] | None = None,
    ) -> Mapping[Partition, Spans] | None:
        """The offsets that hold a record; ``None`` if it has stopped answering. ``marks`` gets those of
        `watched` ones."""
        if not asked:
            return {}
        try:
            found = load_offsets(
                self.connection, asked, self.answer_s * 2, self.explain, watched=watched, take=take
            )
        except BrokerUnreachableError as error:
            self._note_silence(error)
            return None
        for place, marks in found.marks.items():
            self.marks.setdefault(place, {}).update(marks)
        return found.spans

    def _note_silence(self, error: BrokerUnreachableError) -> None:
        self.topics, self.silence = None, self.unanswered or error.summary


class Brokers:
    def __init__(self, access: KafkaAccess | None, answer_s: float) -> None:
        access = access or KafkaAccess(own=KafkaConnection({}))
        self._others = access.others
        self._answer_s = answer_s
        self._found: dict[str | None, Broker] = {None: Broker(access.own, answer_s, access.explain)}

    def at(self, servers: str | None) -> Broker:
        """A cluster by its brokers, ``None`` for the profile's; an unknown one is asked without a login."""
        if servers not in self._found:
            assert servers is not None
            known = [one for one in self._others if _names(one.bootstrap_servers) & _names(servers)]
            refusal = (
                f"verify has no login for the Kafka cluster {servers}, which does not answer without one"
            )
            connection = known[0] if known else KafkaConnection({"bootstrap.servers": servers})
            unanswered = None if known else refusal
            self._found[servers] = Broker(connection, self._answer_s, unexplained, unanswered)
        return self._found[servers]


def _names(servers: str) -> set[str]:
    return {server.strip().lower() for server in servers.split(",") if server.strip()}
