"""The topics of a Kafka source as they are now, and how a flow can continue with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace import errors
from headrace.errors import HeadraceError, SourceLocation
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.project import OnDataLoss
from headrace.model.ranges import Position
from headrace.model.remedies import ChosenStart
from headrace.model.texts import counted
from headrace.sources.kafka.cluster import Partition
from headrace.sources.kafka.clusters import SERVERS
from headrace.sources.kafka.last_records import LastRecord, ReusedOffset, offsets_reused
from headrace.sources.kafka.position import KafkaOffsets
from headrace.state.facts import (
    ChosenPosition,
    FlowFacts,
    History,
    Losses,
    NextPosition,
    ReadBefore,
    SourceFacts,
)
from headrace.state.starting_positions import require_whole, resume_impossible

Span = tuple[int, int]
"""Offsets: the first one, and the one after the last."""

_NAMED = 8


def read_offsets(history: History) -> dict[str, dict[int, list[Span]]]:
    """The offsets that the checkpoints of a flow have read, by topic id and partition, each once."""
    found: dict[str, dict[int, list[Span]]] = {}
    for read in history.reads("kafka"):
        ids = read.source.identity["topics"]
        starts = KafkaOffsets.from_json(read.start or {})
        for topic, partition, end in KafkaOffsets.from_json(read.until):
            if ids.get(topic) is not None:
                # Spark reads a partition that appears after the start from its beginning.
                first = starts.get(topic, partition) or 0
                found.setdefault(ids[topic], {}).setdefault(partition, []).append((first, end))
    return {
        topic_id: {partition: _merged(spans) for partition, spans in partitions.items()}
        for topic_id, partitions in found.items()
    }


def _merged(spans: Iterable[Span]) -> list[Span]:
    found: list[Span] = []
    for low, high in sorted(span for span in spans if span[0] < span[1]):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def _without(span: Span, spans: Iterable[Span]) -> list[Span]:
    """The parts of a span that lie in none of the others, which are in order."""
    low, end = span
    left: list[Span] = []
    for first, last in spans:
        if low < min(first, end):
            left.append((low, min(first, end)))
        low = max(low, last)
    return [*left, *([(low, end)] if low < end else [])]


def ranges_text(ranges: Iterable[Mapping[str, Any]]) -> list[str]:
    lines = [
        f"topic {one['topic']}, partition {one['partition']}: {_offsets(one['from'], one['until'])}"
        for one in ranges
    ]
    return lines if len(lines) <= _NAMED else [*lines[:_NAMED], f"and {len(lines) - _NAMED} more ranges"]


def _read_again(
    flow: FlowFacts, start: ChosenStart, repeats: list[dict[str, Any]]
) -> errors.RangesReadAgainError:
    count = sum(one["until"] - one["from"] for one in repeats)
    return errors.RangesReadAgainError(
        f"flow {flow.flow} would read {counted(count, 'offset')} again, which it has committed",
        location=flow.location,
        facts=(*ranges_text(repeats), "nothing was changed"),
        remedies=(
            "read them again, and record them as declared duplicates:   "
            f"headrace reset {flow.flow} {start.options()} --allow-duplicates",
        ),
        params={"flow": flow.flow, "ranges": repeats},
    )


def _skipped(flow: FlowFacts, start: ChosenStart, losses: list[dict[str, Any]]) -> errors.RangesSkippedError:
    count = sum(one["until"] - one["from"] for one in losses)
    return errors.RangesSkippedError(
        f"flow {flow.flow} would pass over {counted(count, 'offset')} that it has never read",
        location=flow.location,
        facts=(*ranges_text(losses), "nothing was changed"),
        remedies=(f"record them as lost:   headrace reset {flow.flow} {start.options()} --accept-loss",),
        params={"flow": flow.flow, "ranges": losses},
    )


Ended = Mapping[str, Mapping[int, int | None]]
"""By topic id and partition, where a flow has ended; ``None`` where a join had read the partition on both
sides, up to different offsets."""


@dataclass(frozen=True, kw_only=True)
class KafkaFacts(SourceFacts):
    """What the broker holds of the topics of one source."""

    # The first offset that the broker still holds, by topic and partition
    earliest: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    latest: Mapping[str, Mapping[int, int]] = field(default_factory=dict)  # the offset after the last record
    # The last record that the flow has read of each partition, as its commits say
    last: Mapping[Partition, LastRecord] = field(default_factory=dict)
    # The offsets of those records at which the broker has another record now, or none
    reused: tuple[ReusedOffset, ...] = ()
    on_data_loss: OnDataLoss | None = None  # the policy of this source alone; ``None`` takes the flow's
    connection: KafkaConnection = field(default_factory=KafkaConnection)  # to the cluster of the topics

    def _topic_gone(
        self, flow: FlowFacts, checkpoint: str, topic: str, known_id: str | None
    ) -> errors.TopicNotFoundError:
        how = (
            "does not exist any more, or no longer matches its pattern"
            if self.joins
            else "does not exist any more"
        )
        return errors.TopicNotFoundError(
            f"flow {flow.flow}: the topic `{topic}`, which it was reading, {how}",
            location=flow.location,
            facts=(f"checkpoint {checkpoint} read topic id {known_id}",) if known_id else (),
            remedies=(
                *([f"continue without it:   headrace reset {flow.flow}"] if self.joins else []),
                self.connection.create_topic_remedy(topic),
            ),
            params={"flow": flow.flow, "topic": topic},
        )

    @property
    def ids(self) -> Mapping[str, str | None]:
        """The id of each topic; ``None`` where the broker has no such topic."""
        ids: Mapping[str, str | None] = self.source.identity["topics"]
        return ids

    @property
    def joins(self) -> bool:
        """Whether topics can join, because they are found by a pattern."""
        return "pattern" in self.source.identity

    def check(self, flow: FlowFacts) -> None:
        for reused in self.reused:
            done = "nothing was read or written"
            raise offsets_reused(flow.flow, flow.short_dataset, flow.location, reused, done=done)

    def is_same(self, flow: FlowFacts, then: ReadBefore) -> bool:
        read = _ids_read(then)
        same_partitions = self.source.identity.get("partitions") == then.source.identity.get("partitions")
        if not same_partitions or (not self.joins and set(self.ids) != set(read)):
            return False
        # The ids tell whether another list of brokers means another cluster.
        moved = self.source.identity.get(SERVERS) != then.source.identity.get(SERVERS)
        if moved and any(known_id != self.ids.get(topic) for topic, known_id in read.items()):
            return False
        for topic, known_id in read.items():
            if self.ids.get(topic) is None:
                raise self._topic_gone(flow, then.checkpoint, topic, known_id)
            if known_id not in (None, self.ids[topic]):
                now = self.ids[topic]
                raise topic_recreated(flow.flow, flow.location, then.checkpoint, topic, known_id, now)
        return True

    def next_position(self, flow: FlowFacts, history: History) -> NextPosition:
        """A topic of a known id continues where it ended; another one starts at its first record."""
        ended = ended_offsets(history)
        found: dict[str, dict[int, int]] = {}
        for topic, partitions in self.earliest.items():
            known = self.ids.get(topic) in ended
            for partition, first in partitions.items():
                offset = self._ended_at(flow, ended, topic, partition)
                if offset is None:
                    require_whole(flow, history, f"the topic {topic}")
                found.setdefault(topic, {})[partition] = (offset or 0) if known else first
        return NextPosition(KafkaOffsets(found))

    def check_position(
        self, flow: FlowFacts, history: History, position: Position, *, continues: bool
    ) -> tuple[Position, Losses]:
        """Add new partitions, and skip offsets that the broker has lost."""
        assert isinstance(position, KafkaOffsets)
        ended = ended_offsets(history)
        offsets = {topic: dict(partitions) for topic, partitions in position.offsets.items()}
        losses: list[dict[str, Any]] = []
        for topic, partition, first in KafkaOffsets(self.earliest):
            mine = offsets.setdefault(topic, {})
            if partition not in mine:
                if topic not in position.offsets and self.ids.get(topic) not in ended:
                    require_whole(flow, history, f"the topic {topic}")
                # A partition that was never read starts at 0, wherever the broker's first record is.
                mine[partition] = self._ended_at(flow, ended, topic, partition) or 0
                if continues and mine[partition] > 0:
                    raise _read_before(flow, topic, partition, mine[partition])
            offset = mine[partition]
            end = self.latest.get(topic, {}).get(partition, offset)
            if offset > end:
                raise _beyond_end(flow, topic, partition, offset, end)
            if offset < first:
                mine[partition] = first
                lost = {"source": self.source.index, "topic": topic, "partition": partition}
                losses.append({**lost, "from": offset, "until": first})
        if losses and (self.on_data_loss or flow.on_data_loss) == "refuse":
            raise _expired(flow, losses)
        return KafkaOffsets(offsets), tuple(losses)

    def choose_position(
        self, flow: FlowFacts, history: History, position: Position, start: ChosenStart
    ) -> ChosenPosition:
        assert isinstance(position, KafkaOffsets)
        read = read_offsets(history)
        offsets: dict[str, dict[int, int]] = {}
        repeats: list[dict[str, Any]] = []
        losses: list[dict[str, Any]] = []
        for topic, partition, ended in position:
            chosen = self._chosen(flow, start, topic, partition)
            offsets.setdefault(topic, {})[partition] = ended if chosen is None else chosen
            if chosen is None:
                continue
            spans = read.get(self.ids.get(topic) or "", {}).get(partition, [])
            if not history.whole:
                # It is not known which offsets before the last ones were read.
                spans = _merged([*spans, (0, ended)])
            where = {"source": self.source.index, "topic": topic, "partition": partition}
            repeats += [
                {**where, "from": max(low, chosen), "until": high} for low, high in spans if high > chosen
            ]
            losses += [
                {**where, "from": low, "until": high} for low, high in _without((ended, chosen), spans)
            ]
        if repeats and not start.allow_duplicates:
            raise _read_again(flow, start, repeats)
        if losses and not start.accept_loss:
            raise _skipped(flow, start, losses)
        return ChosenPosition(
            position=KafkaOffsets(offsets),
            partitions=frozenset((topic, partition) for topic, partition, _ in position),
            losses=tuple(losses),
            repeats=tuple(repeats),
        )

    def _chosen(self, flow: FlowFacts, start: ChosenStart, topic: str, partition: int) -> int | None:
        """The offset that the user has chosen for a partition; ``None`` to continue."""
        first = self.earliest.get(topic, {}).get(partition)
        end = self.latest.get(topic, {}).get(partition)
        if start.edge is not None:
            return first if start.edge == "earliest" else end
        offset = start.offsets.get(topic, {}).get(partition)
        if offset is not None and (first is None or end is None or not first <= offset <= end):
            offsets = (
                f"the topic has no partition {partition}"
                if first is None or end is None
                else f"the broker has the offsets {first} to {end - 1}; {end} starts after the last record"
            )
            raise errors.StartInvalidError(
                f"flow {flow.flow}: topic `{topic}`, partition {partition} has no offset {offset}",
                location=flow.location,
                facts=(offsets, "nothing was changed"),
                remedies=("choose an offset of the topic, or leave out --from",),
                params={"flow": flow.flow, "topic": topic, "partition": partition, "offset": offset},
            )
        return offset

    def _ended_at(self, flow: FlowFacts, ended: Ended, topic: str, partition: int) -> int | None:
        offsets = ended.get(self.ids.get(topic) or "", {})
        if partition in offsets and offsets[partition] is None:
            why = f"its query has read the topic {topic} twice, up to different offsets"
            raise resume_impossible(flow, why)
        return offsets.get(partition)


def ended_offsets(history: History) -> Ended:
    """Where the flow's checkpoints have ended each partition of each topic id."""
    ended: dict[str, dict[int, int | None]] = {}
    for reads in history.commits:
        commit: dict[str, dict[int, int | None]] = {}
        for read in (read for read in reads if read.source.kind == "kafka"):
            ids = read.source.identity["topics"]
            for topic, partition, offset in KafkaOffsets.from_json(read.until):
                if ids.get(topic) is not None:
                    known = commit.setdefault(ids[topic], {})
                    known[partition] = offset if known.setdefault(partition, offset) == offset else None
        for topic_id, offsets in commit.items():
            ended.setdefault(topic_id, {}).update(offsets)
    return ended


