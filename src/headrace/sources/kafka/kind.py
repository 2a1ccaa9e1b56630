"""The kind of Kafka sources: what is known of them from a checkpoint or a commit alone."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from headrace import errors
from headrace.errors import NOT_COMMITTED, HeadraceError, SourceLocation
from headrace.model.declarations import Sink, StreamingTable
from headrace.model.project import ProjectSettings
from headrace.model.ranges import Position, SourceRange
from headrace.model.texts import counted
from headrace.runtime.kafka_faults import find_fault
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession
from headrace.runtime.schema_registry import URL, USER_INFO
from headrace.sources.bad_records import SCHEMA_MARK, schema_mark
from headrace.sources.kafka.avro_decoder import UNKNOWN_ID
from headrace.sources.kafka.cluster import KafkaCluster, Offsets
from headrace.sources.kafka.clusters import (
    SERVERS,
    KafkaClusters,
    at_servers,
    brokers_of,
    check_protocol,
    map_connection,
    normalized,
    other_cluster,
)
from headrace.sources.kafka.facts import KafkaFacts, ended_offsets, topic_recreated
from headrace.sources.kafka.last_records import LastRecordReader, offsets_reused
from headrace.sources.kafka.position import COORDINATES, KafkaOffsets, KafkaPart, show_command
from headrace.sources.kafka.read import ALLOW_NO_TOPICS, LOSS_POLICY
from headrace.sources.kafka.reader import KafkaReader
from headrace.sources.kafka.source import KafkaSource
from headrace.sources.kafka.subscription import Subscription
from headrace.sources.kind import FailedQuery, FlowRun, Guard, SourceKind
from headrace.sources.parts import Part
from headrace.sources.requests import Lag, StreamRead, Systems, Unrecoverable
from headrace.sources.source import Source
from headrace.state.checkpoint import SourceIdentity, folder_of, reading
from headrace.state.facts import History, SourceFacts
from headrace.storage.location import Location


class KafkaGuard(Guard):
    """Compares the ids of the topics that a flow reads, and the last records that it has read."""

    def __init__(self, run: FlowRun, sources: Sequence[SourceIdentity]) -> None:
        super().__init__(run, sources)
        kafka = (facts for facts in run.facts if isinstance(facts, KafkaFacts))
        self._last = LastRecordReader({facts.source.index: facts.last for facts in kafka})

    def _planned(self, one: SourceRange) -> KafkaSource:
        planned = next(source for source in self.run.planned if source.index == one.index)
        assert isinstance(planned, KafkaSource)
        return planned

    def _cluster(self, one: SourceRange) -> KafkaCluster:
        return self.run.systems.client(KafkaClusters).reach(self._planned(one).connection)

    def begin(self, batch: int, ranges: Sequence[SourceRange]) -> Iterator[SourceRange]:
        """Name all topics of a pattern by their ids, also those that have just joined.

        The ids are asked for before the rows are read, and compared before the commit: whatever is read
        in between comes from these topics.
        """
        for one in ranges:
            self._last.begin(one, self._cluster(one))
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
        flow = self.run.flow
        for one in ranges:
            known: Mapping[str, str | None] = one.identity["topics"]
            for topic, now in self._cluster(one).topic_ids(known).items():
                if now is None or now != known[topic]:
                    raise topic_recreated(
                        flow.name, flow.location, self.run.checkpoint_id, topic, known[topic], now
                    )

    def finish(self, ranges: Sequence[SourceRange]) -> Iterator[SourceRange]:
        """Mark the last record that was read of each partition, and the number of a schema that evolves."""
        flow = self.run.flow
        for one in ranges:
            marks, reused = self._last.finish(one)
            if reused:
                done = "the batch was not committed"
                raise offsets_reused(flow.name, flow.target.short, flow.location, reused[0], done=done)
            yield replace(one, marks={**marks, **schema_mark(self._planned(one).options)})

    def close(self) -> None:
        self._last.close()


_VERSION = "v1"
_ERRORS = r"org\.apache\.kafka\.common\.errors\."
_BROKER = re.compile(_ERRORS + r"(Timeout|Disconnect|Network|BrokerNotAvailable)\w*Exception[^\n]*")
_STORES = re.compile(r"Failed to load [^\n]*(?:keystore|truststore)[^\n]*", re.IGNORECASE)
_TURNED_AWAY = re.compile(
    _ERRORS
    + r"(?:\w*Authentication|\w*Authorization|IllegalSaslState|UnsupportedSaslMechanism)Exception[^\n]*"
)


class KafkaKind(SourceKind):
    source = KafkaSource
    guard = KafkaGuard
    reader = KafkaReader()
    record: ClassVar[Mapping[str, str]] = {
        **COORDINATES.types,
        "timestamp": "TIMESTAMP",
        "key": "BINARY",
        "value": "BINARY",
        "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    }

    transient = (
        "RetriableException|DisconnectException|BrokerNotAvailable|NotLeaderOrFollower"
        "|UnknownTopicOrPartition|NetworkException|CoordinatorNotAvailable"
        # What Spark takes for lost records is named by the next start, which compares topics and offsets.
        "|Some data may have been lost because they are not available in Kafka"
    )

    def show_record(self, record: Mapping[str, Any]) -> str:
        return show_command(record)

    def opens(self, format: str) -> bool:
        return format == "kafka"

    def build(self, read: StreamRead) -> KafkaSource:
        try:
            subscription = Subscription.of(read.options)
        except ValueError as error:
            raise errors.OptionInvalidError(
                f"a stream of Kafka {error}",
                location=read.location,
                remedies=["correct the option"],
                params={"problem": str(error)},
            ) from error
        lowered = {key.lower(): value.lower() for key, value in read.options.items()}
        settings, other = read.settings, other_cluster(read.options, read.settings.kafka)
        if not brokers_of(read.options):
            raise errors.OptionInvalidError(
                f"a stream of Kafka names no broker, and neither does the profile `{settings.profile}`",
                location=read.location,
                remedies=[
                    "write kafka: {bootstrap.servers: ..} in the spec, or `embedded` for the own broker"
                ],
                params={"option": "kafka.bootstrap.servers", "profile": settings.profile},
            )
        policy = lowered.get(LOSS_POLICY.lower())
        return KafkaSource(
            **read.common,
            topics=subscription.topics,
            pattern=subscription.pattern,
            partitions=subscription.partitions,
            allow_no_topics=lowered.get(ALLOW_NO_TOPICS.lower()) == "true",
            on_data_loss="refuse" if policy == "refuse" else "record" if policy == "record" else None,
            servers=None if other is None else normalized(other.bootstrap_servers),
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
        return f"kafka {listed}{at_servers(source.identity.get(SERVERS))}"

    def describe_range(self, one: SourceRange) -> tuple[str, ...]:
        assert isinstance(one.until, KafkaOffsets)
        moved = one.until.since(one.start)
        return tuple(
            f"{topic}/{partition} offsets {first} to {end - 1}" for topic, partition, first, end in moved
        )

    def unrecoverable(
        self, history: History, sources: Sequence[SourceFacts], ledger: Location
    ) -> Iterator[Unrecoverable]:
        read = dict(ended_offsets(history))
        for facts in sources:
            assert isinstance(facts, KafkaFacts)
            for topic, topic_id in facts.ids.items():
                ended = read.pop(topic_id, {}) if topic_id is not None else {}
                first = facts.earliest.get(topic, {})
                count = sum(min(end or 0, first.get(partition, 0)) for partition, end in ended.items())
                if count:
                    records = f"up to {counted(count, 'record')} cannot be read again"
                    yield Unrecoverable(f"{records}: topic {topic} no longer holds them", count)
        count = sum(end or 0 for ended in read.values() for end in ended.values())
        if count:
            text = f"up to {counted(count, 'record')} cannot be read again: their topics are no longer read"
            yield Unrecoverable(text, count)

    def parts(
        self, one: SourceRange, source: Source, session: SparkSession, checkpoint: Location
    ) -> Sequence[KafkaPart]:
        assert isinstance(one.until, KafkaOffsets)
        return [
            KafkaPart(topic=topic, partition=partition, start=first, until=end, source=one.index)
            for topic, partition, first, end in one.until.since(one.start)
        ]

    def range_of(self, one: SourceRange, parts: Sequence[Part]) -> SourceRange:
        """The offsets from the first to the last record of the parts, for each partition."""
        start: Offsets = {}
        until: Offsets = {}
        for part in parts:
            assert isinstance(part, KafkaPart)
            first, last = start.setdefault(part.topic, {}), until.setdefault(part.topic, {})
            first[part.partition] = min(part.start, first.get(part.partition, part.start))
            last[part.partition] = max(part.until, last.get(part.partition, part.until))
        return replace(one, start=KafkaOffsets(start), until=KafkaOffsets(until))

    def leave_out(self, frame: DataFrame, records: Sequence[Part]) -> DataFrame:
        for one in records:
            if isinstance(one, KafkaPart):
                is_it = (F.col("topic") == one.topic) & (F.col("partition") == one.partition)
                frame = frame.where(~(is_it & (F.col("offset") == one.start)))
        return frame

    def count(self, one: SourceRange) -> int:
        assert isinstance(one.until, KafkaOffsets)
        return one.until.count_since(one.start)

    def join_marks(self, one: Mapping[str, Any], two: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The newer mark of each partition; ranges that were read with different schemas stay apart."""
        if one.get(SCHEMA_MARK) != two.get(SCHEMA_MARK):
            return None
        before, after = one.get("last", {}), two.get("last", {})
        topics = sorted({*before, *after})
        last = {topic: {**before.get(topic, {}), **after.get(topic, {})} for topic in topics}
        return {**one, **two, **({"last": last} if last else {})}

    def publish(self, one: SourceRange, systems: Systems, group: str) -> None:
        assert isinstance(one.until, KafkaOffsets)
        systems.client(KafkaClusters).publish(group, one.until, one.identity.get(SERVERS))

    def explain_failure(self, failed: FailedQuery) -> HeadraceError | None:
        others = (one.connection for one in failed.sources if isinstance(one, KafkaSource))
        profile = None if failed.settings is None else failed.settings.kafka
        connection = next(filter(None, others), profile)
        messages = _TURNED_AWAY.findall(failed.text)
        if messages and connection is not None and (fault := find_fault(connection, messages)) is not None:
            return fault.with_(
                summary=f"{failed.name}: {fault.summary}",
                facts=[*fault.facts, *failed.logged],
                params={**fault.params, **failed.params},
            )
        if (stores := _STORES.search(failed.text)) is not None:
            return failed.error(
                errors.KafkaTlsError,
                "Kafka's client cannot read its keystore or truststore",
                (stores[0],),
                "correct the path or the permissions of the file: kafka: {ssl.keystore.location: ..}",
            )
        if (unknown := re.search(f"{UNKNOWN_ID}(\\d+)", failed.text)) is not None:
            return failed.error(
                errors.SchemaIdUnknownError,
                f"a record has the schema id {unknown[1]}, which its subject in the registry does not have",
                (NOT_COMMITTED, "the flow asks the registry again at its next attempt"),
                "register the schema under the subject, or name another: hr.read_kafka(.., subject=..)",
                id=int(unknown[1]),
            )
        if (broker := _BROKER.search(failed.text)) is not None:
            report = f"Kafka's client reports: {broker[0]}"
            what = "the Kafka broker does not answer"
            return failed.error(errors.BrokerUnreachableError, what, (report,), "headrace doctor")
        return None

    def choose_sink_options(
        self, options: Mapping[str, str], settings: ProjectSettings, location: SourceLocation
    ) -> tuple[Mapping[str, str], str | None]:
        found = map_connection(options, settings, location)
        if found is not None:
            return found.options, found.note
        check_protocol(options, settings, location)
        return options, None

    def sink_options(self, sink: Sink, settings: ProjectSettings) -> Mapping[str, str]:
        # Nothing of the profile's connection is sent to another cluster.
        connection = other_cluster(sink.options, settings.kafka) or settings.kafka
        registry = {key: value for key, value in connection.settings.items() if key in (URL, USER_INFO)}
        return {**connection.for_spark(), **registry}

    def check_sink(self, table: StreamingTable, sink: Sink, columns: Collection[str]) -> None:
        is_row = sink.options.get("format") in ("json", "avro")
        is_row = is_row and sink.options.get("guarantee") != "at_least_once"
        missing = "value" if "value" not in columns and not is_row else "topic"
        if missing in columns or (missing == "topic" and "topic" in sink.options):
            return
        remedies = ['return a column `value`, or send the whole row as JSON: options={"format": "json"}']
        if missing == "topic":
            remedies = ['set options={"topic": ..}', "or return a column `topic`"]
        raise errors.SinkInvalidError(
            f"the rows for the Kafka sink `{table.name.short}` have no column `{missing}`",
            location=table.location,
            facts=[f"they have {', '.join(sorted(columns))}"],
            remedies=remedies,
            params={"sink": str(table.name), "column": missing},
        )

    def check_destination(self, sink: Sink, settings: ProjectSettings, systems: Systems) -> None:
        # Without the option, each row names its topic.
        if (topic := sink.options.get("topic")) is not None:
            other = other_cluster(sink.options, settings.kafka)
            systems.client(KafkaClusters).reach(other).partitions([topic])

    def lag(self, one: SourceRange, systems: Systems, checkpoint: Location | None) -> Lag | None:
        assert isinstance(one.until, KafkaOffsets)
        servers, clusters = one.identity.get(SERVERS), systems.client(KafkaClusters)
        try:
            latest = clusters.at(servers).latest(one.until.offsets)
        except HeadraceError as error:
            if clusters.knows(servers):
                clusters.failure = clusters.failure or error
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
    with reading(path):
        # Spark writes a zero byte first, so that old versions refuse the file (SPARK-19407).
        text = path.read_bytes().lstrip(b"\0").decode("utf-8")
        version, _, offsets = text.partition("\n")
        if version != _VERSION:
            raise ValueError(f"unknown version {version!r}")
        return KafkaOffsets.from_json(json.loads(offsets))


KIND = KafkaKind()
