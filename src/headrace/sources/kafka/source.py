"""Kafka topics as a source of a flow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.errors import (
    HeadraceError,
    OptionInvalidError,
    TopicNotFoundError,
)
from headrace.model.connections import KafkaConnection
from headrace.model.project import OnDataLoss
from headrace.model.ranges import Position, SourceRange
from headrace.sources.answers import Found, Lag, Unrecoverable
from headrace.sources.guard import FlowRun, Guard
from headrace.sources.kafka.cluster import KafkaCluster, Offsets
from headrace.sources.kafka.clusters import (
    SERVERS,
    brokers_of,
    no_login,
    normalized,
    other_cluster,
    reader_connection,
)
from headrace.sources.kafka.facts import KafkaFacts, ended_offsets, topic_recreated
from headrace.sources.kafka.last_records import (
    LastRecordReader,
    find_reused,
    offsets_reused,
    read_marks,
)
from headrace.sources.kafka.meter import KafkaMeter
from headrace.sources.kafka.options import KafkaReader
from headrace.sources.kafka.position import KafkaOffsets
from headrace.sources.kafka.read import ALLOW_NO_TOPICS, LOSS_POLICY
from headrace.sources.kafka.starting import Start, check_start
from headrace.sources.kafka.subscription import Subscription, matching, shown
from headrace.sources.kafka.topics import count_partitions
from headrace.sources.source import Source, SourceKind
from headrace.sources.systems import Past, StreamRead, Systems
from headrace.state.facts import SourceFacts
from headrace.state.file_lists import FileLists
from headrace.state.history import History
from headrace.state.identity import SourceIdentity, corrupt, folder_of
from headrace.storage.location import Location

_VERSION = "v1"
_ANSWER_S = 5.0
"""How long the start of a flow waits for the last records."""


@dataclass(frozen=True, kw_only=True)
class KafkaSource(Source):
    """A streaming read of topics.

    Args:
        topics: Topics by name; empty for a pattern.
        pattern: The pattern that topics are found by.
        partitions: The partitions of each topic, where they are given one by one.
        allow_no_topics: Whether the pattern may match no topic yet.
        on_data_loss: The policy of this source alone; ``None`` takes the pipeline's.
        servers: The brokers of its cluster; ``None`` for the profile's cluster.
    """

    kind = "kafka"

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    allow_no_topics: bool = False
    on_data_loss: OnDataLoss | None = None
    servers: str | None = None

    @property
    def connection(self) -> KafkaConnection | None:
        """The connection of a cluster that is not the profile's; ``None`` for the profile's.

        A source that was loaded from JSON has no login.
        """
        if self.servers is None:
            return None
        return reader_connection(self.options) if brokers_of(self.options) else no_login(self.servers)

    # -- what a plan says

    def describe(self) -> str:
        named = (f"{t}{list(self.partitions[t])}" if t in self.partitions else t for t in sorted(self.topics))
        return f"kafka {self.pattern or ','.join(named)}{_at(self.servers)}"

    def label(self, root: Path) -> str:
        names = ", ".join(self.topics) if self.pattern is None else shown(self.pattern)
        return f"kafka {names}{_at(self.servers)}"

    def title(self, root: Path) -> str:
        names = ", ".join(self.topics) if self.pattern is None else f"topics like {shown(self.pattern)}"
        return f"Kafka {names}{_at(self.servers)}"

    def details(self) -> str:
        recorded = " (lost records are recorded)" if self.on_data_loss == "record" else ""
        return f"{recorded}, {Start.of(self.options, default='latest').describe()}"

    def shares(self, other: Source, facts: Mapping[int, SourceFacts]) -> str | None:
        if not isinstance(other, KafkaSource) or self.servers != other.servers:
            return None
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
        cluster = systems.kafka.reach(self.connection)
        return _compare_last(self._look(cluster), past.history, cluster)

    def _look(self, cluster: KafkaCluster) -> KafkaFacts:
        ids = cluster.topic_ids(self._topics(cluster))
        identity: dict[str, Any] = {"topics": ids}
        if self.pattern is not None:
            # A topic that is being deleted is listed for a while, and has no id any more.
            there = {topic: found for topic, found in ids.items() if found is not None}
            identity = {"topics": there, "pattern": self.pattern}
        if self.partitions:
            identity["partitions"] = {topic: list(parts) for topic, parts in self.partitions.items()}
        if self.servers is not None:
            identity[SERVERS] = self.servers
        return self._facts(identity, cluster)

    def find(self, systems: Systems, *, is_new: bool) -> Found:
        cluster = systems.kafka.reach(self.connection)
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
        text = f"{count} partition{'' if count == 1 else 's'}" if count else ""
        return Found(text, None if self.pattern is None else topics)

    def check_start(self, facts: SourceFacts, systems: Systems, *, is_new: bool) -> None:
        assert isinstance(facts, KafkaFacts)
        cluster = systems.kafka.reach(self.connection)
        self._count_partitions(facts.ids, cluster)
        if is_new:
            check_start(Start.of(self.options, default="latest"), facts, cluster, self.location)

    def is_drained(
        self, facts: SourceFacts, position: Position, checkpoint: Location, systems: Systems
    ) -> bool:
        assert isinstance(facts, KafkaFacts)
        return position == KafkaOffsets(facts.latest)

    def meter(self, systems: Systems) -> KafkaMeter | None:
        return KafkaMeter(systems.kafka.reach(self.connection).connection) if self.adaptive else None

    def _count_partitions(self, topics: Iterable[str], cluster: KafkaCluster) -> dict[str, int]:
        return count_partitions(
            topics,
            cluster,
            assigned=self.partitions,
            pattern=self.pattern,
            allow_no_topics=self.allow_no_topics,
            location=self.location,
        )

    def _topics(self, cluster: KafkaCluster) -> tuple[str, ...]:
        return self.topics if self.pattern is None else cluster.matching(self.pattern)

    def _facts(self, identity: Mapping[str, Any], cluster: KafkaCluster) -> KafkaFacts:
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
        )


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
    return replace(facts, last=last, reused=find_reused(last, cluster.times.read(held, _ANSWER_S)))


class KafkaGuard(Guard):
    """Compares the ids of the topics that a flow reads, and the last records that it has read.

    Args:
        run: The flow.
        sources: Its sources of this kind.
    """

    def __init__(self, run: FlowRun, sources: Sequence[SourceIdentity]) -> None:
        super().__init__(run, sources)
        kafka = (facts for facts in run.facts if isinstance(facts, KafkaFacts))
        self._last = LastRecordReader({facts.source.index: facts.last for facts in kafka})

    def _cluster(self, one: SourceRange) -> KafkaCluster:
        planned = next(source for source in self.run.planned if source.index == one.index)
        assert isinstance(planned, KafkaSource)
        return self.run.systems.kafka.reach(planned.connection)

    def begin(self, batch: int, ranges: Sequence[SourceRange]) -> Iterator[SourceRange]:
        """Name all topics of a pattern by their ids, also those that have just joined.

        The ids are asked for before the rows are read, and compared before the commit: whatever is read
        in between comes from these topics.
        """
        for one in ranges:
            self._last.begin(one, self._cluster(one).times)
            if "pattern" not in one.identity:
                yield one
                continue
            assert isinstance(one.until, KafkaOffsets)
            known = self.sources[one.index].identity["topics"]
            unknown = [topic for topic in one.until.offsets if known.get(topic) is None]
            if unknown:
                known = {**known, **self._cluster(one).topic_ids(unknown)}
                identity = {**self.sources[one.index].identity, "topics": known}
                self.sources[one.index] = replace(self.sources[one.index], identity=identity)
            ids = {topic: known[topic] for topic in one.until.offsets}
            yield replace(one, identity={**one.identity, "topics": ids})

    def check(self, ranges: Sequence[SourceRange]) -> None:
        """Compare the topics with those that were read.

        Raises:
            TopicRecreatedError: A topic was deleted and created again.
        """
        flow = self.run.flow
        for one in ranges:
            known: Mapping[str, str | None] = one.identity["topics"]
            for topic, now in self._cluster(one).topic_ids(known).items():
                if now is None or now != known[topic]:
                    raise topic_recreated(
                        flow.name, flow.location, self.run.checkpoint_id, topic, known[topic], now
                    )

    def finish(self, ranges: Sequence[SourceRange]) -> Iterator[SourceRange]:
        """Mark the last record that was read of each partition.

        Raises:
            OffsetsReusedError: A record that an earlier batch has read is another one now.
        """
        flow = self.run.flow
        for one in ranges:
            marks, reused = self._last.finish(one)
            if reused:
                done = "the batch was not committed"
                raise offsets_reused(flow.name, flow.target.short, flow.location, reused[0], done=done)
            yield replace(one, marks=marks)


class KafkaKind(SourceKind):
    """Topics."""

    source = KafkaSource
    guard = KafkaGuard
    reader = KafkaReader()

    def opens(self, format: str) -> bool:
        return format == "kafka"

    def build(self, read: StreamRead) -> KafkaSource:
        try:
            subscription = Subscription.of(read.options)
        except ValueError as error:
            raise OptionInvalidError(
                f"a stream of Kafka {error}", location=read.location, params={"problem": str(error)}
            ) from error
        lowered = {key.lower(): value.lower() for key, value in read.options.items()}
        servers = _find_servers(read)
        policy = lowered.get(LOSS_POLICY.lower())
        return KafkaSource(
            **read.common,
            topics=subscription.topics,
            pattern=subscription.pattern,
            partitions=subscription.partitions,
            allow_no_topics=lowered.get(ALLOW_NO_TOPICS.lower()) == "true",
            on_data_loss="refuse" if policy == "refuse" else "record" if policy == "record" else None,
            servers=servers,
        )

    def position(self, value: Mapping[str, Any]) -> KafkaOffsets:
        return KafkaOffsets.from_json(value)

    def batch_start(
        self, checkpoint: Location, source: SourceIdentity, before: Position | None, until: Position
    ) -> KafkaOffsets:
        """Where each partition of a batch was first read.

        A partition that is new in this batch starts at its first offset, 0: Spark reads partitions
        that appear after the start from their beginning (KafkaOffsetReader.fetchEarliestOffsets).
        """
        if before is None:
            before = _initial_offsets(checkpoint, source)
        assert isinstance(before, KafkaOffsets) and isinstance(until, KafkaOffsets)
        return KafkaOffsets(
            {
                topic: {partition: before.get(topic, partition) or 0 for partition in partitions}
                for topic, partitions in until.offsets.items()
            }
        )

    def describe(self, source: SourceIdentity) -> str:
        given = source.identity.get("partitions", {})
        names = [
            f"{topic} {given[topic]}" if topic in given else topic for topic in source.identity["topics"]
        ]
        pattern = source.identity.get("pattern")
        listed = ", ".join(names if pattern is None else [*names, f"by the pattern {pattern}"])
        return f"kafka {listed}{_at(source.identity.get(SERVERS))}"

    def describe_range(self, one: SourceRange) -> tuple[str, ...]:
        assert isinstance(one.until, KafkaOffsets)
        moved = one.until.since(one.start)
        return tuple(
            f"{topic}/{partition} offsets {first} to {end - 1}" for topic, partition, first, end in moved
        )

    def unrecoverable(
        self, history: History, sources: Sequence[SourceFacts], lists: FileLists
    ) -> Iterator[Unrecoverable]:
        read = dict(ended_offsets(history))
        for facts in sources:
            assert isinstance(facts, KafkaFacts)
            for topic, topic_id in facts.ids.items():
                ended = read.pop(topic_id, {}) if topic_id is not None else {}
                first = facts.earliest.get(topic, {})
                count = sum(min(end or 0, first.get(partition, 0)) for partition, end in ended.items())
                if count:
                    text = f"up to {count:,} records cannot be read again: topic {topic} no longer holds them"
                    yield Unrecoverable(text, count)
        count = sum(end or 0 for ended in read.values() for end in ended.values())
        if count:
            text = f"up to {count:,} records cannot be read again: their topics are no longer read"
            yield Unrecoverable(text, count)

    def count(self, one: SourceRange) -> int:
        assert isinstance(one.until, KafkaOffsets)
        return one.until.count_since(one.start)

    def publish(self, one: SourceRange, systems: Systems, group: str) -> None:
        assert isinstance(one.until, KafkaOffsets)
        systems.kafka.publish(group, one.until, one.identity.get(SERVERS))

    def lag(self, one: SourceRange, systems: Systems, checkpoint: Location | None) -> Lag | None:
        assert isinstance(one.until, KafkaOffsets)
        servers = one.identity.get(SERVERS)
        try:
            latest = systems.kafka.at(servers).latest(one.until.offsets)
        except HeadraceError as error:
            if systems.kafka.knows(servers):
                systems.kafka.failure = systems.kafka.failure or error
            return None
        assigned = one.identity.get("partitions", {})
        return Lag(
            sum(
                max(0, end - (one.until.get(topic, partition) or 0))
                for topic, partition, end in KafkaOffsets(latest)
                if topic not in assigned or partition in assigned[topic]
            )
        )


def _initial_offsets(checkpoint: Location, source: SourceIdentity) -> KafkaOffsets:
    path = checkpoint / "sources" / str(folder_of(source)) / "0"
    try:
        # Spark writes a zero byte first, so that old versions refuse the file (SPARK-19407).
        text = path.read_bytes().lstrip(b"\0").decode("utf-8")
        version, _, offsets = text.partition("\n")
        if version != _VERSION:
            raise ValueError(f"unknown version {version!r}")
        return KafkaOffsets.from_json(json.loads(offsets))
    except (OSError, ValueError) as error:
        raise corrupt(path, error) from error


def _find_servers(read: StreamRead) -> str | None:
    """The brokers of a reader of another cluster than the profile's; ``None`` for the profile's.

    Raises:
        OptionInvalidError: Neither the reader nor the profile names a broker.
    """
    settings = read.settings
    if not brokers_of(read.options):
        raise OptionInvalidError(
            f"a stream of Kafka names no broker, and neither does the profile `{settings.profile}`",
            location=read.location,
            remedies=["write kafka: {bootstrap.servers: ..} in the spec, or `embedded` for the own broker"],
            params={"option": "kafka.bootstrap.servers", "profile": settings.profile},
        )
    other = other_cluster(read.options, settings.kafka)
    return None if other is None else normalized(other.bootstrap_servers)


def _at(servers: str | None) -> str:
    return "" if servers is None else f" at {servers}"
