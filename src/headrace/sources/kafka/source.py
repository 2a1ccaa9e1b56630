"""Kafka topics as a source of a flow."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, KafkaLoginError, KafkaTlsError, TopicNotFoundError
from headrace.model.kafka_settings import NO_ADDRESS, KafkaConnection
from headrace.model.lineage import DatasetId, of_topic
from headrace.model.project import OnDataLoss, ProjectSettings
from headrace.model.ranges import Position, SourceRange
from headrace.model.texts import counted
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, T
from headrace.sources.kafka.cluster import KafkaCluster, Offsets
from headrace.sources.kafka.clusters import (
    SERVERS,
    KafkaClusters,
    at_servers,
    brokers_of,
    no_login,
    reader_connection,
)
from headrace.sources.kafka.facts import KafkaFacts
from headrace.sources.kafka.last_records import find_reused, read_marks
from headrace.sources.kafka.meter import KafkaMeter
from headrace.sources.kafka.position import COORDINATES, KafkaOffsets
from headrace.sources.kafka.reader import kafka_columns, read_between
from headrace.sources.kafka.starting import Start, check_start
from headrace.sources.kafka.subscription import matching, shown
from headrace.sources.requests import Found, Past, Server, SourceRead, Systems
from headrace.sources.source import Source
from headrace.state.facts import History, SourceFacts
from headrace.storage.location import Location

_ANSWER_S = 5.0
"""How long the start of a flow waits for the last records."""


@dataclass(frozen=True, kw_only=True)
class KafkaSource(Source):
    kind = "kafka"
    rereads = True
    reads_records = True
    coordinates = COORDINATES

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    allow_no_topics: bool = False  # whether the pattern may match no topic yet
    on_data_loss: OnDataLoss | None = None  # the policy of this source alone; ``None`` takes the pipeline's
    servers: str | None = None  # the brokers of its cluster; ``None`` for the profile's cluster

    @property
    def connection(self) -> KafkaConnection | None:
        """The connection of a cluster that is not the profile's; ``None`` for the profile's. From JSON,
        without a login."""
        if self.servers is None:
            return None
        return reader_connection(self.options) if brokers_of(self.options) else no_login(self.servers)

    # -- what a plan says

    def describe(self) -> str:
        named = (f"{t}{list(self.partitions[t])}" if t in self.partitions else t for t in sorted(self.topics))
        return f"kafka {self.pattern or ','.join(named)}{at_servers(self.servers)}"

    def label(self, root: Path) -> str:
        names = ", ".join(self.topics) if self.pattern is None else shown(self.pattern)
        return f"kafka {names}{at_servers(self.servers)}"

    def datasets(
        self, settings: ProjectSettings, identity: Mapping[str, Any] | None = None
    ) -> tuple[DatasetId, ...]:
        names = (identity or {}).get("topics") or self.topics or (self.pattern or "",)
        servers = self.servers or settings.kafka.bootstrap_servers
        return tuple(of_topic(servers, name) for name in names)

    def title(self, root: Path) -> str:
        names = ", ".join(self.topics) if self.pattern is None else f"topics like {shown(self.pattern)}"
        return f"Kafka {names}{at_servers(self.servers)}"

    def details(self) -> str:
        recorded = " (lost records are recorded)" if self.on_data_loss == "record" else ""
        return f"{recorded}, {Start.of(self.options, default='latest').describe()}"

    def common_input(self, other: Source, facts: Mapping[int, SourceFacts]) -> str | None:
        if not isinstance(other, KafkaSource):
            return None
        if self.servers != other.servers:
            return _common_topic(facts.get(self.index), facts.get(other.index))
        if self.pattern is not None and self.pattern == other.pattern:
            return f"the pattern `{shown(self.pattern)}`"

        def names(one: KafkaSource, two: KafkaSource) -> set[str]:
            if one.pattern is None:
                return set(one.topics)
            now = facts.get(one.index)
            matches = now.ids if isinstance(now, KafkaFacts) else ()
            return {*matches, *matching(one.pattern, two.topics)}

        common = sorted(names(self, other) & names(other, self))
        return f"the topic `{common[0]}`" if common else None

    # -- what the cluster holds

    def look(self, systems: Systems, past: Past) -> KafkaFacts:
        with self._located():
            cluster = self._cluster(systems)
            return _compare_last(self._look(cluster), past.history, cluster)

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Give the errors of a cluster that does not answer, or refuses access, the line of the reader."""
        try:
            yield
        except HeadraceError as error:
            found = error.with_location(self.location)
            if self.servers is not None and isinstance(error, KafkaLoginError | KafkaTlsError):
                entry = f'kafka: {{brokers: {{"{self.servers}": embedded}}}}'
                found = found.with_(remedies=[*found.remedies, f"or map the address in the spec:   {entry}"])
            raise found from error

    def _cluster(self, systems: Systems) -> KafkaCluster:
        return systems.client(KafkaClusters).reach(self.connection)

    def _look(self, cluster: KafkaCluster) -> KafkaFacts:
        ids = cluster.topic_ids(self._topics(cluster))
        identity: dict[str, Any] = {"topics": ids}
        if self.pattern is not None:
            # A topic that is being deleted is listed for a while, and has no id any more.
            known = {topic: found for topic, found in ids.items() if found is not None}
            identity = {"topics": known, "pattern": self.pattern}
        if self.partitions:
            identity["partitions"] = {topic: list(parts) for topic, parts in self.partitions.items()}
        if self.servers is not None:
            identity[SERVERS] = self.servers
        there = [topic for topic, topic_id in identity["topics"].items() if topic_id is not None]

        def read(offsets: Offsets) -> Offsets:
            return {
                topic: {p: o for p, o in parts.items() if p in self.partitions.get(topic, parts)}
                for topic, parts in offsets.items()
            }

        return KafkaFacts(
            source=self.identity(identity),
            earliest=read(cluster.earliest(there)),
            latest=read(cluster.latest(there)),
            on_data_loss=self.on_data_loss,
            connection=cluster.connection,
        )

    def find(self, systems: Systems, *, is_new: bool) -> Found:
        cluster = self._cluster(systems)
        with self._located():
            topics = self._topics(cluster)
            try:
                counts = self._count_partitions(topics, cluster)
            except TopicNotFoundError:
                # A run refuses what a checkpoint has read and does not exist any more, with another remedy.
                if is_new:
                    raise
                counts = {}
            if is_new:
                self.check_start(self._look(cluster), systems, is_new=True)
        count = sum(counts.values())
        text = counted(count, "partition") if count else ""
        return Found(text, None if self.pattern is None else topics)

    def not_checked(self, error: HeadraceError, settings: ProjectSettings) -> str:
        profile = settings.kafka
        servers = error.params.get("bootstrap_servers", profile.bootstrap_servers)
        if servers != profile.bootstrap_servers:
            return f"cannot reach {servers}; its topics were not checked"
        if servers == NO_ADDRESS:
            return (
                "the embedded broker is not running; topics were not checked. "
                "Start it:   headrace broker start"
            )
        place = profile.place("bootstrap.servers")
        where = "" if place is None else f" ({place.path}:{place.line})"
        return f"cannot reach {servers}{where}; topics were not checked"

    def server(self, settings: ProjectSettings, timeout_s: float) -> Server:
        connection = self.connection or settings.kafka
        servers = connection.bootstrap_servers
        remedy = "headrace doctor" if connection.broker is None else "headrace broker start"
        return Server(servers, KafkaCluster(connection, timeout_s).ping, remedy)

    def check_start(self, facts: SourceFacts, systems: Systems, *, is_new: bool) -> None:
        assert isinstance(facts, KafkaFacts)
        cluster = self._cluster(systems)
        self._count_partitions(facts.ids, cluster)
        if is_new:
            check_start(Start.of(self.options, default="latest"), facts, cluster, self.location)

    def is_drained(self, facts: SourceFacts, position: Position, checkpoint: Location) -> bool:
        assert isinstance(facts, KafkaFacts)
        return position == KafkaOffsets(facts.latest)

    def meter(self, systems: Systems) -> KafkaMeter | None:
        return KafkaMeter(self._cluster(systems).marks) if self.adaptive else None

    def read_range(self, read: SourceRead, one: SourceRange | None, checkpoint: Location) -> DataFrame:
        if one is None:
            return read_between(read, {}, {})
        assert isinstance(one.start, KafkaOffsets) and isinstance(one.until, KafkaOffsets)
        return read_between(read, one.start.offsets, one.until.offsets)

    def read_records(self, read: SourceRead, records: DataFrame) -> DataFrame:
        held = records.withColumn("timestampType", F.lit(0))
        columns = T.StructType.fromDDL(kafka_columns(read.request)).fields
        return held.select(*(F.col(one.name).cast(one.dataType).alias(one.name) for one in columns))

    def owns(self) -> Column:
        topic = F.col("topic")
        return topic.isin(*self.topics) if self.pattern is None else topic.rlike(self.pattern)

    def _count_partitions(self, topics: Iterable[str], cluster: KafkaCluster) -> dict[str, int]:
        found: dict[str, int] = {}
        try:
            for topic, there in cluster.partitions(topics).items():
                asked = self.partitions.get(topic, there)
                if lacking := sorted(set(asked) - set(there)):
                    raise TopicNotFoundError(
                        f"topic `{topic}` has no partition {lacking[0]}",
                        facts=[f"its partitions: {', '.join(map(str, there))}"],
                        remedies=["correct `assign`"],
                        params={"topic": topic, "partition": lacking[0]},
                    )
                found[topic] = len(asked)
            if not found and not self.allow_no_topics:
                raise _no_match(self.pattern or "", cluster)
        except TopicNotFoundError as error:
            raise error.with_(location=self.location) from error.__cause__
        return found

    def _topics(self, cluster: KafkaCluster) -> tuple[str, ...]:
        return self.topics if self.pattern is None else cluster.matching(self.pattern)


