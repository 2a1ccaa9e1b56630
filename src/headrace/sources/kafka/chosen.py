"""The offsets at which a user lets a new checkpoint start, against those that the flow has read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import RangesReadAgainError, RangesSkippedError, StartInvalidError
from headrace.model.remedies import ChosenStart
from headrace.sources.kafka.position import KafkaOffsets
from headrace.state.facts import ChosenPosition, FlowFacts
from headrace.state.history import History

Span = tuple[int, int]
"""Offsets: the first one, and the one after the last."""

_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a source holds and what the flow has read of it."""

    index: int
    ids: Mapping[str, str | None]
    earliest: Mapping[str, Mapping[int, int]]
    latest: Mapping[str, Mapping[int, int]]  # the offset after the last record of each partition
    ended: KafkaOffsets  # where the flow's last checkpoint has ended each partition
    history: History = field(default_factory=History)


def choose(flow: FlowFacts, start: ChosenStart, held: Held) -> ChosenPosition:
    """The position of a new checkpoint that starts where a user wants it."""
    read = read_offsets(held.history)
    offsets: dict[str, dict[int, int]] = {}
    repeats: list[dict[str, Any]] = []
    losses: list[dict[str, Any]] = []
    for topic, partition, ended in held.ended:
        chosen = _chosen(flow, start, held, topic, partition)
        offsets.setdefault(topic, {})[partition] = ended if chosen is None else chosen
        if chosen is None:
            continue
        spans = read.get(held.ids.get(topic) or "", {}).get(partition, [])
        if not held.history.whole:
            # It is not known which offsets before the last ones were read.
            spans = _merged([*spans, (0, ended)])
        where = {"source": held.index, "topic": topic, "partition": partition}
        repeats += [
            {**where, "from": max(low, chosen), "until": high} for low, high in spans if high > chosen
        ]
        losses += [{**where, "from": low, "until": high} for low, high in _without((ended, chosen), spans)]
    if repeats and not start.allow_duplicates:
        raise _read_again(flow, start, repeats)
    if losses and not start.accept_loss:
        raise _skipped(flow, start, losses)
    return ChosenPosition(position=KafkaOffsets(offsets), losses=tuple(losses), repeats=tuple(repeats))


def read_offsets(history: History) -> dict[str, dict[int, list[Span]]]:
    """The offsets that the checkpoints of a flow have read, by topic id and partition, each once."""
    found: dict[str, dict[int, list[Span]]] = {}
    for read in (read for reads in history.commits for read in reads if read.source.kind == "kafka"):
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


def _chosen(flow: FlowFacts, start: ChosenStart, held: Held, topic: str, partition: int) -> int | None:
    """The offset that the user has chosen for a partition; ``None`` to continue."""
    first = held.earliest.get(topic, {}).get(partition)
    end = held.latest.get(topic, {}).get(partition)
    if start.edge is not None:
        return first if start.edge == "earliest" else end
    offset = start.offsets.get(topic, {}).get(partition)
    if offset is not None and (first is None or end is None or not first <= offset <= end):
        offsets = (
            f"the topic has no partition {partition}"
            if first is None or end is None
            else f"the broker has the offsets {first} to {end - 1}; {end} starts after the last record"
        )
        raise StartInvalidError(
            f"flow {flow.flow}: topic `{topic}`, partition {partition} has no offset {offset}",
            location=flow.location,
            facts=(offsets, "nothing was changed"),
            remedies=("choose an offset of the topic, or leave out --from",),
            params={"flow": flow.flow, "topic": topic, "partition": partition, "offset": offset},
        )
    return offset


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
    """One line for each range of offsets."""
    lines = [
        f"topic {one['topic']}, partition {one['partition']}: offsets {one['from']} to {one['until'] - 1}"
        for one in ranges
    ]
    return lines if len(lines) <= _NAMED else [*lines[:_NAMED], f"and {len(lines) - _NAMED} more ranges"]


def _read_again(flow: FlowFacts, start: ChosenStart, repeats: list[dict[str, Any]]) -> RangesReadAgainError:
    count = sum(one["until"] - one["from"] for one in repeats)
    return RangesReadAgainError(
        f"flow {flow.flow} would read {count:,} offsets again, which it has committed",
        location=flow.location,
        facts=(*ranges_text(repeats), "nothing was changed"),
        remedies=(
            "read them again, and record them as declared duplicates:   "
            f"{_command(flow, start)} --allow-duplicates",
        ),
        params={"flow": flow.flow, "ranges": repeats},
    )


def _skipped(flow: FlowFacts, start: ChosenStart, losses: list[dict[str, Any]]) -> RangesSkippedError:
    count = sum(one["until"] - one["from"] for one in losses)
    return RangesSkippedError(
        f"flow {flow.flow} would pass over {count:,} offsets that it has never read",
        location=flow.location,
        facts=(*ranges_text(losses), "nothing was changed"),
        remedies=(f"record them as lost:   {_command(flow, start)} --accept-loss",),
        params={"flow": flow.flow, "ranges": losses},
    )


def _command(flow: FlowFacts, start: ChosenStart) -> str:
    return f"headrace reset {flow.flow} {start.options()}"
