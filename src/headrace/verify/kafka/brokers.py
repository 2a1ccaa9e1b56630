"""The Kafka clusters that flows have read: the profile's, and others by their brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import BrokerUnreachableError
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.ranges import RecordMark
from headrace.verify.kafka.offsets import Explain, Topic, load_offsets, load_topics, unexplained
from headrace.verify.source_range import Partition
from headrace.verify.spans import Spans

if TYPE_CHECKING:
    from confluent_kafka import Message


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
        """The offsets that hold a record; ``None`` if it has stopped answering.

        The marks of `watched` offsets are kept in ``marks``.
        """
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
    """The clusters by the brokers that sources name."""

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