def _ids_read(then: ReadBefore) -> dict[str, str | None]:
    """The ids of the topics that a checkpoint has read, also of those that have joined its pattern since.

    The checkpoint's identity has the topics of its beginning, and the last commit those that it had read.
    A topic of a batch that was planned and never committed has no id yet: it has no rows.
    """
    first: dict[str, str | None] = dict(then.source.identity["topics"])
    committed = {} if then.committed is None else then.committed.identity
    if "pattern" not in then.source.identity and "pattern" not in committed:
        return first
    ids = {**first, **committed.get("topics", {})}
    positions = (one for one in then.positions if isinstance(one, KafkaOffsets))
    return {topic: ids.get(topic) for position in positions for topic in position.offsets}


def topic_recreated(
    flow: str, location: SourceLocation, checkpoint: str, topic: str, known_id: str | None, now_id: str | None
) -> errors.TopicRecreatedError:
    return errors.TopicRecreatedError(
        f"flow {flow}: the topic `{topic}` was deleted and created again since its last batch",
        location=location,
        facts=(
            *(["the broker has no such topic"] if now_id is None else []),
            "records of the old topic that were not read are lost; no record of the new topic was committed",
        ),
        remedies=(
            f"keep the rows and continue with the new topic:   headrace reset {flow}",
            "or correct the topic in the flow's query, or the connection if it points to another cluster",
        ),
        params={"flow": flow, "topic": topic, "was": known_id, "is": now_id, "checkpoint": checkpoint},
    )


