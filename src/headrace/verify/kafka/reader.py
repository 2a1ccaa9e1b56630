"""Sources that read Kafka topics: the records that the broker holds, against the rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from headrace.model.ranges import RecordCoordinates, RecordMark
from headrace.model.texts import counted, moment_text
from headrace.verify.checkpoints import CheckpointLog, Lineage
from headrace.verify.claims import Claims
from headrace.verify.evidence import Evidence
from headrace.verify.kafka.offsets import Broker, Brokers, Topic
from headrace.verify.reader import CannotJudgeError, Context, Extent, Found, SourceReader, SourceRecord
from headrace.verify.report import Finding, GradeReport
from headrace.verify.source_range import Partition, SourceRange, Spans, named

if TYPE_CHECKING:
    from confluent_kafka import Message

_ANSWER_S = 5.0
"""Seconds that a broker may take for one request; without an answer, records are not judged."""

Marks = Mapping[Partition, Mapping[int, RecordMark]]
"""The marks of records, by partition and offset."""


class KafkaRange(SourceRange):
    """Offsets of topics.

    The identity has the ids of the topics (``topics``), the brokers of a cluster that is not the profile's
    (``servers``), and the partitions that the query names (``partitions``). The mark ``last`` has the offset,
    timestamp and CRC-32 of the last record of each partition.
    """

    coordinates = RecordCoordinates.of(topic="STRING", partition="INT", offset="BIGINT")
    mark_names = ("last",)

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self.until)

    @property
    def key(self) -> tuple[str, ...]:
        return (self.kind,)

    @property
    def name(self) -> str:
        topics = self.identity.get("topics", {})
        return "Kafka " + ", ".join(f"{topic} ({id})" for topic, id in sorted(topics.items()))

    def id_of(self, partition: Partition) -> str | None:
        found = self.identity.get("topics", {}).get(partition[0])
        return None if found is None else str(found)

    def reads(self, partition: Partition) -> bool:
        topic, number = partition
        return number in self.identity.get("partitions", {}).get(topic, [number])


class KafkaReader(SourceReader):
    """Asks each cluster once for the topics of all flows, and reads each offset once."""

    range = KafkaRange
    system = "Kafka"
    holder = "the broker"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._brokers = Brokers(context.access.get("kafka"), _ANSWER_S)
        self._asked = False

    def judge_ranges(
        self, evidence: Evidence, lineage: Lineage, logs: Sequence[CheckpointLog], ranges: GradeReport
    ) -> GradeReport:
        """With the newest mark of each partition compared with the broker; the others where `find` has read
        them."""
        if not any("last" in source.marks for source in lineage.sources):
            return ranges
        self._ask_topics()
        findings = []
        for servers in sorted(_clusters(lineage), key=str):
            broker = self._brokers.at(servers)
            topics = broker.topics or {}
            marks = _find_marks(lineage, servers, topics)
            newest = {key: {max(offsets)} for key, offsets in marks.items() if offsets}
            asked = {
                key: Spans.of([(offset, offset + 1) for offset in offsets])
                for key, offsets in newest.items()
                if not offsets & broker.marks.get(key, {}).keys()
            }
            answered = broker.load(asked, newest) is not None
            compacted = {name for name, one in topics.items() if one is None or one.compacted is not False}
            findings += _compare_marks(marks, broker.marks, newest if answered else {}, compacted)
        return ranges.with_findings(findings)

    def claims(self, evidence: Evidence, lineage: Lineage) -> Claims:
        _check_clusters(evidence, lineage)
        return super().claims(evidence, lineage)

    def silence(self, lineage: Lineage) -> str | None:
        broker = self._broker(lineage)
        return broker.silence if broker.topics is None else None

    def extent(self, lineage: Lineage, partition: Partition, identity: str | None) -> Extent | str:
        topic, number = partition
        now = (self._broker(lineage).topics or {}).get(topic)
        if now is None:
            return f"the broker no longer has the topic {topic}"
        if identity not in (None, now.id):
            was = "which was read, was deleted or is in another cluster"
            return f"the topic {topic} with the id {identity}, {was}"
        if number not in now.high:
            return f"the topic {topic} has fewer partitions now than were read"
        return Extent(now.low.get(number, 0), now.high[number])

    def unread(self, source: SourceRange) -> int:
        topics = self._brokers.at(source.identity.get("servers")).topics or {}
        ends = source.ends
        unread = 0
        for topic in {topic for topic, _ in ends}:
            now = topics.get(topic)
            if now is None or source.id_of((topic,)) not in (None, now.id):
                continue
            for number, high in now.high.items():
                if source.reads((topic, number)):
                    unread += max(high - ends.get((topic, number), now.low.get(number, 0)), 0)
        return unread

    def find(self, evidence: Evidence, asked: Mapping[Partition, Spans]) -> Mapping[Partition, Found] | None:
        found: dict[Partition, Found] = {}
        clusters = {
            topic: source.identity.get("servers")
            for lineage in evidence.lineages
            for source in lineage.sources
            if isinstance(source, KafkaRange)
            for topic in source.topics
        }
        for servers in sorted(set(clusters.values()), key=str):
            broker = self._brokers.at(servers)
            topics = broker.topics or {}
            watched: dict[Partition, set[int]] = {}
            for lineage in evidence.lineages:
                for key, offsets in _find_marks(lineage, servers, topics).items():
                    watched.setdefault(key, set()).update(offsets)
            held = broker.load({k: s for k, s in asked.items() if clusters[k[0]] == servers}, watched)
            if held is None:
                return None
            for key, spans in held.items():
                now = topics.get(key[0])
                found[key] = Found(spans, is_certain=now is not None and now.compacted is False)
        return found

    def check_replay(self, lineage: Lineage) -> str | None:
        return "a flow reads several Kafka clusters" if len(_clusters(lineage)) > 1 else None

    def replay(self, source: SourceRange, take: Callable[[SourceRecord], None]) -> str | None:
        broker = self._brokers.at(source.identity.get("servers"))
        ends = source.ends
        wanted = {topic for topic, _ in ends}
        if broker.topics is None or not wanted <= broker.topics.keys():
            broker.ask_topics(wanted)
        if broker.topics is None:
            return broker.silence
        asked: dict[Partition, Spans] = {}
        for (topic, number), until in ends.items():
            now = broker.topics.get(topic)
            if now is None or now.id != source.id_of((topic,)):
                return f"the broker does not have the topic {topic} that was read"
            low, high = now.low.get(number, 0), min(until, now.high.get(number, 0))
            if low < high:
                asked[topic, number] = Spans.of([(low, high)])
        held = broker.load(asked, {}, lambda message: take(_record(message)))
        return broker.silence if held is None else None

    def _broker(self, lineage: Lineage) -> Broker:
        self._ask_topics()
        return self._brokers.at(next(iter(_clusters(lineage)), None))

    def _ask_topics(self) -> None:
        if self._asked:
            return
        self._asked = True
        topics: dict[str | None, set[str]] = {}
        for source in (source for lineage in self.context.lineages for source in lineage.sources):
            if isinstance(source, KafkaRange):
                topics.setdefault(source.identity.get("servers"), set()).update(source.topics)
        for servers, names in topics.items():
            self._brokers.at(servers).ask_topics(names)


def _clusters(lineage: Lineage) -> set[str | None]:
    """The brokers of the clusters that a flow reads; ``None`` for the profile's."""
    sources = (source for source in lineage.last_sources if isinstance(source, KafkaRange))
    return {source.identity.get("servers") for source in sources}


