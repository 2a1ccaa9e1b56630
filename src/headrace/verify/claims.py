"""Which offsets a flow claims to have put into its table, and which of them can still be checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

from headrace.verify.checkpoints import Lineage, Pairs, StreamPartition
from headrace.verify.coordinates import NamedColumns
from headrace.verify.quarantine import Quarantine, Rejected
from headrace.verify.source_range import Layers, Partition, Spans

_NONE = Spans.of(())


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One partition's offsets, each as often as it may be in the table."""

    live: Spans = _NONE  # committed ranges whose records the source still holds
    past: Spans = _NONE  # committed ranges whose records the source no longer holds
    derived: Spans = _NONE  # what the table upstream holds and this table must hold, too
    may: Spans = _NONE  # what the table upstream held once, and this table may hold

    @classmethod
    def joined(cls, several: Iterable[Claim]) -> Claim:
        found = list(several)
        return cls(**{one.name: Spans.joined([getattr(c, one.name) for c in found]) for one in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class Claims:
    partitions: Mapping[Partition, Claim] = field(default_factory=dict)
    kind: str = ""  # the kind of source that is asked for its records
    system: str = ""  # the compared system, or table with its version; for people
    holder: str = ""  # what holds the records, for people
    is_derived: bool = False  # whether the flow reads a table
    named: tuple[NamedColumns, ...] = ()  # the coordinates in the rows of the tables that it reads
    reasons: tuple[str, ...] = ()  # why some of it cannot be checked
    # Rows that may be in the table although no range names them: they were removed upstream, or read by
    # batches that neither log nor ledger holds.
    excused: int = 0
    unread: int = 0  # offsets that the source holds and the flow has not read yet
    quarantined: int = 0  # rows of its judged batches in the quarantine
    discarded: int = 0  # rows of its judged batches that were discarded
    dropped: int = 0  # rows of its judged batches that expectations have dropped
    # The ranges of each batch with dropped rows, and their number.
    drops: tuple[tuple[Mapping[Partition, tuple[int, int]], int], ...] = ()
    replayed: Mapping[Partition, Spans] = field(default_factory=dict)  # records of the quarantine
    dropped_later: int = 0  # rows of these records that replays have dropped

    def total(self, layer: str) -> int:
        return sum(getattr(claim, layer).total for claim in self.partitions.values())

    def with_rejected(
        self, lineage: Lineage, quarantine: Quarantine, since: int | None, dropped_later: int
    ) -> Claims:
        """With the rows that the expectations of the flow kept out of the table."""
        batches = [batch for batch in lineage.batches if since is None or batch.first_version >= since]
        replayed = Rejected.of(batches, quarantine.replayed).spans if dropped_later else {}
        return replace(
            self,
            quarantined=Rejected.of(batches, quarantine.kept).rows,
            discarded=Rejected.of(batches, quarantine.discarded).rows,
            dropped=sum(batch.counts.dropped for batch in batches) + dropped_later,
            drops=tuple((batch.spans, batch.counts.dropped) for batch in batches if batch.counts.dropped),
            replayed=replayed,
            dropped_later=dropped_later,
        )


def join_claims(several: Iterable[Claims]) -> dict[Partition, Claim]:
    parts: dict[Partition, list[Claim]] = {}
    for claims in several:
        for key, claim in claims.partitions.items():
            parts.setdefault(key, []).append(claim)
    return {key: Claim.joined(found) for key, found in parts.items()}


def committed_spans(
    lineage: Lineage, since: int | None
) -> tuple[dict[StreamPartition, Spans], dict[StreamPartition, Spans]]:
    """The committed ranges of each partition, and the earlier ones; an offset twice only if an opening
    declares it."""
    judged: dict[StreamPartition, Pairs] = {}
    early: dict[StreamPartition, Pairs] = {}
    for batch in lineage.batches:
        target = early if since is not None and batch.first_version < since else judged
        for source in batch.sources:
            for partition, (low, until) in source.spans.items():
                spans = target.setdefault((partition, source.id_of(partition)), [])
                if spans and spans[-1][1] == low:
                    low = spans.pop()[0]
                spans.append((low, until))
    if lineage.unknown_versions or since is not None:
        # What was committed before the first known batch can only lie below it.
        for key in judged:
            first = min(low for low, _ in early.get(key, judged[key]))
            early.setdefault(key, []).append((0, first))
    repeats = lineage.declared("repeats")
    return (
        {key: _as_declared(Spans.of(spans), repeats.get(key)) for key, spans in judged.items()},
        {key: Spans.of(spans).merged() for key, spans in early.items()},
    )


def _as_declared(committed: Spans, repeats: Pairs | None) -> Spans:
    """The committed offsets, each once, and again as often as openings declare it."""
    if repeats is None:
        return committed.merged()
    layers = Layers.of(committed, Spans.of(repeats))
    return layers.repeated(np.minimum(layers.counts[0], 1 + layers.counts[1]))
