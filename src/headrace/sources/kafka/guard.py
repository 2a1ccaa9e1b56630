"""The checks of Kafka topics while a flow runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from headrace.model.ranges import SourceRange
from headrace.sources.guard import FlowRun, Guard
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.sources.kafka.clusters import KafkaClusters
from headrace.sources.kafka.facts import KafkaFacts, topic_recreated
from headrace.sources.kafka.last_records import LastRecordReader, offsets_reused
from headrace.sources.kafka.position import KafkaOffsets
from headrace.sources.kafka.source import KafkaSource
from headrace.sources.new_fields import schema_mark
from headrace.state.identity import SourceIdentity


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
        """Mark the last record that was read of each partition, and the number of a schema that evolves.

        Raises:
            OffsetsReusedError: The broker has another record, or none, at an offset that was read.
        """
        flow = self.run.flow
        for one in ranges:
            marks, reused = self._last.finish(one)
            if reused:
                done = "the batch was not committed"
                raise offsets_reused(flow.name, flow.target.short, flow.location, reused[0], done=done)
            yield replace(one, marks={**marks, **schema_mark(self._planned(one).options)})

    def close(self) -> None:
        self._last.close()