def _compare_last(facts: KafkaFacts, history: History, cluster: KafkaCluster) -> KafkaFacts:
    """The facts with the last records that the flow has read, compared with those of the broker."""
    marks = read_marks(history)
    last = {
        (topic, partition): record
        for topic, topic_id in facts.ids.items()
        for partition, record in marks.get(topic_id or "", {}).items()
        if facts.earliest.get(topic, {}).get(partition, record.offset + 1) <= record.offset
    }
    held = {
        (topic, partition): (record.offset, record.offset + 1)
        for (topic, partition), record in last.items()
        if record.offset < facts.latest[topic][partition]
    }
    now = cluster.marks.read(held, _ANSWER_S)
    return replace(facts, last=last, reused=find_reused(last, now, cluster.is_compacted))


def _common_topic(one: SourceFacts | None, two: SourceFacts | None) -> str | None:
    """A topic that both read, by its id: a cluster can have several addresses."""
    if not isinstance(one, KafkaFacts) or not isinstance(two, KafkaFacts):
        return None
    common = sorted(
        name for name, found in one.ids.items() if found is not None and two.ids.get(name) == found
    )
    return f"the topic `{common[0]}`" if common else None


def _no_match(pattern: str, cluster: KafkaCluster) -> TopicNotFoundError:
    known = cluster.topics()
    near = difflib.get_close_matches(re.sub(r"\W+", "", shown(pattern)), known, n=3, cutoff=0.4)
    there = near or known[:3]
    return TopicNotFoundError(
        f"the pattern `{shown(pattern)}` matches no topic",
        facts=[f"topics of the cluster: {', '.join(there)}" + (", .." if len(known) > len(there) else "")]
        if there
        else ["the cluster has no topic yet"],
        remedies=[
            "correct the pattern",
            "or wait for topics with allow_no_match=True in read_kafka (option headrace.allowNoTopics=true)",
        ],
        params={"pattern": pattern, "topics": list(there)},
    )
