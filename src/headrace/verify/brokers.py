"""The Kafka clusters that flows have read: the profile's, and others by their brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import BrokerUnreachableError
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.ranges import RecordMark
from headrace.verify.broker_requests import Explain, unexplained
from headrace.verify.offsets import Topic, load_offsets, load_topics
from headrace.verify.source_range import TopicPartition
from headrace.verify.spans import Spans

if TYPE_CHECKING:
    from confluent_kafka import Message


@dataclass
class Broker:
    """One cluster, and what it has answered.

    Args:
        unanswered: The reason to give if it does not answer; ``None`` takes that of the error.
    """

    connection: KafkaConnection
    answer_s: float  # how long it may take for one question
    explain: Explain
    unanswered: str | None = None
    topics: Mapping[str, Topic | None] | None = None  # its topics; ``None`` as long as it has not answered
    silence: str = ""
    marks: dict[TopicPartition, dict[int, RecordMark]] = field(default_factory=dict)

    def ask_topics(self, names: Iterable[str]) -> None:
        """Ask for topics."""
        try:
            self.topics = load_topics(self.connection, names, self.answer_s, self.explain)
        except BrokerUnreachableError as error:
            self._note_silence(error)

    def load(
        self,
        asked: Mapping[TopicPartition, Spans],
        watched: Mapping[TopicPartition, Set[int]],
        take: Callable[[Message], None] | None = None,
    ) -> Mapping[TopicPartition, Spans] | None:
        """The offsets that hold a record; ``None`` if it has stopped answering.

        Args:
            watched: The offsets whose marks are kept in ``marks``.
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
    """The clusters by the brokers that sources name.

    Args:
        answer_s: How long a cluster may take for one question.
        explain: Explains why the profile's cluster refuses this client.
    """

    def __init__(
        self,
        own: KafkaConnection,
        others: Sequence[KafkaConnection],
        answer_s: float,
        explain: Explain = unexplained,
    ) -> None:
        self._others = others
        self._answer_s = answer_s
        self._found: dict[str | None, Broker] = {None: Broker(own, answer_s, explain)}

    def at(self, servers: str | None) -> Broker:
        """A cluster; one whose login is not known is asked without a login.

        Args:
            servers: Its brokers, as commits name them; ``None`` for the profile's cluster.
        """
        if servers not in self._found:
            assert servers is not None
            known = [one for one in self._others if _names(one.bootstrap_servers) & _names(servers)]
            self._found[servers] = Broker(
                known[0] if known else KafkaConnection({"bootstrap.servers": servers}),
                self._answer_s,
                unexplained,
                unanswered=None if known else _without_login(servers),
            )
        return self._found[servers]


def _names(servers: str) -> set[str]:
    return {server.strip().lower() for server in servers.split(",") if server.strip()}


def _without_login(servers: str) -> str:
    return f"verify has no login for the Kafka cluster {servers}, which does not answer without one"