def _read_before(flow: FlowFacts, topic: str, partition: int, offset: int) -> HeadraceError:
    remedy = (
        f"continue from these offsets:   headrace reset {flow.flow}"
        if flow.can_resume
        else f"read everything again:   headrace full-refresh {flow.short_dataset}"
    )
    return errors.SourcesChangedError(
        f"flow {flow.flow}: the topic `{topic}` matches the pattern again, but an earlier checkpoint has "
        "already read it",
        location=flow.location,
        facts=(
            f"partition {partition} was read up to offset {offset}; the current checkpoint would start at 0",
            "nothing was read or written",
        ),
        remedies=(remedy,),
        params={"flow": flow.flow, "topic": topic, "partition": partition, "offset": offset},
    )


def _beyond_end(flow: FlowFacts, topic: str, partition: int, offset: int, end: int) -> HeadraceError:
    return errors.OffsetsBeyondEndError(
        f"flow {flow.flow}: topic `{topic}`, partition {partition} no longer has {_offsets(end, offset)}, "
        "which the flow has read",
        location=flow.location,
        facts=(f"the broker has lost records: its next offset is {end}", "nothing was read or written"),
        remedies=(
            "restore the log of the broker",
            "or read everything again; the rows of lost records are lost:   "
            f"headrace full-refresh {flow.short_dataset}",
        ),
        params={"flow": flow.flow, "topic": topic, "partition": partition},
    )


def _offsets(first: int, until: int) -> str:
    return f"offset {first}" if until - first == 1 else f"offsets {first} to {until - 1}"


def _expired(flow: FlowFacts, losses: Sequence[Mapping[str, Any]]) -> errors.OffsetsExpiredError:
    lost = sum(loss["until"] - loss["from"] for loss in losses)
    return errors.OffsetsExpiredError(
        f"flow {flow.flow}: the broker no longer has {counted(lost, 'offset')} "
        "that the flow has not read yet",
        location=flow.location,
        facts=(*ranges_text(losses), "nothing was read or written"),
        remedies=(
            "continue after them, and record them as lost: write `on_data_loss: record` in headrace.yml, or "
            'on_data_loss="record" in read_kafka, then run again:   headrace run',
        ),
        params={"flow": flow.flow, "losses": list(losses)},
    )