def _check_clusters(evidence: Evidence, lineage: Lineage) -> None:
    """Check that the topic of a row tells the cluster that its record comes from."""
    if len(_clusters(lineage)) > 1:
        raise CannotJudgeError("it reads topics of several Kafka clusters", applies=False)
    seen: dict[str, str | None] = {}
    for source in (source for one in evidence.lineages for source in one.last_sources):
        for topic in source.topics if isinstance(source, KafkaRange) else ():
            servers = source.identity.get("servers")
            if seen.setdefault(topic, servers) != servers:
                raise CannotJudgeError(
                    f"its flows read the topic {topic} in several Kafka clusters, which its rows do not name",
                    applies=False,
                )


def _record(message: Message) -> SourceRecord:
    return SourceRecord(
        partition=(str(message.topic()), int(message.partition() or 0)),
        offset=int(message.offset() or 0),
        key=message.key(),
        value=message.value(),
        timestamp_ms=message.timestamp()[1],
    )


def _find_marks(
    lineage: Lineage, servers: str | None, topics: Mapping[str, Topic | None]
) -> dict[Partition, dict[int, RecordMark]]:
    """The marks that a flow's commits and the ledger have, of records that a cluster may still have."""
    found: dict[Partition, dict[int, RecordMark]] = {}
    for source in lineage.sources:
        for topic, partitions in source.marks.get("last", {}).items():
            now = topics.get(topic)
            # Another id is that of an earlier topic of the same name.
            if now is None or source.identity.get("servers") != servers or source.id_of((topic,)) != now.id:
                continue
            for number, (offset, *mark) in partitions.items():
                key = (topic, int(number))
                if now.low.get(key[1], 0) <= offset < now.high.get(key[1], 0):
                    found.setdefault(key, {})[int(offset)] = RecordMark(*map(int, mark))
    return found


def _compare_marks(
    marks: Marks, held: Marks, asked: Mapping[Partition, Set[int]], compacted: Collection[str]
) -> list[Finding]:
    """The partitions that have other records, or none, at offsets that were read.

    An offset that is missing in `held` has no record if it is in `asked`, and an unknown one otherwise.
    """
    findings = []
    for key, offsets in sorted(marks.items()):
        now = held.get(key, {})
        other = {offset for offset, mark in offsets.items() if offset in now and mark.is_other(now[offset])}
        gone = set() if key[0] in compacted else (asked.get(key, set()) & offsets.keys()) - now.keys()
        if other or gone:
            findings.append(_finding(key, sorted(other | gone), offsets, now))
    return findings


def _finding(
    key: Partition, other: list[int], marks: Mapping[int, RecordMark], held: Mapping[int, RecordMark]
) -> Finding:
    topic, partition = key
    first = other[0]
    more = f" ({counted(len(other), 'compared offset')} with another record)" if len(other) > 1 else ""
    read, now = marks[first], held.get(first)
    if now is None:
        difference = "the broker has no record there, and the topic is not compacted"
    elif now.timestamp_ms == read.timestamp_ms:
        difference = "the broker's record has the same timestamp and another key or value"
    else:
        difference = f"the broker's record has {moment_text(now.timestamp_ms)}"
    return Finding(
        code="OFFSETS_REUSED",
        text=(
            f"{named(key)}: the record that was read at offset {first} has the timestamp "
            f"{moment_text(read.timestamp_ms)}, and {difference}{more}: the broker's log was rolled back and "
            "its offsets were used again"
        ),
        place={
            "topic": topic,
            "partition": partition,
            "offset": first,
            "timestamp_ms": read.timestamp_ms,
            "now_ms": None if now is None else now.timestamp_ms,
        },
    )
