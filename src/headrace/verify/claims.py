"""Which offsets a flow claims to have put into its table, and which of them can still be checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from headrace.verify.checkpoint_history import Lineage
from headrace.verify.coordinates import ANY, Present
from headrace.verify.declared import Pairs
from headrace.verify.offsets import Topic
from headrace.verify.quarantine import Quarantine, Rejected, rows_in
from headrace.verify.source_range import TopicPartition
from headrace.verify.spans import Layers, Spans

_NONE = Spans.of(())
_NAMED = 6


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One partition's offsets, each as often as it may be in the table."""

    live: Spans = _NONE  # committed ranges whose records the broker still holds
    past: Spans = _NONE  # committed ranges whose records the broker no longer holds
    derived: Spans = _NONE  # what the table upstream holds and this table must hold, too
    may: Spans = _NONE  # what the table upstream held once, and this table may hold


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What one flow claims.

    Args:
        upstream: The table that the flow reads instead of Kafka, with its version, for people.
        excused: Rows that may be in the table although no range names them: they were removed upstream, or
            read by batches that neither log nor ledger holds.
        drops: The ranges of each batch with dropped rows, and their number.
        replayed: The replayed records of the quarantine; replays have dropped ``dropped_later`` rows of them.
    """

    partitions: Mapping[TopicPartition, Claim] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()  # why some of it cannot be checked
    upstream: str | None = None
    excused: int = 0
    unread: int = 0  # offsets on the broker that the flow has not read yet
    quarantined: int = 0  # rows of its judged batches in the quarantine
    discarded: int = 0  # rows of its judged batches that were discarded
    dropped: int = 0  # rows of its judged batches that expectations have dropped
    drops: tuple[tuple[Mapping[TopicPartition, tuple[int, int]], int], ...] = ()
    replayed: Mapping[TopicPartition, Spans] = field(default_factory=dict)
    dropped_later: int = 0

    def total(self, layer: str) -> int:
        """Offsets in one layer of all partitions."""
        return sum(getattr(claim, layer).total for claim in self.partitions.values())


def join_claims(several: Iterable[Claims]) -> dict[TopicPartition, Claim]:
    """What all flows of a table claim together."""
    parts: dict[TopicPartition, list[Claim]] = {}
    for claims in several:
        for key, claim in claims.partitions.items():
            parts.setdefault(key, []).append(claim)
    return {
        key: Claim(
            live=Spans.joined([claim.live for claim in found]),
            past=Spans.joined([claim.past for claim in found]),
            derived=Spans.joined([claim.derived for claim in found]),
            may=Spans.joined([claim.may for claim in found]),
        )
        for key, found in parts.items()
    }


def with_rejected(
    claims: Claims, lineage: Lineage, quarantine: Quarantine, since: int | None, dropped_later: int
) -> Claims:
    """The claims of a flow with the rows that its expectations kept out of the table."""
    batches = [batch for batch in lineage.batches if since is None or batch.first_version >= since]
    drops = []
    for batch in batches:
        if batch.counts.dropped:
            ranges: dict[TopicPartition, tuple[int, int]] = {}
            for source in batch.sources:
                starts = source.starts
                ranges |= {key: (starts.get(key, end), end) for key, end in source.ends.items()}
            drops.append((ranges, batch.counts.dropped))
    replayed = Rejected.joined(rows_in(quarantine.replayed, batches)).partitions if dropped_later else {}
    return replace(
        claims,
        quarantined=Rejected.joined(rows_in(quarantine.kept, batches)).rows,
        discarded=Rejected.joined(rows_in(quarantine.discarded, batches)).rows,
        dropped=sum(batch.counts.dropped for batch in batches) + dropped_later,
        drops=tuple(drops),
        replayed={key: Spans.of_offsets(np.array(some, dtype=np.int64)) for key, some in replayed.items()},
        dropped_later=dropped_later,
    )


def build_kafka_claims(
    lineage: Lineage, topics: Mapping[str, Topic | None] | None, since: int | None, silence: str = ""
) -> Claims:
    """What a flow from Kafka claims.

    Args:
        lineage: The flow with all its batches, those before ``since`` too.
        topics: The broker's topics; ``None`` if it does not answer; ``silence`` is the reason.
    """
    reasons: list[str] = []
    parts: dict[TopicPartition, list[Claim]] = {}
    committed, early = _committed(lineage, since)
    expired: list[str] = []
    for (topic, identity, partition), spans in sorted(committed.items(), key=lambda item: str(item[0])):
        key = (topic, partition)
        now = None if topics is None else topics.get(topic)
        if now is None or identity not in (None, now.id) or partition not in now.high:
            parts.setdefault(key, []).append(Claim(past=spans))
            if topics is not None:
                reasons.append(_why_gone(topic, identity, now))
            continue
        low, high = now.low.get(partition, 0), now.high[partition]
        live = spans.within(low, high)
        below, above = spans.within(None, low), spans.within(high, None)
        parts.setdefault(key, []).append(Claim(live=live, past=Spans.joined([below, above])))
        if below:
            expired.append(f"{topic}/{partition} (before offset {low:,})")
        if above:
            reasons.append(
                f"the broker's log of {topic}/{partition} ends at offset {high:,}, "
                f"and it was read up to {int(above.ends.max()):,}"
            )
    for (topic, _, partition), spans in early.items():
        parts.setdefault((topic, partition), []).append(Claim(past=spans))
    if expired:
        more = "" if len(expired) <= _NAMED else f" and {len(expired) - _NAMED} more partitions"
        reasons.insert(0, f"the broker no longer holds records of {', '.join(expired[:_NAMED])}{more}")
    if topics is None and committed:
        reasons.insert(0, silence)
    claims = {
        key: join_claims([Claims(partitions={key: c}) for c in found])[key] for key, found in parts.items()
    }
    forgotten = ANY if lineage.unknown_versions and not (committed or early) else 0
    return Claims(
        partitions=claims,
        reasons=tuple(dict.fromkeys(reasons)),
        excused=forgotten,
        unread=_unread(lineage, topics or {}),
    )


def build_derived_claims(upstream: str, must: Present, may: Present, excused: int) -> Claims:
    """What a flow from another table claims: every row that the table had at a version.

    Args:
        may: Rows that were read in part, or that were removed later.
    """
    partitions = {
        key: Claim(derived=must.at(key), may=may.at(key)) for key in {*must.partitions, *may.partitions}
    }
    return Claims(partitions=partitions, upstream=upstream, excused=excused)


def topics_of(lineages: Iterable[Lineage]) -> dict[str | None, set[str]]:
    """The topics that flows have read, by the brokers of their cluster (``None``: the profile's)."""
    found: dict[str | None, set[str]] = {}
    for lineage in lineages:
        for source in (source for batch in lineage.batches for source in batch.sources):
            if source.kind == "kafka":
                found.setdefault(source.servers, set()).update(source.until)
    return found


def clusters_of(lineages: Iterable[Lineage]) -> dict[str, str | None]:
    """The brokers of the cluster that each topic was last read in; ``None`` for the profile's."""
    return {
        topic: source.servers
        for lineage in lineages
        for batch in lineage.batches
        for source in batch.sources
        if source.kind == "kafka"
        for topic in source.until
    }


_Partition = tuple[str, str | None, int]


def _committed(
    lineage: Lineage, since: int | None
) -> tuple[dict[_Partition, Spans], dict[_Partition, Spans]]:
    """The committed ranges by topic, topic id and partition, and the earlier ones.

    Each offset is there once, or as often as it was read again if the openings declare it.
    """
    judged: dict[_Partition, list[tuple[int, int]]] = {}
    early: dict[_Partition, list[tuple[int, int]]] = {}
    for batch in lineage.batches:
        target = early if since is not None and batch.first_version < since else judged
        for source in batch.sources:
            start = source.starts
            for (topic, partition), until in source.ends.items():
                spans = target.setdefault((topic, source.topic_id(topic), partition), [])
                low = start.get((topic, partition), until)
                if spans and spans[-1][1] == low:
                    spans[-1] = (spans[-1][0], until)
                else:
                    spans.append((low, until))
    if lineage.unknown_versions or since is not None:
        # What was committed before the first known batch can only lie below it.
        for key in judged:
            first = min(low for low, _ in early.get(key, judged[key]))
            early.setdefault(key, []).append((0, first))
    repeats = lineage.repeats
    return (
        {key: _as_declared(Spans.of(spans), repeats.get(key)) for key, spans in judged.items()},
        {key: Spans.of(spans).merged() for key, spans in early.items()},
    )


def _as_declared(committed: Spans, repeats: Pairs | None) -> Spans:
    """The committed offsets, each once, and again as often as openings declare it."""
    if repeats is None:
        return committed.merged()
    layers = Layers.of(committed, Spans.of(repeats))
    counts = np.minimum(layers.counts[0], 1 + layers.counts[1])
    return Spans.joined([layers.where(counts >= times) for times in range(1, int(counts.max()) + 1)])


def _unread(lineage: Lineage, topics: Mapping[str, Topic | None]) -> int:
    """The offsets that the broker holds behind the last batch, in the partitions that the flow reads."""
    unread = 0
    for source in () if lineage.last is None else lineage.last.sources:
        ends = source.ends
        for topic in {topic for topic, _ in ends}:
            now = topics.get(topic)
            if now is None or source.topic_id(topic) not in (None, now.id):
                continue
            chosen = source.identity.get("partitions", {}).get(topic, now.high)
            for partition, high in now.high.items():
                if partition in chosen:
                    read = ends.get((topic, partition), now.low.get(partition, 0))
                    unread += max(high - read, 0)
    return unread


def _why_gone(topic: str, identity: str | None, now: Topic | None) -> str:
    if now is None:
        return f"the broker no longer has the topic {topic}"
    if identity in (None, now.id):
        return f"the topic {topic} has fewer partitions now than were read"
    return f"the topic {topic} with the id {identity}, which was read, was deleted or is in another cluster"
